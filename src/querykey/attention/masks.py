"""Who may look at whom: rules over positions that compose with `&`, `|` and `~`.

    mask = Causal() & Window(4) & Padding(real)
    mask.visible(5, 3)                        # one pair, or whole arrays of positions
    mask.matrix(queries=2, keys=6, start=4)   # the booleans, for those who want to look

A mask is a rule, not a matrix; True means that the key MAY be seen. Equality is structural, except
that arrays are compared by identity: `FULL & m == m`, and every mask can be a dictionary's key.
"""

# ruff: noqa: D102 - the sentence of each class is what its `visible` says

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import and_
from typing import Any

import numpy as np

from querykey.attention.algebra import FULL, NOTHING, And, At, Full, Mask, Not, Or, split
from querykey.attention.arrays import (
    Array,
    is_array,
    is_boolean,
    is_dense,
    is_integer,
    is_readable,
    kind_of,
    moved,
)
from querykey.errors import QuerykeyError, WrongTypeError
from querykey.words import whole

__all__ = [
    "FULL",
    "NOTHING",
    "And",
    "ArrayMask",
    "At",
    "Blocks",
    "Causal",
    "Dense",
    "Dilated",
    "Documents",
    "Full",
    "Global",
    "Mask",
    "Not",
    "Or",
    "Padding",
    "Prefix",
    "Strided",
    "Window",
    "real_keys",
    "split",
]


@dataclass(frozen=True)
class Causal(Mask):
    """A query sees its own position and what came before."""

    relative = True
    settles = 0

    def visible(self, query, key):
        return key <= query


@dataclass(frozen=True)
class Window(Mask):
    """A query sees keys fewer than `size` steps away; `Causal() & Window(4)` sees exactly 4."""

    size: int
    relative = True

    def __post_init__(self):
        whole("a window counts keys, the query's own included, so it", self.size)
        self._know(reach=self.size - 1)

    def visible(self, query, key):
        return abs(query - key) < self.size


@dataclass(frozen=True)
class Dilated(Mask):
    """A query sees keys 0, step, 2 step, ... away: `size` of them each way, its own included."""

    size: int
    step: int
    relative = True

    def __post_init__(self):
        whole("a dilated window counts keys, the query's own included, so it", self.size)
        whole("a step", self.step)
        whole("the keys that a dilated window spans", self.size * self.step)
        self._know(reach=(self.size - 1) * self.step)

    def visible(self, query, key):
        distance = abs(query - key)
        return (distance % self.step == 0) & (distance < self.size * self.step)


@dataclass(frozen=True)
class Strided(Mask):
    """Every query sees the keys at multiples of `step`."""

    step: int
    uses_positions = False

    def __post_init__(self):
        whole("a step", self.step)

    def visible(self, query, key):
        return key % self.step == 0


@dataclass(frozen=True)
class Global(Mask):
    """The first `count` positions see all and are seen by all."""

    count: int

    def __post_init__(self):
        whole("the number of global positions", self.count)

    def visible(self, query, key):
        return (query < self.count) | (key < self.count)


@dataclass(frozen=True)
class Blocks(Mask):
    """A query sees the keys of its own block of `size` positions."""

    size: int

    def __post_init__(self):
        whole("the size of a block", self.size)

    def visible(self, query, key):
        return query // self.size == key // self.size


@dataclass(frozen=True)
class Prefix(Mask):
    """Every query sees the first `count` keys; `Causal() | Prefix(n)` makes a prefix decoder."""

    count: int
    uses_positions = False

    def __post_init__(self):
        whole("the length of a prefix", self.count)
        self._know(settles=self.count)

    def visible(self, query, key):
        return key < self.count


def _as_array(name: str, values: Any) -> np.ndarray:
    """Return lists of numbers as an array, or say which rule got what is none."""
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise WrongTypeError(
            f"{name} wants an array; got {type(values).__name__} ({error})"
        ) from None


@dataclass(frozen=True, eq=False, repr=False)
class ArrayMask(Mask):
    """A rule that looks itself up in an array, and equals only a rule with the very same array."""

    uses_positions = False

    def __post_init__(self):
        name = fields(self)[0].name
        if not is_array(self.array):
            object.__setattr__(self, name, _as_array(type(self).__name__, self.array))
        if not is_dense(self.array):
            raise WrongTypeError(
                f"{type(self).__name__} wants a dense array; got a {kind_of(self.array)}"
            )
        self._check()
        batch = tuple(self.array.shape[:-1])
        self._know(outer=(*batch, 1) if batch else ())

    def _check(self) -> None:
        if not (is_boolean(self.array) or is_integer(self.array)):
            raise WrongTypeError(
                f"{type(self).__name__} wants booleans, or 0 and 1, where True means visible; "
                f"got {self.array.dtype} of shape {tuple(self.array.shape)}"
            )
        # Booleans are never looked at, so that they neither wait for a device nor break a trace.
        if is_boolean(self.array) or not is_readable(self.array):
            return
        other = (self.array != 0) & (self.array != 1)
        if bool(other.any()):
            raise QuerykeyError(
                f"{type(self).__name__} wants booleans, or 0 and 1, where True means visible; got "
                f"{int(self.array[other][0])} in {self.array.dtype} of shape "
                f"{tuple(self.array.shape)}"
            )

    @property
    def array(self) -> Array:
        """The one array, whatever the rule calls it."""
        return getattr(self, fields(self)[0].name)

    def on(self, like: Array) -> Mask:
        array = moved(self.array, like)
        return self if array is self.array else replace(self, **{fields(self)[0].name: array})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.array is other.array

    def __hash__(self) -> int:
        return hash((type(self), id(self.array)))

    def __repr__(self) -> str:
        dtype = str(self.array.dtype).removeprefix("torch.")
        return f"{type(self).__name__}({dtype} array {tuple(self.array.shape)})"


@dataclass(frozen=True, eq=False, repr=False)
class Padding(ArrayMask):
    """Every query sees the real keys: `real` is (*batch, S), True or 1 for real tokens."""

    real: Any

    def visible_at(self, query, key, at):
        return _truth(self.real[(*at.batch, key)])


@dataclass(frozen=True, eq=False, repr=False)
class Documents(ArrayMask):
    """A query sees keys with its own id: `ids` is (*batch, S), the query's being ids[start + i]."""

    ids: Any
    uses_positions = True
    bounded = True

    def _check(self) -> None:
        if not (is_integer(self.ids) or is_boolean(self.ids)):
            raise WrongTypeError(
                f"Documents wants whole numbers for ids; "
                f"got {self.ids.dtype} of shape {tuple(self.ids.shape)}"
            )

    def check_range(self, first: int, last: int) -> None:
        """Raise where there is no id for the first or the last query."""
        if first < 0:
            raise QuerykeyError(f"{self} has no id for the first query, at position {first}")
        if last >= self.ids.shape[-1]:
            raise QuerykeyError(f"{self} has no id for the last query, at position {last}")

    def visible_at(self, query, key, at):
        return self.ids[(*at.batch, query)] == self.ids[(*at.batch, key)]


@dataclass(frozen=True, eq=False, repr=False)
class Dense(ArrayMask):
    """A query sees a key where the array says so: (T, S), or (*batch, heads, T, S) as q has it.

    Sizes of 1 before the last two axes are repeated. Row i is the i-th query of the call, wherever
    it stands: `start` changes nothing.
    """

    given: Any

    def __post_init__(self):
        super().__post_init__()
        self._know(outer=tuple(self.given.shape[:-2]))

    def visible_at(self, query, key, at):
        row = query if at.row is None else at.row
        sizes = self.outer
        spots = (*at.batch, at.head)[len(at.batch) + 1 - len(sizes) :] if sizes else ()
        outer = (spot if size != 1 else 0 for spot, size in zip(spots, sizes, strict=True))
        return _truth(self.given[(*outer, row, key)])


def real_keys(mask: Mask, like: Array = None) -> Array | None:
    """Return (*batch, S) booleans, False for keys that padding hides from every query.

    None where no `Padding` must hold. No matrix is made: backends use it to keep what stands in
    padding, NaN included, out of their sums.
    """
    tables = [_truth(moved(part.real, like)) for part in split(mask) if isinstance(part, Padding)]
    return reduce(and_, tables) if tables else None


def _truth(array: Array) -> Array:
    return array != 0  # for booleans too, so that no dtype is asked inside a traced rule
