"""What goes into a model, as shapes with named sizes."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from querykey.errors import QuerykeyError

if TYPE_CHECKING:
    import torch


class CostError(QuerykeyError):
    """One sentence: why no formula can be given, and what to do."""


class OutsideError(CostError):
    """Sizes for which a formula does not hold, and what to do; `fact` is the first part alone."""

    def __init__(self, fact: str):
        super().__init__(f"{fact}; ask for another with near={{...}}")
        self.fact = fact


class NoBackwardError(CostError):
    """Nothing that can be trained reaches the output, so that there is no backward pass."""


def whole(name: str, size: Any, least: int = 1) -> int:
    """A size as an int, whatever kind of whole number it is."""
    try:
        found = None if isinstance(size, bool) else operator.index(size)
    except TypeError:
        found = None
    if found is None or found < least:
        raise CostError(f"`{name}` is a whole number of at least {least}, not {size!r}")
    return found


@dataclass(frozen=True)
class Named:
    """One tensor that goes in. An axis is a name (a size that stays free) or a fixed size."""

    kind: str  # tokens, array or images
    axes: tuple[str | int, ...]
    dtype: torch.dtype | None = None  # None: whole numbers for tokens, else the model's own
    grad: bool = False  # whether the backward pass goes on into it
    low: int = 0  # of tokens: ids are drawn from low to high - 1, where values are needed at all
    high: int | None = None

    def __post_init__(self):
        for axis in self.axes:
            if isinstance(axis, str) and not axis.isidentifier():
                raise CostError(f"an axis is a name or a size, not `{axis}`")
            if not isinstance(axis, str | int) or (isinstance(axis, int) and axis < 1):
                raise CostError(f"an axis is a name or a size of at least 1, not {axis!r}")

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(str(axis) for axis in self.axes)})"

    def shape(self, sizes: dict[str, Any]) -> list[Any]:
        """The shape with every name replaced."""
        return [axis if isinstance(axis, int) else sizes[axis] for axis in self.axes]


def tokens(*axes: str | int, high: int | None = None) -> Named:
    """Token ids, such as `tokens("batch", "seq")`."""
    return Named("tokens", axes, high=high)


def array(*axes: str | int, dtype: torch.dtype | None = None, grad: bool = False) -> Named:
    """Floats, such as `array("n", "C", "d")`; with `grad` the backward pass reaches it."""
    return Named("array", axes, dtype, grad)


def images(*axes: str | int, dtype: torch.dtype | None = None, grad: bool = False) -> Named:
    """Floats as (batch, channels, height, width), such as `images("batch", 3, 224, 224)`."""
    if len(axes) != 4:
        raise CostError(f"images have 4 axes (batch, channels, height, width), not {len(axes)}")
    return Named("images", axes, dtype, grad)


def parse(words: str) -> tuple[str | None, Named]:
    """Read `ids=tokens(batch,seq)` or `array(n, 64)` as the command line gives it."""
    found = re.fullmatch(r"\s*(?:(\w+)\s*=\s*)?(\w+)\s*\(([^()]*)\)\s*", words)
    if not found or found[2] not in KINDS:
        raise CostError(
            f"`{words}` is no input; write NAME=KIND(AXIS, ...) with KIND one of "
            f"{', '.join(KINDS)}, as in ids=tokens(batch,seq)"
        )
    axes = [axis.strip() for axis in found[3].split(",") if axis.strip()]
    return found[1], KINDS[found[2]](*(int(a) if a.isdecimal() else a for a in axes))


KINDS = {"tokens": tokens, "array": array, "images": images}


@dataclass(frozen=True)
class Inputs:
    """The arguments of a model's forward: each a Named shape, a tensor, or a plain value."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @staticmethod
    def of(given: Any) -> Inputs:
        """From one value, a tuple of them, or a dict by name."""
        if isinstance(given, Mapping):
            return Inputs((), dict(given))
        return Inputs(tuple(given) if isinstance(given, tuple | list) else (given,), {})

    def leaves(self) -> Iterator[Any]:
        """Every value, in order."""
        yield from _leaves((self.args, self.kwargs))

    def names(self) -> list[str]:
        """Free sizes, in order of appearance."""
        found = [a for each in self.leaves() if isinstance(each, Named) for a in each.axes]
        return list(dict.fromkeys(axis for axis in found if isinstance(axis, str)))

    def map(self, make: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with `make` applied to every Named shape and every tensor."""
        return _map((self.args, self.kwargs), make)

    def limited(self, high: int | None) -> Inputs:
        """The same, with token ids below `high` where nothing else was said."""

        def limit(each: Any) -> Any:
            if isinstance(each, Named) and each.kind == "tokens" and each.high is None:
                return replace(each, high=high)
            return each

        args, kwargs = self.map(limit)
        return Inputs(args, kwargs)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _map(value: Any, make: Any) -> Any:
    if isinstance(value, dict):
        return {name: _map(each, make) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_map(each, make) for each in value)
    if isinstance(value, Named) or hasattr(value, "untyped_storage"):
        return make(value)
    return value
