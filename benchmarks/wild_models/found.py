"""Where public code lies on this disk: one folder per package or repository, below $WILD.

A package `NAME` lies in `$WILD/pkgs/NAME` (`pip install --target`, alone, so that none fights
another), a repository `OWNER/NAME` in `$WILD/repos/OWNER+NAME`, at the commit in `pins.py`.
Nothing here downloads, builds or copies anything.
"""

import ast
import importlib
import importlib.abc
import importlib.machinery
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

WILD = Path(os.environ.get("WILD", "wild"))


def folder(source: str) -> Path:
    """Return where a package or a repository lies; a FileNotFoundError says what is missing."""
    place = WILD / ("repos" if "/" in source else "pkgs") / source.replace("/", "+")
    if not place.is_dir():
        raise FileNotFoundError(f"{source} is not in {place}")
    return place


def code(source: str, module: str, under: str = "", beside: str = "", without: str = "") -> Any:
    """Import a module of a package or repository, found below `under`.

    What a package says that it requires, and what `beside` names, is found too; `without` names
    modules that it imports and the model does not need: they stand in empty.
    """
    for place in _required(source, *beside.split()):
        sys.path.append(str(place))  # after the environment's own
    sys.path.insert(0, str(folder(source) / under))
    if without:
        sys.meta_path.insert(0, _Empty(without.split()))
    return importlib.import_module(module)


def definitions(source: str, path: str, without: str = "", **names: Any) -> Any:
    """Return what a script defines (imports, classes, functions), without running the rest of it.

    `names` are the constants that its classes read.
    """
    file = folder(source) / path
    text = file.read_text()
    if without:
        sys.meta_path.insert(0, _Empty(without.split()))
    wanted = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if isinstance(node, wanted)]
    script = types.ModuleType(file.stem)
    script.__file__ = str(file)
    vars(script).update(names)
    sys.modules[file.stem] = script
    exec(compile(tree, str(file), "exec"), vars(script))
    vars(script).update(names)
    return script


def _required(*sources: str) -> list[Path]:
    """Return the folders of what packages require, of what that requires, and so on."""
    known = {_plain(place.name): place for place in (WILD / "pkgs").glob("*") if place.is_dir()}
    found: dict[str, Path] = {}
    waiting = [_plain(source) for source in sources]
    while waiting:
        name = waiting.pop()
        if name in known and name not in found:
            found[name] = known[name]
            for file in known[name].glob("*.dist-info/METADATA"):
                lines = re.findall(
                    r"^Requires-Dist: ([\w.-]+)(.*)$", file.read_text(), re.MULTILINE
                )
                waiting += [_plain(one) for one, more in lines if "extra ==" not in more]
    return list(found.values())


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class _Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules that are not there: empty ones, whose attributes do nothing."""

    def __init__(self, names: list[str]):
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == one or name.startswith(one + ".") for one in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = _nothing  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


class _Named(type):
    """A class of which every attribute is its own name, like the members of an enumeration."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def _nothing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    members = {
        "__init__": lambda self, *args, **options: None,
        "__call__": lambda self, given=None, *args: given,  # as a decorator that changes nothing
    }
    return _Named(name, (), {**members, "__class_getitem__": classmethod(lambda cls, key: cls)})
