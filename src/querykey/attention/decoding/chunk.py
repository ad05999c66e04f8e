"""New tokens on their way into a state: the real ones of each row moved together, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from querykey.attention.arrays import (
    Array,
    constant,
    described,
    is_array,
    is_boolean,
    is_dense,
    is_integer,
    library,
    namespace,
)
from querykey.attention.heads import repeat_heads
from querykey.errors import WrongTypeError
from querykey.shapes import bind


@dataclass(frozen=True)
class Chunk:
    """New queries, keys, values (batch, heads, tokens, features), the real tokens of a row first.

    What follows a row's real tokens is zeros. `taken` and `real` say how to go back; both are None
    where every token is real.
    """

    q: Array
    k: Array
    v: Array
    counts: tuple[int, ...]  # real tokens of each row
    taken: np.ndarray | None = None  # (batch, tokens): where each token of the call now stands
    real: Array | None = None  # (batch, tokens) of the call, beside q
    decay: Array | None = None  # (batch, kv_heads, tokens), 0 behind a row's real tokens

    @property
    def tokens(self) -> int:
        """The real tokens of the longest row."""
        return self.q.shape[-2]

    @property
    def even(self) -> bool:
        """Whether all rows have as many real tokens."""
        return even(self.counts)

    def real_places(self) -> Array | None:
        """Say which places hold a real token, (batch, 1, tokens); None where all of them do."""
        if self.even:
            return None
        return constant(first_places(self.counts, self.tokens)[:, None], self.q)

    def restore(self, out: Array) -> Array:
        """Put outputs back where their queries stood, with zeros for what is not real."""
        if self.taken is None or self.real is None:
            return out
        xp = namespace(out)
        out = along_tokens(out, self.taken)
        return xp.where(self.real[:, None, :, None], out, xp.zeros_like(out))


def chunk(q: Array, k: Array, v: Array, real: Any, decay: Array | None = None) -> Chunk:
    """Move the real tokens of each row together; `real` is (batch, tokens), True or 1, or None."""
    batch, tokens = q.shape[0], q.shape[-2]
    if real is None:
        return Chunk(q, k, v, counts=(tokens,) * batch, decay=decay)
    host = _on_host(real, q)
    if host.all():
        return Chunk(q, k, v, counts=(tokens,) * batch, decay=decay)
    counts = host.sum(axis=1)
    longest = int(counts.max(initial=0))
    order = np.argsort(~host, axis=1, kind="stable")[:, :longest]
    filled = np.arange(longest) < counts[:, None]
    xp = namespace(q)
    keep = constant(filled, q)[:, None, :, None]

    def together(x: Array) -> Array:
        moved = along_tokens(x, order)
        return xp.where(keep, moved, xp.zeros_like(moved))

    return Chunk(
        together(q),
        together(k),
        together(v),
        counts=tuple(counts.tolist()),
        taken=np.maximum(np.cumsum(host, axis=1) - 1, 0),
        real=constant(host, q),
        decay=None if decay is None else together(decay[..., None])[..., 0],
    )


def blank(q: Array, v: Array) -> Array:
    """Return zeros for every query, which give zeros as gradients to the values."""
    xp, v = namespace(q), repeat_heads(v, q.shape[1])
    return xp.where(xp.zeros_like(v) > 0, v, xp.zeros_like(v))


def even(counts: Sequence[int]) -> bool:
    """Whether all rows have as many tokens."""
    return len(set(counts)) < 2


def first_places(counts: Sequence[int], width: int) -> np.ndarray:
    """Return (rows, width) booleans, True for the first counts[b] places of row b."""
    return np.arange(width) < np.asarray(counts, dtype=np.int64)[:, None]


def along_tokens(x: Array, index: np.ndarray) -> Array:
    """Return x[b, :, index[b, i]] for x (batch, heads, tokens, features); always a copy."""
    xp = namespace(x)
    if index.size and (index == index[0]).all():
        return xp.take(x, constant(index[0], x), axis=2)
    batch, heads, tokens, width = x.shape
    flat = xp.reshape(xp.moveaxis(x, 2, 1), (batch * tokens, heads, width))
    places = (np.arange(batch)[:, None] * tokens + index).reshape(-1)
    taken = xp.take(flat, constant(places, x), axis=0)
    return xp.moveaxis(xp.reshape(taken, (batch, index.shape[1], heads, width)), 1, 2)


def _on_host(real: Any, q: Array) -> np.ndarray:
    """Return `real` as NumPy booleans: how long each row is decides the shapes of what follows."""
    real = real if is_array(real) else np.asarray(real)
    if not (is_boolean(real) or is_integer(real)):
        raise WrongTypeError(
            f"real wants booleans, or 0 and 1, True for real tokens; "
            f"got {real.dtype} of shape {tuple(real.shape)}"
        )
    if not is_dense(real) or getattr(real, "is_meta", False):
        raise WrongTypeError(
            f"how long each row is decides what is computed, so real is a dense array whose values "
            f"can be read; got {described(real)}"
        )
    bind(q=(q, "batch head new key_dim"), real=(real, "batch new"))
    if library(real) == "torch":
        real = real.detach().cpu()
    return np.asarray(real) != 0
