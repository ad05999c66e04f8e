"""Keeps `int(size * 0.25)` in the formulas: Python's own `int` makes a plain number of any size.

The functions that call `int` on a symbolic size are noted in a first pass. In later passes the name
`int` means, in their files alone, a type that leaves symbolic sizes symbolic.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, TypeVar, cast
from unittest.mock import patch

import torch

from querykey.costs.formulas.formula_set import RefusedError

T = TypeVar("T")
LARGE = 100  # of which a hundredth is a whole number still


class _LikeInt(type):
    """The type of a type that passes for `int`."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        value = args[0] if len(args) == 1 and not kwargs else None
        if isinstance(value, torch.SymInt):
            return value
        return math.trunc(value) if isinstance(value, torch.SymFloat) else int(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, int | torch.SymInt)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, int)

    def __eq__(cls, other: object) -> bool:
        return other is int or other is cls

    def __hash__(cls) -> int:
        return hash(int)

    def __getattr__(cls, name: str) -> Any:
        return getattr(int, name)


class SymbolicInt(metaclass=_LikeInt):
    """`int` for all values but symbolic sizes, which it truncates and leaves symbolic."""


class WholeNumbers:
    """The files of a model that call `int` on a symbolic size, each by its global names.

    `least` is the least number that stands for a size: a share of a small one may be 0 or 1.
    """

    def __init__(self) -> None:
        self.files: list[dict[str, Any]] = []
        self.kept = False  # whether `int` leaves sizes symbolic in these files
        self.least = 0
        self._given_up = False

    def kept_if_needed(self, derive: Callable[[], T]) -> T:
        """Return what `derive` derives, where possible with `int` leaving sizes symbolic."""
        try:
            found, refusal = derive(), None
        except RefusedError as error:
            found, refusal = None, error
        if self.files and not self.kept and not self._given_up:
            self.kept = True
            for self.least in (LARGE, 0):
                with suppress(RefusedError):
                    return derive()
            self.give_up()  # the model also needs what `int` itself is
        if refusal is not None:
            raise refusal
        return cast(T, found)

    def give_up(self) -> None:
        """Let `int` be Python's own from now on."""
        self.kept, self.least, self._given_up = False, 0, True

    def watched(self) -> AbstractContextManager[None]:
        """Return a context that notes who calls `int`, or leaves sizes symbolic there."""
        return self._keeping() if self.kept else self._noting()

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        with ExitStack() as stack:
            for names in self.files:
                stack.enter_context(patch.dict(names, {"int": SymbolicInt}))
            yield

    @contextmanager
    def _noting(self) -> Iterator[None]:
        with ExitStack() as stack:
            for size in (torch.SymInt, torch.SymFloat):
                stack.enter_context(patch.object(size, "__int__", self._noted(size.__int__)))
            yield

    def _noted(self, number: Callable[[Any], int]) -> Callable[[Any], int]:
        def noted(size: Any) -> int:
            names = sys._getframe(1).f_globals
            known = "int" in names or any(names is file for file in self.files)
            if not known and names.get("__name__", "").partition(".")[0] != "torch":
                self.files.append(names)
            return number(size)

        return noted
