"""One class name per thing, so that a name in a message or a traceback says which is meant."""

import ast
from collections import defaultdict
from pathlib import Path

from tests.house.source import SOURCE, plant, trees

# Names that two rooms share on purpose: `ag.nn` is the same layer over NumPy, and `chunked` has
# the torch implementation of a feature map.
MIRRORS = {
    "Embedding": {"ag", "models"},
    "MLP": {"ag", "nn"},
    "MultiHeadAttention": {"ag", "nn"},
    "EluPlusOne": {"attention", "backends"},
    "RandomFeatures": {"attention", "backends"},
}


def repeated(source: Path) -> dict[str, list[str]]:
    """Every class name that occurs more than once, with the rooms of its places."""
    rooms = defaultdict(list)
    for file, tree in trees(source).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                rooms[node.name].append(file.parts[0])
    return {name: sorted(places) for name, places in rooms.items() if len(places) > 1}


def test_no_class_name_stands_for_two_things():
    mirrors = {name: sorted(rooms) for name, rooms in MIRRORS.items()}
    assert repeated(SOURCE) == mirrors


def test_the_test_of_class_names_can_fail(tmp_path):
    inner = "def f():\n    class Report: ..."
    plant(tmp_path, {"costs/a.py": "class Report: ...\nclass Other: ...", "laws/b.py": inner})
    assert repeated(tmp_path) == {"Report": ["costs", "laws"]}
