"""What the tests of the house share: a fresh interpreter, and which file imports which."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "querykey"
MODULE = re.compile(r"querykey(\.\w+)+")


def python(code: str) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def plant(source: Path, files: dict[str, str]) -> None:
    """Write files below a folder that stands for src/querykey."""
    for name, code in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(code)


@dataclass(frozen=True)
class Import:
    """One name that a file imports: at its top, in a function, or under TYPE_CHECKING."""

    file: Path  # relative to the source, such as attention/masks.py
    line: int
    module: str  # querykey.attention.masks
    name: str | None  # Mask, or None for a plain `import module`

    @property
    def parts(self) -> list[str]:
        """The dotted path, with the imported name as its last part."""
        return [*self.module.split("."), *([self.name] if self.name else [])]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {'.'.join(self.parts)}"


def room_of(file: Path) -> str:
    """The room of a file given relative to the source: attention/masks.py is in attention."""
    return file.parts[0].removesuffix(".py")


@cache
def parse(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text())


def trees(source: Path) -> dict[Path, ast.Module]:
    """The syntax tree of every file, by its path relative to the source."""
    return {file.relative_to(source): parse(file) for file in sorted(source.rglob("*.py"))}


def _imports_of(file: Path, node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(file, node.lineno, alias.name, None) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = ["querykey", *file.parts[:-1]]
        base = package[: len(package) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        yield from (Import(file, node.lineno, module, alias.name) for alias in node.names)
    elif isinstance(node, ast.Constant) and MODULE.fullmatch(str(node.value)):
        yield Import(file, node.lineno, node.value, None)


def imports(source: Path) -> list[Import]:
    """Every import of every file under `source`: lazy ones, those under TYPE_CHECKING, and strings.

    A string that is the dotted name of a file of ours counts: it is there to be imported late.
    """
    return [
        found
        for file, tree in trees(source).items()
        for node in ast.walk(tree)
        for found in _imports_of(file, node)
        if not isinstance(node, ast.Constant) or file_of(source, found.parts)
    ]


def our_imports(source: Path) -> list[Import]:
    """Every import of something of querykey."""
    return [one for one in imports(source) if one.parts[0] == "querykey"]


def file_of(source: Path, module: list[str]) -> Path | None:
    """The file of a module of querykey, relative to the source, or None where there is none."""
    inner = Path(*module[1:])
    for file in (inner.with_suffix(".py") if module[1:] else None, inner / "__init__.py"):
        if file and (source / file).is_file():
            return file
    return None


def names_bound(tree: ast.Module, package: str) -> set[str]:
    """The names that a package's `__init__` binds, other than its own files as modules."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module != package:
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def names_offered(tree: ast.Module) -> list[str]:
    """What a file lists in `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def target(source: Path, found: Import) -> Path | None:
    """The file that an import asks for: of the module that is named, else of the one around it.

    Where a package offers a name that one of its files has too (`show.table`), the package is
    meant; and to other rooms also where it offers the file itself (`ag.nn`).
    """
    around = file_of(source, found.module.split("."))
    if found.name and around and around.name == "__init__.py" and around != found.file:
        tree = parse(source / around)
        offered = names_offered(tree) if room_of(found.file) != room_of(around) else []
        if found.name in names_bound(tree, found.module) or found.name in offered:
            return around
    return file_of(source, found.parts) or around


def import_graph(source: Path) -> dict[Path, set[Path]]:
    """For every file the files that it imports. A package's `__init__` counts where it is asked."""
    graph: dict[Path, set[Path]] = {file: set() for file in trees(source)}
    for found in our_imports(source):
        asked = target(source, found)
        if asked is not None:
            graph[found.file].add(asked)
    return graph


def cycles(graph: dict[Path, set[Path]]) -> list[list[str]]:
    """The groups of files that import each other in a circle: Tarjan's connected components."""
    number: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack: list[Path] = []
    groups: list[list[str]] = []

    def visit(file: Path) -> None:
        number[file] = low[file] = len(number)
        stack.append(file)
        for after in sorted(graph[file]):
            if after not in number:
                visit(after)
                low[file] = min(low[file], low[after])
            elif after in stack:
                low[file] = min(low[file], number[after])
        if low[file] == number[file]:
            start = stack.index(file)
            group = [str(member) for member in stack[start:]]
            del stack[start:]
            if len(group) > 1 or file in graph[file]:
                groups.append(sorted(group))

    for file in sorted(graph):
        if file not in number:
            visit(file)
    return sorted(groups)
