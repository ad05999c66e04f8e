"""The public names of querykey, an attention workbench, each loaded on first use.

`import querykey as qk` is the usual import; by itself it loads neither torch nor sympy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querykey.attention import FULL as FULL
    from querykey.attention import ALiBi as ALiBi
    from querykey.attention import Argmax as Argmax
    from querykey.attention import Blocks as Blocks
    from querykey.attention import Buckets as Buckets
    from querykey.attention import Causal as Causal
    from querykey.attention import Dense as Dense
    from querykey.attention import Dilated as Dilated
    from querykey.attention import Documents as Documents
    from querykey.attention import EluPlusOne as EluPlusOne
    from querykey.attention import Global as Global
    from querykey.attention import Kernel as Kernel
    from querykey.attention import Padding as Padding
    from querykey.attention import Polynomial as Polynomial
    from querykey.attention import Prefix as Prefix
    from querykey.attention import Quadratic as Quadratic
    from querykey.attention import RandomFeatures as RandomFeatures
    from querykey.attention import Similarity as Similarity
    from querykey.attention import Softmax as Softmax
    from querykey.attention import Strided as Strided
    from querykey.attention import Taylor as Taylor
    from querykey.attention import Window as Window
    from querykey.attention import empty_state as empty_state
    from querykey.attention import weights as weights
    from querykey.backends import attend as attend
    from querykey.backends import explain as explain
    from querykey.backends import extend as extend
    from querykey.costs import CostError as CostError
    from querykey.costs import array as array
    from querykey.costs import cost as cost
    from querykey.costs import images as images
    from querykey.costs import tokens as tokens
    from querykey.errors import QuerykeyError as QuerykeyError
    from querykey.laws import Report as Report
    from querykey.laws import Subject as Subject
    from querykey.laws import check as check
    from querykey.laws import check_all as check_all
    from querykey.laws import check_training as check_training
    from querykey.models import generate as generate
    from querykey.models import probe as probe
    from querykey.shapes import ShapeError as ShapeError

# Public names by where they live. None is also a room's: importing the room would overwrite it.
_NAMES = {
    "attention": (
        "EluPlusOne Polynomial Quadratic RandomFeatures Taylor "
        "FULL Blocks Causal Dense Dilated Documents Global Padding Prefix Strided Window "
        "Argmax Kernel Similarity Softmax ALiBi Buckets weights empty_state"
    ),
    "backends": "attend explain extend",
    "costs": "CostError array cost images tokens",
    "errors": "QuerykeyError",
    "laws": "Report Subject check check_all check_training",
    "models": "generate probe",
    "shapes": "ShapeError",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
_ROOMS = (
    "errors",
    "words",
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
    "train",
    "lab",
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
