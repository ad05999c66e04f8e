"""querykey: an attention workbench. The usual import is `import querykey as qk`.

Public names are loaded on first use: importing the package loads neither torch nor sympy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querykey.costs import CostError as CostError
    from querykey.costs import array as array
    from querykey.costs import cost as cost
    from querykey.costs import images as images
    from querykey.costs import tokens as tokens
    from querykey.shapes import ShapeError as ShapeError

# Where each public name lives. None is also a room's name: importing the room would overwrite it.
_HOME = {
    "CostError": "costs",
    "ShapeError": "shapes",
    "array": "costs",
    "cost": "costs",
    "images": "costs",
    "tokens": "costs",
}
_ROOMS = ("shapes", "show", "targets", "costs", "cli")


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"querykey.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return import_module(f"querykey.{name}")
    raise AttributeError(f"module `querykey` has no attribute `{name}`")


def __dir__() -> list[str]:
    return sorted([*_HOME, *_ROOMS])
