"""How positions enter queries, keys and inputs: sinusoids, learned tables and rotations.

x = x + sinusoids(positions, width)                  # added to the input
q, k = rotary(q, positions), rotary(k, positions)    # rotary = Rotary(base=10000.0)

Rules over distances that are added to the scores are in `biases`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from querykey.attention.arrays import Array, constant_reals, is_array, namespace
from querykey.errors import QuerykeyError
from querykey.words import whole


def sinusoids(positions: Array, width: int, *, base: float = 10000.0, like: Array = None) -> Array:
    """Return sin and cos of each position at falling frequencies: (*positions.shape, width).

    Entries 2i and 2i+1 are sine and cosine of position / base^(2i/width) (Vaswani et al., 2017).
    The result has the library, dtype and device of `like`; without it, float64 NumPy.
    """
    like = np.empty(0) if like is None else like
    width = whole("width", width, least=0)  # in a trace a size is a tensor
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
            raise QuerykeyError(f'layout is "half" or "interleaved"; got {self.layout!r}')
        if self.width is not None and (self.width < 2 or self.width % 2):
            raise QuerykeyError(
                f"features turn in pairs, so their number is even; got {self.width}"
            )

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
        width = int(like.shape[-1]) if self.width is None else self.width
        if width % 2 or width > like.shape[-1]:
            raise QuerykeyError(
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
