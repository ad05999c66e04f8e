"""The README is run: every command and every block of Python in it, and its tree is compared.

So is the Python of every page under docs, each page from its first block to its last.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import querykey

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(README)
PAGES = [page for page in (ROOT / "docs").glob("*.md") if "```python" in page.read_text()]
TREE = next(text for language, text in BLOCKS if language == "")


def blocks(language):
    return [text for name, text in BLOCKS if name == language]


@pytest.mark.slow
@pytest.mark.parametrize("block", [b for b in blocks("bash") if "qk " in b])
def test_every_command_works_as_printed(block, tmp_path):
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=tmp_path, env={"PATH": path, "HOME": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("python"))
def test_every_block_of_python_runs(block):
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_every_page_runs(page, tmp_path):
    text = "\n".join(text for name, text in BLOCK.findall(page.read_text()) if name == "python")
    run = [sys.executable, "-c", text]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_make_target_named_exists():
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", README))
    assert named
    assert named <= made


def test_the_tree_names_every_room_and_no_other():
    rooms = set(re.findall(r"^  ([a-z]+)(?:/|\.py) ", TREE, flags=re.MULTILINE))
    assert rooms == set(querykey._ROOMS)


def test_the_tree_names_every_benchmark_and_page():
    for folder, ending in (("benchmarks", "py"), ("docs", "md"), ("docs/dev", "md")):
        line = next(line for line in TREE.splitlines() if line.startswith(f"{folder}/ "))
        files = {path.name for path in (ROOT / folder).glob(f"*.{ending}")}
        assert {name for name in files if name not in line} == set()
