"""Print the tree of the project, each line with the first sentence that its own files say.

python tools/tree.py           # the rooms that are folders, as README.md shows them
python tools/tree.py --floors  # every room, and the folders inside, as CONTRIBUTING.md shows them
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "querykey"
ROOMS = (
    "__init__", "errors", "words", "shapes", "show", "ag", "attention", "backends", "nn",
    "models", "targets", "costs", "laws", "train", "lab", "cli", "pytest_plugin",
)  # fmt: skip
AROUND = {
    "tests/": "tests/<room>/test_<subject>.py; oracle.py: loops over Python floats that import "
    "nothing of ours; house/: the rules of this tree.",
    "benchmarks/": "Timings against peers, answers compared first; the last line is JSON.",
    "docs/": "Pages for users; their code is run by the tests. dev/: what was measured, and how.",
    "examples/": "One idea per file, each run by the tests.",
    "tools/": "For work on the project: this tree, the reference page, the files of a call.",
}


def sentence(file: Path) -> str:
    """The first sentence of a file's docstring."""
    text = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0]
    first = re.split(r"(?<=\.) (?=[A-Z])", " ".join(text.split()))[0]
    return first.rstrip(".:") + "."


def file_of(folder: Path, name: str) -> Path | None:
    """The file that speaks for a room: of a package its `__init__`."""
    files = (folder / f"{name}.py", folder / name / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def rows(floors: bool) -> Iterator[tuple[str, str]]:
    """Every line as a name, indented, and its sentence."""
    yield "src/querykey/", ""
    for room in ROOMS:
        file = file_of(SOURCE, room)
        if file is None:
            continue
        package = file.name == "__init__.py" and room != "__init__"
        if not (package or floors):
            continue
        yield f"  {room}/" if package else f"  {room}.py", sentence(file)
        if floors and package:
            for floor in sorted(file.parent.rglob("*/__init__.py")):
                depth = len(floor.relative_to(file.parent).parts)
                yield f"{'  ' * depth}{floor.parent.name}/", sentence(floor)
    yield from AROUND.items()


def tree(floors: bool = False) -> str:
    """The whole tree as text."""
    lines = list(rows(floors))
    width = max(len(name) for name, _ in lines) + 2
    return "".join(f"{name:<{width}}{words}".rstrip() + "\n" for name, words in lines)


if __name__ == "__main__":
    print(tree("--floors" in sys.argv[1:]), end="")
