"""The house itself: what importing costs, who may import whom, which names are public."""

import ast
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import querykey

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "querykey"
SNAPSHOTS = Path(__file__).parent / "snapshots"
QK = str(Path(sys.executable).with_name("qk"))

BEFORE = {"errors", "words", "shapes", "show"}
MAY_IMPORT = {
    "errors": set(),
    "words": set(),
    "shapes": {"errors"},
    "show": {"errors", "shapes"},
    "ag": BEFORE,
    "attention": BEFORE | {"ag"},
    "backends": BEFORE | {"ag", "attention"},
    "nn": BEFORE | {"ag", "attention", "backends"},
    "models": BEFORE | {"ag", "attention", "backends", "nn"},
    "targets": BEFORE | {"ag", "attention", "backends", "nn", "models"},
    "costs": BEFORE | {"targets"},
    "laws": BEFORE | {"targets"},
}
MAY_IMPORT["train"] = set(MAY_IMPORT)
MAY_IMPORT["lab"] = set(MAY_IMPORT)
MAY_IMPORT["cli"] = set(MAY_IMPORT)


def python(code: str) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def imports(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Every (module, names) that a file imports, at any depth of nesting."""
    package = ["querykey", *file.relative_to(SOURCE).parts[:-1]] if SOURCE in file.parents else []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module, [alias.name for alias in node.names]


def room_of(file: Path, source: Path) -> str:
    return file.relative_to(source).parts[0].removesuffix(".py")


def forbidden_imports(source: Path) -> list[str]:
    """Every import of a room that does not stand to the left of the importing one."""
    found = []
    for file in sorted(source.rglob("*.py")):
        room = room_of(file, source)
        if room == "__init__":
            continue
        for module, names in imports(file):
            parts = module.split(".")
            if parts[0] != "querykey":
                continue
            rooms = {parts[1]} if len(parts) > 1 else set(names)
            wrong = rooms - MAY_IMPORT[room] - {room}
            found += [f"{file.relative_to(source)} imports {each}" for each in sorted(wrong)]
    return found


def files_with_private_names(source: Path) -> dict[str, set[str]]:
    """Per room, the files that import underscored names of torch or Hugging Face."""
    found: dict[str, set[str]] = {}
    for file in sorted(source.rglob("*.py")):
        for module, names in imports(file):
            parts = module.split(".")
            if parts[0] in ("torch", "transformers", "huggingface_hub") and any(
                part.startswith("_") for part in [*parts, *names] if part != "__version__"
            ):
                found.setdefault(room_of(file, source), set()).add(file.name)
    return found


def test_imports_point_one_way():
    assert forbidden_imports(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("shapes.py", "import querykey.targets"),
        ("attention/masks.py", "def f():\n    from querykey.backends import attend"),
        ("laws/table.py", "from querykey import models"),
        ("costs/flops.py", "from querykey.models.decoder import Decoder"),
    ],
)
def test_the_layering_test_can_fail(tmp_path, file, code):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(code)
    assert len(forbidden_imports(tmp_path)) == 1


def test_every_room_has_its_place_in_the_layering():
    rooms = {room_of(file, SOURCE) for file in SOURCE.rglob("*.py")} - {"__init__"}
    assert rooms <= set(MAY_IMPORT)
    assert rooms == set(querykey._ROOMS)


def test_private_names_are_imported_in_one_file_per_room(tmp_path):
    assert all(len(files) == 1 for files in files_with_private_names(SOURCE).values())
    (tmp_path / "costs").mkdir()
    (tmp_path / "costs" / "a.py").write_text("from torch._subclasses import FakeTensorMode")
    (tmp_path / "costs" / "b.py").write_text("from torch.fx import _symbolic_trace")
    assert files_with_private_names(tmp_path) == {"costs": {"a.py", "b.py"}}


def test_numpy_callers_never_load_torch():
    loaded = python("""
import sys
import numpy as np
import querykey as qk
x = np.ones((1, 2, 3, 4))
qk.attend(x, x, x, mask=qk.Causal() & qk.Padding(np.ones((1, 3), bool)))
qk.extend(x, x, x, qk.empty_state(qk.Kernel(qk.Quadratic()), kv_heads=2, key_dim=4, value_dim=4))
print(qk.explain(x, x, x), "torch" in sys.modules)
""")
    assert loaded.strip().endswith("False")


def cpu_seconds(command: list[str]) -> float:
    """Processor time of the quickest of five runs: what a busy machine cannot stretch."""
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(spent)


def test_importing_is_quick_and_loads_nothing_heavy():
    heavy = ("torch", "sympy", "triton", "transformers", "matplotlib")
    code = f"import querykey, sys; print([name for name in {heavy} if name in sys.modules])"
    assert python(code).strip() == "[]"
    bare, ours = (cpu_seconds([sys.executable, "-c", code]) for code in ("", "import querykey"))
    assert ours - bare < 0.15


def test_help_is_quick():
    assert cpu_seconds([QK, "--help"]) < 0.3


# One call per public name, so that a name which a room has overwritten shows itself.
Q = "np.eye(3)"
CALLS = {
    "ALiBi": "f(2).fits(2)",
    "Argmax": "f() == f()",
    "Blocks": "f(2).visible(2, 3)",
    "Buckets": "f(np.ones((8, 2))).fits(2)",
    "Causal": "f().visible(2, 1)",
    "Dense": f"f({Q} > 0).matrix(3, 3).sum() == 3",
    "Dilated": "f(2, 2).visible(2, 0)",
    "Documents": "f(np.array([1, 1, 2])).matrix(3, 3).sum() == 5",
    "EluPlusOne": "f().width(5) == 5",
    "FULL": "f.visible(0, 1)",
    "Global": "f(1).visible(0, 7)",
    "Kernel": "f(qk.Quadratic()).scale == 1",
    "Padding": "f(np.array([1, 0])).matrix(1, 2).sum() == 1",
    "Polynomial": "f(2).width(2) == 6",
    "Prefix": "f(2).visible(9, 1)",
    "Quadratic": "f().width(2) == 6",
    "RandomFeatures": "f(4).width(2) == 4",
    "QuerykeyError": "issubclass(f, ValueError)",
    "ShapeError": "str(f('axis `a` is wrong', {})) == 'axis `a` is wrong'",
    "Similarity": "f(len).function is len",
    "Softmax": "f().scale is None",
    "Strided": "f(2).visible(1, 4)",
    "Taylor": "f(2).width(2) == 6",
    "Window": "f(2).visible(1, 2)",
    "attend": f"f({Q}, {Q}, {Q}).shape == (3, 3)",
    "empty_state": "f(qk.Softmax(), kv_heads=1, key_dim=3, value_dim=3).nbytes == 0",
    "explain": f"f({Q}, {Q}, {Q}).backend == 'reference'",
    "extend": (
        "f(*[np.ones((1, 1, 2, 3))] * 3, "
        "qk.empty_state(qk.Softmax(), kv_heads=1, key_dim=3, value_dim=3))[0].shape == (1, 1, 2, 3)"
    ),
    "Report": "f('a', 'decoder', []).violations == []",
    "Subject": "f(print).causal is None",
    "check": "f(__import__('torch').nn.Linear(3, 2), laws=['purity']).violations == []",
    "check_all": "f([]) == []",
    "generate": (
        "f(qk.models.build(qk.models.preset('gpt')), __import__('torch').tensor([[1, 2]]), "
        "max_new_tokens=3).shape == (1, 5)"
    ),
    "probe": "f.__module__ == 'querykey.models.probe'",
    "weights": f"f({Q}, {Q}).shape == (3, 3)",
    "CostError": "str(f('no')) == 'no'",
    "array": "str(f('n', 4)) == 'array(n, 4)'",
    "cost": "f(__import__('torch').nn.Linear(3, 2), qk.array('n', 3)).params == 8",
    "images": "str(f('n', 3, 8, 8)) == 'images(n, 3, 8, 8)'",
    "tokens": "str(f('n', 't')) == 'tokens(n, t)'",
}


def test_no_room_overwrites_a_public_name():
    assert set(CALLS) == set(querykey._HOME)
    assert not set(querykey._HOME) & set(querykey._ROOMS)
    python(f"""
import importlib, pkgutil
import numpy, querykey
for found in pkgutil.walk_packages(querykey.__path__, "querykey."):
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        assert error.name == "triton", error  # which only Linux has
for _ in range(2):
    for name, call in {CALLS!r}.items():
        assert eval(call, {{"f": getattr(querykey, name), "qk": querykey, "np": numpy}}), name
""")


def test_a_wrong_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module `querykey` has no attribute `atend`"):
        _ = querykey.atend


def snapshot(name: str, now: str) -> str:
    """The stored text; written anew when asked, so that a change is a reviewed line."""
    file = SNAPSHOTS / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(now)
    return file.read_text()


def test_public_names_are_as_recorded():
    now = "".join(f"{name}\n" for name in dir(querykey))
    assert now == snapshot("public_names.txt", now)


def test_command_line_options_are_as_recorded():
    from querykey.cli import app

    lines = []
    for verb in sorted(name for name in app if not name.startswith("-")):
        arguments = app[verb].assemble_argument_collection(default_parameter=app.default_parameter)
        words = sorted(name for argument in arguments for name in argument.names)
        lines.append(" ".join(["qk", verb, *words]) + "\n")
    now = "".join(lines)
    assert now == snapshot("command_line.txt", now)
