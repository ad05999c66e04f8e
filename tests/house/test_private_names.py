"""Private names of torch and Hugging Face stand in one file per room.

They change without notice, so that whoever mends them for a new version should find them together.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.house.source import SOURCE, imports, plant, room_of, trees

LIBRARIES = ("torch", "transformers", "huggingface_hub")
OPERATORS = "aten"  # its operators have registered names, some of which begin with an underscore
NAMED_TUPLES = {"_fields", "_replace", "_asdict", "_make"}
# Private attributes of their modules, tensors and configurations, on whatever object.
THEIRS = {
    "_version", "_cdata", "_parameters", "_buffers", "_modules", "_forward_hooks",
    "_forward_pre_hooks", "_backward_hooks", "_non_persistent_buffers_set", "_orig_mod",
    "_attn_implementation", "_tied_weights_keys", "_no_split_modules",
}  # fmt: skip


def private(name: str) -> bool:
    """Whether a name begins with one underscore; `_` itself is a name for what is not used."""
    return name.startswith("_") and not name.startswith("__") and name != "_"


def names_of_ours(tree: ast.Module) -> Iterator[str]:
    """Every private name that a file of ours binds: functions, classes, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            yield from (n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant))


def modules_of_others(tree: ast.Module) -> set[str]:
    """The names that a file binds to modules that are neither ours nor of the watched libraries."""
    return {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.split(".")[0] not in (*LIBRARIES, "querykey")
    }


def names_read(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every private attribute that is read or set, and every string that could name one."""
    skipped = modules_of_others(tree) | {OPERATORS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in skipped):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if private(text) and text.isidentifier():
                yield node.lineno, text


def private_names(source: Path) -> dict[str, dict[str, list[str]]]:
    """For each room and file, the private names of torch and Hugging Face in it.

    An underscored attribute is theirs if it is among THEIRS, or if no file of ours binds its name.
    """
    ours = {name for tree in trees(source).values() for name in names_of_ours(tree)} - THEIRS
    rooms: dict[str, dict[str, list[str]]] = {}

    def add(file: Path, line: int, name: str) -> None:
        names = rooms.setdefault(room_of(file), {}).setdefault(str(file), [])
        names.append(f"{line} {name}")

    for found in imports(source):
        if found.parts[0] in LIBRARIES:
            for name in filter(private, found.parts):
                add(found.file, found.line, name)
    for file, tree in trees(source).items():
        if room_of(file) == "ag":  # NumPy alone: an underscore there is its own
            continue
        for line, name in names_read(tree):
            if name not in ours | NAMED_TUPLES:
                add(file, line, name)
    return rooms


def test_private_names_stand_in_one_file_per_room():
    spread = {room: files for room, files in private_names(SOURCE).items() if len(files) > 1}
    assert spread == {}


@pytest.mark.parametrize(
    "code",
    [
        "from torch._subclasses import FakeTensorMode",
        "from torch.fx import _symbolic_trace",
        "import torch._dynamo",
        "import torch\ntorch._C._functorch",
        "import torch\ndef f():\n    torch.nn.modules.conv._ConvNd",
        "def changed(array, seen):\n    return array._version != seen",
        "class Ours:\n    _buffers = ()\ndef f(module):\n    return module._buffers",
        "def f(config):\n    config._attn_implementation = 'eager'",
        "def f(module):\n    return getattr(module, '_parameters')",
        "def f(node):\n    return node._sequence_nr()",
        "def f(module):\n    module._is_hf_initialized = True",
    ],
)
def test_the_test_of_private_names_can_fail(tmp_path, code):
    plant(tmp_path, {"costs/private.py": "import torch\ntorch._C", "costs/b.py": code})
    assert len(private_names(tmp_path)["costs"]) == 2


def test_names_of_ours_and_of_other_modules_are_not_meant(tmp_path):
    code = """
import os
from torch.ops import aten
class Ours:
    __slots__ = ("_data",)
    def __init__(self):
        self._count = 1
def f(ours, pair):
    os._exit(ours._count)
    return aten._softmax, pair._fields, torch.__version__, getattr(ours, "_data")
"""
    plant(tmp_path, {"costs/a.py": code})
    assert private_names(tmp_path) == {}
