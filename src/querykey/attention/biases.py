"""Rules over distances whose values are added to the scores of softmax attention.

attend(q, k, v, bias=ALiBi(heads=8))
attend(q, k, v, bias=Buckets(table))     # T5's learned table, (buckets, heads)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from querykey.attention.arrays import Array, constant_reals, is_array, is_dense, library, namespace
from querykey.errors import QuerykeyError, WrongTypeError
from querykey.words import whole


class Bias:
    """A rule over positions whose values are added to the scores of softmax attention."""

    def fits(self, heads: int) -> bool:
        """Whether it has values for so many heads."""
        return True

    def values(self, query: Any, key: Any, head: Any) -> Any:
        """Return what is added, for integer positions and heads that broadcast."""
        raise NotImplementedError

    def on(self, like: Array) -> Bias:
        """Return the rule with its numbers in the library, dtype and device of `like`."""
        return self


@dataclass(frozen=True)
class ALiBi(Bias):
    """-slope * |query - key|, one slope per head, falling geometrically (Press et al., 2022)."""

    heads: int

    def __post_init__(self):
        whole("the number of heads", self.heads)

    def fits(self, heads: int) -> bool:
        """Whether that is the number it was made for."""
        return self.heads == heads

    @property
    def slopes(self) -> np.ndarray:
        """One slope per head: 2^(-8/n), 2^(-16/n), ... for n a power of two.

        For other numbers of heads: those of the power of two below, then every other slope of the
        power above.
        """
        below = 2 ** int(math.log2(self.heads))
        first = 2.0 ** (-8 / below * np.arange(1, below + 1))
        between = 2.0 ** (-4 / below * np.arange(1, 2 * below, 2))
        return np.concatenate([first, between])[: self.heads]

    def values(self, query: Any, key: Any, head: Any) -> Any:
        """Return minus the distance, times the head's slope."""
        return _Slopes(self.slopes).values(query, key, head)

    def on(self, like: Array) -> Bias:
        """Return the rule with its slopes beside `like`."""
        return _Slopes(constant_reals(self.slopes, like))


@dataclass(frozen=True, eq=False)
class _Slopes(Bias):
    """ALiBi with the slopes written out, so that a traced rule reads them from an array."""

    slopes: Any

    def values(self, query: Any, key: Any, head: Any) -> Any:
        """Return minus the distance, times the head's slope."""
        return -(self.slopes[head] * abs(query - key))


@dataclass(frozen=True, eq=False)
class Buckets(Bias):
    """table[bucket(key - query), head]: T5's learned biases; the table is (buckets, heads)."""

    table: Any
    both_ways: bool = True  # False for decoders: all keys ahead share the bucket of distance 0
    furthest: int = 128  # distances from here on share a bucket

    def __post_init__(self):
        table = self.table
        if not is_array(table) or len(table.shape) != 2 or not is_dense(table):
            raise WrongTypeError(f"Buckets wants a table (buckets, heads); got {self.table!r}")
        _exact_buckets(self.table.shape[0], self.both_ways, self.furthest)

    def fits(self, heads: int) -> bool:
        """Whether the table has a column for each."""
        return self.table.shape[-1] == heads

    def on(self, like: Array) -> Bias:
        """Return the rule with a NumPy table beside `like`; other tables stay what they are."""
        if not isinstance(self.table, np.ndarray) or library(like) == "numpy":
            return self
        return replace(self, table=constant_reals(self.table, like))

    def values(self, query: Any, key: Any, head: Any) -> Any:
        """Return the entry of the pair's bucket."""
        return self.table[
            bucket(key - query, self.table.shape[0], self.both_ways, self.furthest), head
        ]

    def __repr__(self) -> str:
        shape, both_ways = tuple(self.table.shape), self.both_ways
        return f"Buckets(table {shape}, both_ways={both_ways}, furthest={self.furthest})"


def _exact_buckets(buckets: int, both_ways: bool, furthest: int) -> int:
    """Count the distances with a bucket of their own, or say why there can be none."""
    exact = buckets // (4 if both_ways else 2)
    if exact < 1:
        ways, least = ("both ways", 4) if both_ways else ("one way", 2)
        raise QuerykeyError(f"distances {ways} take at least {least} buckets; got {buckets}")
    if not furthest > exact:
        raise QuerykeyError(
            f"distances below {exact} have a bucket each, and the others reach further than that; "
            f"got {furthest} as the furthest"
        )
    return exact


def bucket(offset: Array, buckets: int = 32, both_ways: bool = True, furthest: int = 128) -> Array:
    """Return T5's bucket of key - query (Raffel et al., 2020): exact when near, coarse when far.

    Half of the buckets (of each way) hold one distance each; the others share the distances up to
    `furthest` on a logarithmic scale, in float32 as T5 does.
    """
    xp, exact = namespace(offset), _exact_buckets(buckets, both_ways, furthest)
    zero = xp.zeros_like(offset)
    if both_ways:
        buckets //= 2
        ahead, distance = xp.where(offset > 0, zero + buckets, zero), xp.abs(offset)
    else:
        ahead, distance = zero, xp.where(offset < 0, -offset, zero)
    # Near distances are not wanted here: 1 in their place keeps the logarithm finite.
    far = xp.astype(xp.where(distance < exact, zero + max(exact, 1), distance), xp.float32)
    log_scale = xp.log(far / exact) / math.log(furthest / exact) * (buckets - exact)
    logarithmic = exact + xp.astype(log_scale, offset.dtype)
    logarithmic = xp.where(logarithmic > buckets - 1, zero + buckets - 1, logarithmic)
    return ahead + xp.where(distance < exact, distance, logarithmic)
