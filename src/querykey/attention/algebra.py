"""The algebra of masks: what a rule can be asked, and how rules combine with `&`, `|` and `~`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any, ClassVar

import numpy as np

from querykey.attention.arrays import (
    Array,
    host_values,
    index_library,
    is_array,
    is_integer,
    library,
    moved,
)
from querykey.errors import QuerykeyError, WrongTypeError
from querykey.words import LARGEST, whole


@dataclass(frozen=True)
class At:
    """Where in a call a pair stands: what rules that hold arrays need beyond the two positions."""

    batch: tuple[Any, ...] = ()  # one index per batch axis
    head: Any = None
    row: Any = None  # the query's row in this call; its position is start + row


class Mask:
    """A rule that says which keys a query may see. A new rule needs `visible` and nothing else."""

    # Does it ask where the query stands? Then attend needs `start` when T and S differ.
    uses_positions: bool = True
    # Does it depend on the distance between query and key alone?
    relative: bool = False
    # No key further back than this is ever visible.
    reach: float = math.inf
    # Once so many tokens are there, no new key is visible to an earlier query: 0 for causal rules.
    settles: float = math.inf
    bounded: bool = False  # whether it knows of some positions only, as `check_range` tells
    # The sizes of the axes (*batch, heads) of the rule's own array; () without an array.
    outer: tuple[int, ...] = ()

    def visible(self, query: Any, key: Any) -> Any:
        """Say, for integer positions that broadcast, whether the key may be seen."""
        return self.visible_at(query, key, At())

    def visible_at(self, query: Any, key: Any, at: At) -> Any:
        """Say the same at a place in the batch, where rules that hold arrays look themselves up."""
        return self.visible(query, key)

    @property
    def leaves(self) -> tuple[Mask, ...]:
        """The rules that this one is made of."""
        return (self,)

    def on(self, like: Array) -> Mask:
        """Return the rule with its arrays in the library and on the device of `like`."""
        return self

    def check_places(self, queries: int, start: Any) -> None:
        """Raise where the rule knows nothing of some query; a start on a device is not asked."""
        for leaf in self.leaves if queries else ():
            if leaf.bounded:
                leaf.check_range(*position_range(queries, start))

    def check_range(self, first: int, last: int) -> None:
        """Raise where the rule knows nothing of a query at positions first to last."""

    def matrix(self, queries: int, keys: int, start: Any = 0, like: Array = None) -> Array:
        """Write the rule out as booleans (queries, keys), in NumPy or in the library of `like`.

        With arrays in the rule, or a `start` per row, the axes (*batch, heads) come first, of size
        1 where nothing depends on them: the result broadcasts against the scores.
        """
        for name, size in (("queries", queries), ("keys", keys)):
            whole(name, size, least=0)
        if queries * keys > MOST_PAIRS:
            raise QuerykeyError(
                f"{queries} x {keys} booleans take too much memory; ask for a part, by `start`"
            )
        check_start(start)
        if not (like is None or is_array(like)):
            raise WrongTypeError(f"`like` is an array; got {like!r}")
        self.check_places(queries, start)
        xp, device = index_library(like)
        outer = _outer_axes(self, start)
        batch, heads = outer[:-1], outer[-1] if outer else 1
        query, key, at = places(xp, device, batch, heads, queries, keys, start)
        seen = self.on(like).visible_at(query, key, at)
        seen = xp.broadcast_to(seen, (*batch, heads, queries, keys))
        return seen if outer else seen[0, ...]

    def __and__(self, other: Mask) -> Mask:
        return _combine(And, self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return _combine(Or, self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> Mask:
        return Not(self)

    def __bool__(self) -> bool:
        raise WrongTypeError(
            f"a mask has no truth value, so `and`, `or` and `not` would drop a rule: "
            f"combine {self} with `&`, `|` and `~`"
        )

    def _know(self, **facts: Any) -> None:
        """Note what follows from the fields of a frozen rule, once."""
        for name, fact in facts.items():
            object.__setattr__(self, name, fact)


def check_start(start: Any) -> None:
    """Raise the error for what is no position: neither an int nor an array of whole numbers."""
    if is_array(start) and is_integer(start):
        return
    if isinstance(start, bool | float) or not hasattr(start, "__index__") or is_array(start):
        raise WrongTypeError(f"start wants an int, or an int array (*batch,); got {start!r}")
    if abs(int(start)) > LARGEST:
        raise QuerykeyError(f"start is a position, so it is at most 2^62; got {start}")


def places(
    xp: Any, device: Any, batch: tuple[int, ...], heads: int, queries: int, keys: int, start: Any
) -> tuple[Array, Array, At]:
    """Return query positions, key positions and places that broadcast to (*batch, heads, T, S)."""
    rank = len(batch) + 3

    def along(axis: int, size: int) -> Array:
        return xp.reshape(
            xp.arange(size, device=device), tuple(size if i == axis else 1 for i in range(rank))
        )

    row, key = along(rank - 2, queries), along(rank - 1, keys)
    at = At(tuple(along(i, n) for i, n in enumerate(batch)), along(rank - 3, heads), row)
    if not isinstance(start, int) and start.shape:
        start = xp.reshape(moved(start, key), (*start.shape, 1, 1, 1))
    return row + start, key, at


def _outer_axes(mask: Mask, start: Any) -> tuple[int, ...]:
    shapes = [leaf.outer for leaf in mask.leaves]
    shapes.append((*start.shape, 1) if not isinstance(start, int) and start.shape else ())
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def position_range(queries: int, start: Any) -> tuple[int, int]:
    """Return the first and the last position of queries, as far as the host knows them."""
    if isinstance(start, int):
        return start, start + queries - 1
    if library(start) == "torch":
        start = host_values(start)
    if isinstance(start, (np.ndarray, np.integer)):  # torch.compile cannot read `|` here
        return int(np.min(start, initial=0)), int(np.max(start, initial=0)) + queries - 1
    return 0, -1


MOST_PAIRS = 2**30  # booleans that a rule is written out to


@dataclass(frozen=True)
class Full(Mask):
    """Every query sees every key."""

    uses_positions = False
    relative = True

    def visible(self, query: Any, key: Any) -> Any:
        """Return True for every pair of positions."""
        return (query == query) & (key == key)

    def __repr__(self) -> str:
        return "FULL"


FULL = Full()


@dataclass(frozen=True, eq=False, repr=False)
class _Several(Mask):
    """Rules in the order they were written; equal whatever the order."""

    parts: tuple[Mask, ...]
    sign: ClassVar[str]
    join: ClassVar[Any]
    # Which part decides how far the whole reaches and when it settles.
    decisive: ClassVar[Any]

    def __post_init__(self):
        self._know(
            uses_positions=any(part.uses_positions for part in self.parts),
            relative=all(part.relative for part in self.parts),
            reach=self.decisive(part.reach for part in self.parts),
            settles=self.decisive(part.settles for part in self.parts),
        )

    def visible_at(self, query: Any, key: Any, at: At) -> Any:
        """Return what the parts say, joined by the sign of this rule."""
        return reduce(self.join, (part.visible_at(query, key, at) for part in self.parts))

    @property
    def leaves(self) -> tuple[Mask, ...]:
        """The rules that the parts are made of."""
        return tuple(leaf for part in self.parts for leaf in part.leaves)

    def on(self, like: Array) -> Mask:
        """Return the rule with the arrays of every part where `like` is."""
        parts = tuple(part.on(like) for part in self.parts)
        unmoved = all(new is old for new, old in zip(parts, self.parts, strict=True))
        return self if unmoved else type(self)(parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Several):
            return False
        same_kind = self.sign == other.sign and len(self.parts) == len(other.parts)
        return same_kind and all(part in other.parts for part in self.parts)

    def __hash__(self) -> int:
        return hash((self.sign, frozenset(self.parts)))

    def __repr__(self) -> str:
        return f" {self.sign} ".join(
            f"({part})" if isinstance(part, _Several) else repr(part) for part in self.parts
        )


class And(_Several):
    """A key is visible when every part says so: the strictest part decides."""

    sign, join, decisive = "&", and_, min


class Or(_Several):
    """A key is visible when some part says so: the most generous part decides."""

    sign, join, decisive = "|", or_, max


@dataclass(frozen=True, repr=False)
class Not(Mask):
    """A key is visible when the rule says it is not."""

    rule: Mask

    def __post_init__(self):
        self._know(uses_positions=self.rule.uses_positions, relative=self.rule.relative)

    def visible_at(self, query: Any, key: Any, at: At) -> Any:
        """Turn the answer around; `^ True`, because `~` of a Python bool is an integer."""
        return self.rule.visible_at(query, key, at) ^ True

    @property
    def leaves(self) -> tuple[Mask, ...]:
        """The rules that the inner rule is made of."""
        return self.rule.leaves

    def on(self, like: Array) -> Mask:
        """Return the rule with its arrays where `like` is."""
        rule = self.rule.on(like)
        return self if rule is self.rule else Not(rule)

    def __invert__(self) -> Mask:
        return self.rule

    def __repr__(self) -> str:
        return f"~({self.rule})" if isinstance(self.rule, _Several) else f"~{self.rule}"


NOTHING = Not(FULL)


def split(mask: Mask) -> tuple[Mask, ...]:
    """Return the rules that must all hold: `split(a & b & c) == (a, b, c)`, `split(FULL) == ()`."""
    if mask == FULL:
        return ()
    return mask.parts if isinstance(mask, And) else (mask,)


def _combine(kind: type[_Several], *masks: Mask) -> Mask:
    """Flatten, drop repetitions and the neutral rule, and let the absorbing one absorb."""
    neutral, absorbing = (FULL, NOTHING) if kind is And else (NOTHING, FULL)
    parts: list[Mask] = []
    for mask in masks:
        for part in mask.parts if isinstance(mask, kind) else (mask,):
            if part != neutral and part not in parts:
                parts.append(part)
    if absorbing in parts:
        return absorbing
    if len(parts) < 2:
        return parts[0] if parts else neutral
    return kind(tuple(parts))
