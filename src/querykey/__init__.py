"""querykey: an attention workbench. The usual import is `import querykey as qk`.

Public names are loaded on first use: importing the package loads neither torch nor sympy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querykey.attention.features import EluPlusOne as EluPlusOne
    from querykey.attention.features import Polynomial as Polynomial
    from querykey.attention.features import Quadratic as Quadratic
    from querykey.attention.features import RandomFeatures as RandomFeatures
    from querykey.attention.features import Taylor as Taylor
    from querykey.attention.masks import FULL as FULL
    from querykey.attention.masks import Blocks as Blocks
    from querykey.attention.masks import Causal as Causal
    from querykey.attention.masks import Dense as Dense
    from querykey.attention.masks import Dilated as Dilated
    from querykey.attention.masks import Documents as Documents
    from querykey.attention.masks import Global as Global
    from querykey.attention.masks import Padding as Padding
    from querykey.attention.masks import Prefix as Prefix
    from querykey.attention.masks import Strided as Strided
    from querykey.attention.masks import Window as Window
    from querykey.attention.mechanisms import Argmax as Argmax
    from querykey.attention.mechanisms import Kernel as Kernel
    from querykey.attention.mechanisms import Similarity as Similarity
    from querykey.attention.mechanisms import Softmax as Softmax
    from querykey.attention.positions import ALiBi as ALiBi
    from querykey.attention.positions import Buckets as Buckets
    from querykey.attention.reference import weights as weights
    from querykey.attention.state import empty_state as empty_state
    from querykey.backends.dispatch import attend as attend
    from querykey.backends.dispatch import explain as explain
    from querykey.backends.dispatch import extend as extend
    from querykey.costs import CostError as CostError
    from querykey.costs import array as array
    from querykey.costs import cost as cost
    from querykey.costs import images as images
    from querykey.costs import tokens as tokens
    from querykey.laws import Report as Report
    from querykey.laws import Subject as Subject
    from querykey.laws import check as check
    from querykey.laws import check_all as check_all
    from querykey.models.decoding.generate import generate as generate
    from querykey.models.probe import probe as probe
    from querykey.shapes import ShapeError as ShapeError

# Public names by where they live. None is also a room's: importing the room would overwrite it.
_NAMES = {
    "attention.features": "EluPlusOne Polynomial Quadratic RandomFeatures Taylor",
    "attention.masks": (
        "FULL Blocks Causal Dense Dilated Documents Global Padding Prefix Strided Window"
    ),
    "attention.mechanisms": "Argmax Kernel Similarity Softmax",
    "attention.positions": "ALiBi Buckets",
    "attention.reference": "weights",
    "attention.state": "empty_state",
    "backends.dispatch": "attend explain extend",
    "costs": "CostError array cost images tokens",
    "laws": "Report Subject check check_all",
    "models.decoding.generate": "generate",
    "models.probe": "probe",
    "shapes": "ShapeError",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
_ROOMS = (
    "shapes",
    "show",
    "ag",
    "attention",
    "backends",
    "nn",
    "models",
    "targets",
    "costs",
    "laws",
    "cli",
)


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
