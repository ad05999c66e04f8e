"""The memory of causal kernel attention: sums whose size does not depend on how much was read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from querykey.attention.arrays import (
    Array,
    device_of,
    full_precision,
    namespace,
    running_sum,
    widened,
)
from querykey.attention.decoding.chunk import Chunk
from querykey.attention.decoding.state import State, chosen_rows
from querykey.attention.mechanisms import Kernel
from querykey.attention.reference import sums_between, weighted_sum

BLOCK = 128  # tokens taken in at a time: their features exist together, those of others do not


@dataclass(frozen=True, eq=False)
class Recurrent(State):
    """U = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j), in float32 at least: constant memory.

    The output for a query is phi(q)^T U / phi(q)^T z, with its own key and value added first. Where
    every similarity of a query is near 0, so is that denominator, and its digits cancel.
    """

    outer: Array = None  # U: (batch, kv_heads, width, value_dim)
    total: Array = None  # z: (batch, kv_heads, width)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The sums U and z, or nothing before the first tokens."""
        return () if self.outer is None else (self.outer, self.total)

    @property
    def kernel(self) -> Kernel:
        """The mechanism, which is a kernel."""
        return cast(Kernel, self.mechanism)

    def started(self, like: Array) -> Recurrent:
        """Return the state with sums of nothing."""
        xp, memory = namespace(like), self.memory
        width = self.kernel.features.width(memory.key_dim)
        options = {"dtype": widened(like[..., :0]).dtype, "device": device_of(like)}
        shape = (len(self.counts), memory.kv_heads, width)
        return replace(
            self,
            outer=xp.zeros((*shape, memory.value_dim), **options),
            total=xp.zeros(shape, **options),
        )

    def after(self, new: Chunk, outer: Array, total: Array) -> Recurrent:
        """Return the state after a chunk, with the sums that `recur` returned for it."""
        return Recurrent(self.memory, self._counts_after(new), outer, total)

    def _selected(self, rows: np.ndarray, counts: tuple[int, ...]) -> State:
        return Recurrent(self.memory, counts, *(chosen_rows(x, rows) for x in self.arrays))


def recur(
    kernel: Kernel,
    q: Array,
    k: Array,
    v: Array,
    outer: Array,
    total: Array,
    real: Array | None,
    decay: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Return the outputs of new queries (batch, heads, tokens, ...), and the sums after the tokens.

    It goes block by block: the past through its sums, the block's own tokens pair by pair. `real`
    (batch, 1, tokens) is False for what stands behind the real tokens of a row. A decay (batch,
    kv_heads, tokens) makes the sums of the past smaller at every token.
    """
    xp, outs = namespace(q), []
    with full_precision(q):
        for first in range(0, q.shape[2], BLOCK):
            place = slice(first, first + BLOCK)
            block_q, block_k, block_v = (widened(x[:, :, place, :]) for x in (q, k, v))
            faded = None if decay is None else Faded.of(widened(decay[..., place]))
            outs.append(_read(kernel, block_q, block_k, block_v, outer, total, faded))
            there = None if real is None else real[..., place]
            phi = kernel.phi(block_k)
            if faded is not None:
                phi, outer, total = faded.to_the_end(phi, outer, total)
            outer, total = _taken_in(phi, block_v, outer, total, there)
        return xp.astype(xp.concat(outs, axis=2), q.dtype), outer, total


@dataclass(frozen=True)
class Faded:
    """What a decay leaves of the past and of a block's own tokens, as factors from 0 to 1."""

    past: Array  # at every query, of what came before the block: (batch, kv_heads, tokens)
    pairs: Array  # at every query, of every token up to it: (batch, kv_heads, tokens, tokens)

    @classmethod
    def of(cls, decay: Array) -> Faded:
        """Return the factors of a block whose decay is (batch, kv_heads, tokens)."""
        xp = namespace(decay)
        return cls(xp.exp(running_sum(decay, axis=-1)), xp.exp(sums_between(decay)))

    def to_the_end(self, phi: Array, outer: Array, total: Array) -> tuple[Array, Array, Array]:
        """Return features and sums as what is left of them behind the block's last token."""
        past = self.past[..., -1, None]
        return phi * self.pairs[..., -1, :, None], outer * past[..., None], total * past


def _read(
    kernel: Kernel,
    q: Array,
    k: Array,
    v: Array,
    outer: Array,
    total: Array,
    faded: Faded | None,
) -> Array:
    """Return the outputs of one block of queries (batch, heads, tokens, key_dim).

    What is not real stands behind what is, where no real query looks.
    """
    xp = namespace(q)
    batch, heads, tokens, key_dim = q.shape
    kv_heads = k.shape[1]
    # The query heads of a group stand beside their one key head: (batch, kv_heads, group, ...).
    q = xp.reshape(q, (batch, kv_heads, heads // max(kv_heads, 1), tokens, key_dim))
    k, v, outer, total = (x[:, :, None, ...] for x in (k, v, outer, total))
    place = xp.arange(tokens, device=device_of(q))
    seen = place[:, None] >= place[None, :]
    near = kernel.similarity(q, k, where=seen)
    near = xp.where(seen, near, xp.zeros_like(near))
    phi = kernel.phi(q)
    if faded is not None:
        near = near * faded.pairs[:, :, None, ...]
        phi = phi * faded.past[:, :, None, :, None]
    sums = phi @ outer + weighted_sum(near, v)
    norm = phi @ total[..., None] + xp.sum(near, axis=-1, keepdims=True)
    nothing = norm == 0
    out = sums / xp.where(nothing, xp.ones_like(norm), norm)
    out = xp.where(nothing, xp.zeros_like(out), out)
    return xp.reshape(out, (batch, heads, tokens, v.shape[-1]))


def _taken_in(
    phi: Array, v: Array, outer: Array, total: Array, real: Array | None
) -> tuple[Array, Array]:
    """Return the sums with the real tokens of a block added."""
    xp = namespace(phi)
    if real is not None:
        phi = xp.where(real[..., None], phi, xp.zeros_like(phi))
    return outer + xp.matrix_transpose(phi) @ v, total + xp.sum(phi, axis=-2)
