"""How order enters: sinusoids and learned tables, rotations of queries and keys, distance biases.

x = x + sinusoids(positions, width)                  # added to the input
q, k = rotary(q, positions), rotary(k, positions)    # rotary = Rotary(base=10000.0)
attend(q, k, v, bias=ALiBi(heads=8))                 # added to the scores
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from querykey.attention.arrays import Array, constant_reals, is_array, library, namespace
from querykey.shapes import at_least_one


def sinusoids(positions: Array, width: int, *, base: float = 10000.0, like: Array = None) -> Array:
    """Return sin and cos of each position at falling frequencies: (*positions.shape, width).

    Entries 2i and 2i+1 are sine and cosine of position / base^(2i/width) (Vaswani et al., 2017).
    The result has the library, dtype and device of `like`; without it, float64 NumPy.
    """
    like = np.empty(0) if like is None else like
    xp, wide, entry = namespace(like), _at_least_float32(like), np.arange(width)
    frequencies = constant_reals(base ** (-(entry - entry % 2) / max(width, 1)), wide)
    phases = constant_reals(np.where(entry % 2, math.pi / 2, 0.0), wide)
    angles = _as_floats(positions, wide)[..., None] * frequencies
    return xp.astype(xp.where(phases == 0, xp.sin(angles), xp.cos(angles)), like.dtype)


def learned(table: Array, positions: Array) -> Array:
    """Return the rows of a table (count, width) at integer positions: (*positions.shape, width)."""
    xp = namespace(table)
    rows = xp.take(table, xp.reshape(positions, (-1,)), axis=0)
    return xp.reshape(rows, (*positions.shape, table.shape[-1]))


@dataclass(frozen=True)
class Rotary:
    """Turn pairs of features by angles that grow with position, so that q.k sees their distance.

    Pair i of `width` features turns by position * base^(-2i/width) (Su et al., 2021). The pairs are
    (i, i + width/2) in the layout "half" (Llama, NeoX) and (2i, 2i + 1) in "interleaved" (GPT-J).
    """

    base: float = 10000.0
    width: int | None = None  # features that turn, from the first; None: all of them
    layout: Literal["half", "interleaved"] = "half"
    scaling: Callable[[np.ndarray], np.ndarray] | None = None  # frequencies in, frequencies out

    def __post_init__(self):
        if self.layout not in ("half", "interleaved"):
            raise ValueError(f'layout is "half" or "interleaved"; got {self.layout!r}')
        if self.width is not None and (self.width < 2 or self.width % 2):
            raise ValueError(f"features turn in pairs, so their number is even; got {self.width}")

    def frequencies(self, width: int) -> np.ndarray:
        """Return the angle per step of each of the width/2 pairs."""
        plain = self.base ** (-np.arange(0, width, 2, dtype=np.float64) / width)
        return plain if self.scaling is None else np.asarray(self.scaling(plain), dtype=np.float64)

    def __call__(self, x: Array, positions: Array) -> Array:
        """Turn x (*batch, heads, tokens, features) at positions (tokens,) or (*batch, tokens)."""
        return self.turned(x, self.turns(positions, x))

    def turns(self, positions: Array, like: Array) -> tuple[Array, Array]:
        """Return what a feature and its pair's other one are multiplied with at these positions.

        That is the cosine of the pair's angle, and its sine with the sign that the feature wants.
        They know nothing of heads, so that queries and keys of every layer can share them.
        """
        width = like.shape[-1] if self.width is None else self.width
        if width % 2 or width > like.shape[-1]:
            raise ValueError(
                f"features turn in pairs, so their number is even; "
                f"cannot turn {width} of the {like.shape[-1]} of an array {tuple(like.shape)}"
            )
        xp = namespace(like)
        angles = _angles(self.frequencies(width), positions, like)
        cos, sin = xp.astype(xp.cos(angles), like.dtype), xp.astype(xp.sin(angles), like.dtype)
        return self._joined(xp, cos, cos), self._joined(xp, -sin, sin)

    def turned(self, x: Array, turns: tuple[Array, Array]) -> Array:
        """Turn x by what `turns` returned."""
        cos, sin = turns
        xp, width = namespace(x), cos.shape[-1]
        if width < x.shape[-1]:
            return xp.concat([self.turned(x[..., :width], turns), x[..., width:]], axis=-1)
        return x * cos + self._swapped(xp, x) * sin

    def _swapped(self, xp: Any, x: Array) -> Array:
        """Put the other feature of its pair in the place of each."""
        if self.layout == "interleaved":
            return self._joined(xp, x[..., 1::2], x[..., 0::2])
        return xp.roll(x, x.shape[-1] // 2, axis=-1)

    def _joined(self, xp: Any, a: Array, b: Array) -> Array:
        if self.layout == "interleaved":
            return xp.reshape(xp.stack([a, b], axis=-1), (*a.shape[:-1], 2 * a.shape[-1]))
        return xp.concat([a, b], axis=-1)


def _angles(frequencies: np.ndarray, positions: Array, x: Array) -> Array:
    """Return (tokens, pairs), or (*batch, 1, tokens, pairs): positions know nothing of heads."""
    xp, wide = namespace(x), _at_least_float32(x)
    at = _as_floats(positions, wide)
    angles = at[..., None] * constant_reals(frequencies, wide)
    return angles if len(at.shape) == 1 else xp.expand_dims(angles, axis=-3)


def _at_least_float32(like: Array) -> Array:
    """Return an array in whose dtype positions are told apart: half precision ends at 256."""
    xp = namespace(like)
    return like if like.dtype == xp.float64 else xp.astype(like[..., :0], xp.float32)


def _as_floats(positions: Array, like: Array) -> Array:
    if is_array(positions) and namespace(positions) is namespace(like):
        return namespace(like).astype(positions, like.dtype)
    return constant_reals(np.asarray(positions, dtype=np.float64), like)


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
        at_least_one("the number of heads", self.heads)

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
        if not is_array(self.table) or len(self.table.shape) != 2:
            raise TypeError(f"Buckets wants a table (buckets, heads); got {self.table!r}")
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
        raise ValueError(f"distances {ways} take at least {least} buckets; got {buckets}")
    if not furthest > exact:
        raise ValueError(
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
