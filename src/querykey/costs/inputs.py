"""The inputs of a model, as shapes with named sizes; and the errors of this room."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from querykey.errors import QuerykeyError
from querykey.words import whole

if TYPE_CHECKING:
    import torch


class CostError(QuerykeyError):
    """Says in one sentence why there is no formula, and what to do."""


class OutsideError(CostError):
    """Says for which sizes a formula does not hold; `fact` leaves out what to do."""

    def __init__(self, fact: str):
        super().__init__(f"{fact}; ask for another with near={{...}}")
        self.fact = fact


class NoBackwardError(CostError):
    """Says that there is no backward pass: no trainable weight reaches the output."""


def whole_size(name: str, size: Any, least: int = 1) -> int:
    """Return a size as an int, or raise a CostError that names it."""
    try:
        return whole(name, size, least)
    except (TypeError, ValueError):
        raise CostError(f"`{name}` is a whole number of at least {least}, not {size!r}") from None


@dataclass(frozen=True)
class Named:
    """One input tensor, whose axes are names (sizes that stay free) or fixed sizes."""

    kind: str  # tokens, array or images
    axes: tuple[str | int, ...]
    dtype: torch.dtype | None = None  # None: integers for tokens, else the model's own
    grad: bool = False  # whether the backward pass computes its gradient
    low: int = 0  # token ids are drawn from low to high - 1, where values are needed
    high: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "axes", tuple(map(_axis, self.axes)))

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(str(axis) for axis in self.axes)})"

    def shape(self, sizes: dict[str, Any]) -> list[Any]:
        """Return the shape with every name replaced by its size."""
        return [axis if isinstance(axis, int) else sizes[axis] for axis in self.axes]


def _axis(axis: Any) -> str | int:
    """Return a name as it is and a size as an int, or raise the error that says what an axis is."""
    if isinstance(axis, str):
        if axis.isidentifier():
            return axis
        raise CostError(f"an axis is a name or a size, not `{axis}`")
    try:
        return whole("an axis", axis)
    except QuerykeyError:
        raise CostError(f"an axis is a name or a size of at least 1, not {axis!r}") from None


def tokens(*axes: str | int, high: int | None = None) -> Named:
    """Return an input of token ids, such as `tokens("batch", "seq")`."""
    return Named("tokens", axes, high=high)


def array(*axes: str | int, dtype: torch.dtype | None = None, grad: bool = False) -> Named:
    """Return an input of floats, such as `array("n", "C", "d")`; `grad` asks for its gradient."""
    return Named("array", axes, dtype, grad)


def images(*axes: str | int, dtype: torch.dtype | None = None, grad: bool = False) -> Named:
    """Return an input of images, such as `images("batch", 3, 224, 224)`, channels second."""
    if len(axes) != 4:
        raise CostError(f"images have 4 axes (batch, channels, height, width), not {len(axes)}")
    return Named("images", axes, dtype, grad)


def parse(words: str) -> tuple[str | None, Named]:
    """Return the name and the input that a text such as `ids=tokens(batch,seq)` stands for."""
    match = re.fullmatch(r"\s*(?:(\w+)\s*=\s*)?(\w+)\s*\(([^()]*)\)\s*", words)
    if not match or match[2] not in KINDS:
        raise CostError(
            f"`{words}` is no input; write NAME=KIND(AXIS, ...) with KIND one of "
            f"{', '.join(KINDS)}, as in ids=tokens(batch,seq)"
        )
    axes = [axis.strip() for axis in match[3].split(",") if axis.strip()]
    return match[1], KINDS[match[2]](*(int(a) if a.isdecimal() else a for a in axes))


KINDS = {"tokens": tokens, "array": array, "images": images}


@dataclass(frozen=True)
class Inputs:
    """The arguments of a model's forward: Named shapes, tensors, and plain values."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @staticmethod
    def of(values: Any) -> Inputs:
        """Return the arguments that one value, a tuple of them, or a dict by name stands for."""
        if isinstance(values, Mapping):
            return Inputs((), dict(values))
        return Inputs(tuple(values) if isinstance(values, tuple | list) else (values,), {})

    def names(self) -> list[str]:
        """Return the names of the free sizes, in order of appearance."""
        named = (leaf for leaf in leaves((self.args, self.kwargs)) if isinstance(leaf, Named))
        axes = (axis for leaf in named for axis in leaf.axes)
        return list(dict.fromkeys(axis for axis in axes if isinstance(axis, str)))

    def map(self, make: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with `make` applied to every Named shape and every tensor."""
        return _map((self.args, self.kwargs), make)

    def at_one(self, names: Collection[str]) -> Any:
        """Return the values that stand for the same arguments with some sizes fixed at 1."""

        def fixed(leaf: Any) -> Any:
            if not isinstance(leaf, Named):
                return leaf
            return replace(leaf, axes=tuple(1 if axis in names else axis for axis in leaf.axes))

        args, kwargs = self.map(fixed)
        return kwargs or args

    def limited(self, high: int | None) -> Inputs:
        """Return the same arguments, with token ids below `high` unless the user set a limit."""

        def limit(leaf: Any) -> Any:
            if isinstance(leaf, Named) and leaf.kind == "tokens" and leaf.high is None:
                return replace(leaf, high=high)
            return leaf

        args, kwargs = self.map(limit)
        return Inputs(args, kwargs)


def leaves(value: Any) -> Iterator[Any]:
    """Yield every value within nested dicts, tuples and lists, in order."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for element in value:
            yield from leaves(element)
    else:
        yield value


def _map(value: Any, make: Any) -> Any:
    if isinstance(value, dict):
        return {name: _map(element, make) for name, element in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_map(element, make) for element in value)
    if isinstance(value, Named) or hasattr(value, "untyped_storage"):
        return make(value)
    return value
