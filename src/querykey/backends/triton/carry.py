"""Many new tokens after those that a state has summed up: the same kernels, begun with its sums."""

# The kernel is in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from querykey.backends.triton import passes
from querykey.backends.triton.launches import start
from querykey.backends.triton.layout import layout
from querykey.backends.triton.quadratic import filled


@triton.jit
def carried(S, FIRST, LAST, chunks, size, BLOCK: tl.constexpr):
    """As `states.running`, on from the sums FIRST; what all chunks come to is LAST."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    lane = tl.program_id(1).to(tl.int64)
    inside = at < size
    here = S + lane * chunks * size + at
    total = tl.load(FIRST + lane * size + at, mask=inside, other=0.0)
    for _ in tl.range(0, chunks, num_stages=4):
        more = tl.load(here, mask=inside, other=0.0).to(tl.float32)
        tl.store(here, total.to(S.dtype.element_ty), mask=inside)
        total += more
        here += size
    tl.store(LAST + lane * size + at, total, mask=inside)


class Carried(passes.Job):
    """A job whose running sums begin with those of `first`, by their size, and end in `last`."""

    carried = True

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, numbers: Sequence[float], *first: Tensor):
        super().__init__(q, k, v, numbers, causal=True, back=False)
        self.far = True  # for a few tokens too, since there are some before them
        self.first = {table.shape[1]: table for table in first}
        self.last = {table.shape[1]: torch.empty_like(table) for table in first}

    def run(self, table: Tensor, after: bool) -> None:
        """Make sums per chunk, (lanes, chunks, ...), running ones in place."""
        lanes, chunks, size = *table.shape[:2], table[0, 0].numel()
        grid = (triton.cdiv(size, 1024), lanes)
        start(carried, grid, table, self.first[size], self.last[size], chunks, size, 1024)


def extend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    outer: Tensor,
    total: Tensor,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs of q (lanes, group, T, D), causal, and the state after k and v.

    real (lanes, T) is False for padding, whose k and v are zeros.
    """
    key_dim, value_dim = q.shape[-1], v.shape[-1]
    q, k, v = (filled(x) for x in (q, k, v))
    made = layout(key_dim, q.shape[-1], numbers, q.device)
    square, rest, before = made.gathered(outer, total, v.shape[-1])
    job = Carried(q, k, v, numbers, square, rest)
    seen = _seen(k, real, before.round().int())
    out = passes.forward(q, k, v, seen, numbers, True, False, job)[0]
    count = seen[:, -1].float()
    last = (job.last[table.shape[1]] for table in (square, rest))
    return out[..., :value_dim].contiguous(), *made.scattered(*last, count, value_dim)


def _seen(k: Tensor, real: Tensor | None, before: Tensor) -> Tensor:
    """Count the real keys up to every token, those of the state included."""
    if real is None:
        real = torch.ones_like(k[..., 0], dtype=torch.bool)
    return real.cumsum(-1, dtype=torch.int32) + before[:, None]
