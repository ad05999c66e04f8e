"""Chunked kernel attention as two operators, with their shapes and their derivative.

Lanes fold batch and key heads: q (lanes, group, T, D), k (lanes, S, D), v (lanes, S, M),
real (lanes, S), sums of the past (lanes, width, M + 1) by the feature map's own phi.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from querykey.backends.chunked_buffers import Lanes, Panel, Sizes
from querykey.backends.chunked_features import row_count, rows
from querykey.backends.chunked_monomials import Layout, layout, same
from querykey.backends.chunked_passes import Step, forward_pass, key_pass, query_pass, steps

# Bytes that one buffer of features may take: what a CPU's cache holds, or enough to fill a GPU.
CACHE, ELSEWHERE = 6 << 20, 1 << 28
# Tokens in a chunk. Long chunks spend more on pairs, which matters where features are many; where
# they are few, what matters is the number of calls.
CHUNK = (256, 128)
MANY = 512


class Job:
    """One call cut into panels of tokens and slices of lanes."""

    def __init__(
        self,
        tensors: tuple[Tensor, Tensor, Tensor, Tensor | None],
        kind: str,
        numbers: Sequence[float],
        causal: bool,
        start: int,
    ):
        self.q, self.k, self.v, self.real = tensors
        self.kind, self.numbers = kind, tuple(numbers)
        lanes, heads, queries, key_dim = self.q.shape
        longest = max(queries, self.k.shape[1], 1)
        self.dtype = torch.promote_types(self.q.dtype, torch.float32)
        self.rows = row_count(key_dim, kind, numbers)
        size = min(CHUNK[self.rows >= MANY], longest)
        room = CACHE if self.q.device.type == "cpu" else ELSEWHERE
        fit = max(room // (self.rows * size * heads * self.dtype.itemsize), 1)
        self.slices = -(-lanes // fit)
        chunks = -(-longest // size)
        panels = -(-chunks // max(fit // max(lanes, 1), 1))
        parts = -(-chunks // panels)
        self.sizes = Sizes(lanes, parts, size, heads, key_dim, self.v.shape[-1])
        self.plan = steps(queries, self.k.shape[1], causal, start, parts * size)
        self.blind = min(max(-start, 0), queries) if causal else 0

    @property
    def until_last_query(self) -> list[Step]:
        """The plan without the keys that no query sees."""
        last = max((i for i, (queries, _) in enumerate(self.plan) if queries), default=-1)
        return self.plan[: last + 1]

    @property
    def layout(self) -> Layout:
        """Where the sums by the map's own phi are among our rows."""
        if self.kind != "series":
            return same(self.rows)
        return layout(self.sizes.key_dim, self.numbers)

    def __iter__(self) -> Iterator[tuple[slice, Panel, Lanes]]:
        """Yield slices of the lanes with buffers for them, which are used again where they fit."""
        like = self.q.new_empty(0, dtype=self.dtype)
        panels: dict[int, Panel] = {}
        for i in range(self.slices):
            at = slice(*(j * self.sizes.lanes // self.slices for j in (i, i + 1)))
            count = at.stop - at.start
            if count not in panels:
                sizes = replace(self.sizes, lanes=count)
                panels[count] = Panel(lambda x: rows(x, self.kind, self.numbers), sizes, like)
            real = None if self.real is None else self.real[at]
            q, k, v = self.q[at].permute(0, 3, 1, 2), self.k[at].mT, self.v[at].mT
            yield at, panels[count], Lanes(q, k, v, real)

    def start(self, sums: Tensor | None, panel: Panel, at: slice) -> Tensor:
        """Return the sums before the first token, by our rows, to be added to."""
        if sums is None:
            return torch.zeros_like(panel.sums_of[0])
        return self.layout.to_rows(sums[at])


@torch.library.custom_op("querykey::chunked_forward", mutates_args=())
def chunked_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    sums: Tensor | None,
    kind: str,
    numbers: Sequence[float],
    causal: bool,
    start: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return out (lanes, group, T, M), 1/d (lanes, group, T), and the sums if they are to keep."""
    job = Job((q, k, v, real), kind, numbers, causal, start)
    out, d, after = _empty_results(q, k, v, real, sums, kind, numbers, causal, start, keep)
    out[:, :, : job.blind], d[:, :, : job.blind] = 0, 0
    plan = job.plan if keep else job.until_last_query
    # Within an operator autocast is still on, and would round the sums.
    with torch.autocast(q.device.type, enabled=False):
        for at, panel, lanes in job:
            total = job.start(sums, panel, at)
            forward_pass(panel, plan, lanes, total, out[at].permute(0, 3, 1, 2), d[at])
            if keep:
                after[at] = job.layout.to_phi(total)
        inverse = d.reciprocal().masked_fill_(d == 0, 0)
        return out.mul_(inverse[..., None]), inverse, after


@chunked_forward.register_fake
def _empty_results(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    sums: Tensor | None,
    kind: str,
    numbers: Sequence[float],
    causal: bool,
    start: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(q.dtype, torch.float32)
    width = 0 if sums is None or not keep else sums.shape[1]
    return (
        q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype),
        q.new_empty(q.shape[:-1], dtype=dtype),
        q.new_empty((k.shape[0], width, v.shape[-1] + 1), dtype=dtype),
    )


@torch.library.custom_op("querykey::chunked_backward", mutates_args=())
def chunked_backward(
    g: Tensor | None,
    g_after: Tensor | None,
    out: Tensor,
    inverse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    sums: Tensor | None,
    kind: str,
    numbers: Sequence[float],
    causal: bool,
    start: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and of the sums that were given (empty without them)."""
    job = Job((q, k, v, real), kind, numbers, causal, start)
    dq, dk, dv, dsums = _empty_gradients(
        g, g_after, out, inverse, q, k, v, real, sums, kind, numbers, causal, start
    )
    dq[:, :, : job.blind] = 0
    g = torch.zeros_like(out) if g is None else g
    with torch.autocast(q.device.type, enabled=False):
        for at, panel, lanes in job:
            panel.track()
            minus_go = (g[at] * out[at]).sum(-1).neg_()
            lanes.gradient = (g[at].permute(0, 3, 1, 2), minus_go, inverse[at])
            total = job.start(sums, panel, at)
            query_pass(panel, job.until_last_query, lanes, total, dq[at].permute(0, 3, 1, 2))
            more = None if g_after is None else job.layout.to_phi_back(g_after[at])
            key_pass(panel, job.plan, lanes, total.zero_(), more, dk[at].mT, dv[at].mT)
            if sums is not None:
                last = panel.ready(total, more, out=panel.sums_of[0])
                dsums[at] = job.layout.to_rows_back(last)
        if real is not None:
            dk.masked_fill_(~real[..., None], 0)
            dv.masked_fill_(~real[..., None], 0)
    return dq, dk, dv, dsums


@chunked_backward.register_fake
def _empty_gradients(
    g: Tensor | None,
    g_after: Tensor | None,
    out: Tensor,
    inverse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    sums: Tensor | None,
    kind: str,
    numbers: Sequence[float],
    causal: bool,
    start: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dsums = inverse.new_empty(0) if sums is None else sums.new_empty(sums.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsums


def _remember(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, real, sums, *ctx.rest, ctx.keep = inputs
    ctx.save_for_backward(output[0], output[1], q, k, v, real, sums)
    ctx.set_materialize_grads(False)


def _derive(ctx: Any, g: Tensor | None, _: Tensor | None, g_after: Tensor | None) -> tuple:
    out, inverse, q, k, v, real, sums = ctx.saved_tensors
    # Without sums to keep, the third result is empty and so may be its gradient.
    g_after = g_after if ctx.keep else None
    dq, dk, dv, dsums = chunked_backward(g, g_after, out, inverse, q, k, v, real, sums, *ctx.rest)
    return dq, dk, dv, None, None if sums is None else dsums, *(None,) * 5


chunked_forward.register_autograd(_derive, setup_context=_remember)
