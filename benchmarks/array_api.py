"""How much of the array API the namespace of `querykey.ag` passes, by data-apis' own test suite.

    python benchmarks/array_api.py                     # fetches the suite with git
    python benchmarks/array_api.py --suite FOLDER      # a checkout of it, with its submodule

The suite is fetched at a pinned commit into a temporary folder; it wants `ndindex`,
`pytest-json-report` and `pytest-metadata`. One line of its copy is changed: it looks for the widest
complex type, and there is none here. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SUITE = "https://github.com/data-apis/array-api-tests"
COMMIT = "55fcc60179efa2680ddd6cd926ddf17b83530e2b"
# What asks for complex numbers: the cases of complex arguments, Fourier transforms, the conversion.
COMPLEX = re.compile(r"imag\(|fft|__complex__|vecdot_conj")
WIDEST = "for dt in complex_dtypes], key=lambda x: x[1]\n)[0]"


def fetched(folder: Path) -> Path:
    """Return the suite at the pinned commit."""
    git = ["git", "-C", str(folder)]
    subprocess.run(["git", "clone", "-q", SUITE, str(folder)], check=True)
    subprocess.run([*git, "checkout", "-q", COMMIT], check=True)
    subprocess.run([*git, "submodule", "update", "-q", "--init"], check=True)
    return folder


def without_complex(suite: Path) -> None:
    """Let the suite be collected where there is no complex type."""
    file = suite / "array_api_tests" / "dtype_helpers.py"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(WIDEST, WIDEST.replace("x[1]\n", "x[1], default=(None, 0)\n")))


def outcomes(suite: Path, examples: int) -> list[tuple[str, str]]:
    """Run the suite, and return (outcome, test) of every test that ran."""
    environment = os.environ | {
        "ARRAY_API_TESTS_MODULE": "querykey.ag.extras.array_api",
        "ARRAY_API_TESTS_VERSION": "2024.12",
        "ARRAY_API_TESTS_SKIP_DTYPES": "complex64,complex128",
    }
    options = ["-q", "--disable-deadline", "--hypothesis-derandomize", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "array_api_tests", *options, "-o", "addopts=",
         "-W", "ignore", "--tb=no", "-rpfE", "--max-examples", str(examples)],
        cwd=suite, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+::.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if not found:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", type=Path)
    parser.add_argument("--examples", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        suite = options.suite or fetched(Path(folder) / "suite")
        without_complex(suite)
        results = outcomes(suite, options.examples)
    real = [(outcome, test) for outcome, test in results if not COMPLEX.search(test)]
    failed = sorted({test for outcome, test in real if outcome != "PASSED"})
    for test in failed:
        print(f"fails: {test}")
    passed = len(real) - len(failed)
    share = f"{passed / len(real):.1%}"
    print(f"{passed} of {len(real)} tests that need no complex type pass, {share}")
    numbers = {"passed": passed, "of": len(real), "complex": len(results) - len(real)}
    print(json.dumps({"commit": COMMIT} | numbers | {"failed": failed}))


if __name__ == "__main__":
    main()
