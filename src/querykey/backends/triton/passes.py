"""The kernels in order: one call forward, one backward. Nothing here is differentiated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from querykey.backends.triton import gradients, plans, states
from querykey.backends.triton.launches import start
from querykey.backends.triton.outputs import outputs


class Job:
    """One call's sizes and how it is cut up; q (lanes, group, T, D), k (lanes, N, D), v."""

    carried = False  # whether there are tokens before the first, of which the sums are known

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, numbers: Sequence[float], causal: bool, back: bool
    ):
        self.lanes, self.group, self.queries, self.key_dim = q.shape
        self.keys, self.value_dim = k.shape[1], v.shape[2]
        scale, c0, c1, c2 = numbers
        self.c0, self.c1, self.c2 = c0, c1 * scale, c2 * scale * scale
        # The same as c2 (d + shift)^2 + rest: no cancelling where a square comes near 0.
        self.shift = self.c1 / (2 * self.c2)
        self.rest = self.c0 - self.c2 * self.shift**2
        self.plan = plans.plan(self.key_dim, self.value_dim)
        longest = max(self.queries, self.keys)
        self.causal = causal
        self.far = longest > self.plan.near[back]
        self.near = causal or not self.far
        # Float32 inputs mean float32 products; half-precision ones tf32 where the sums come in.
        self.precision = "ieee" if q.dtype == torch.float32 else "tf32"

    @property
    def width(self) -> int:
        """Count the tokens to a block of what is `turned`, which lies inside a chunk."""
        return min(plans.STEP, self.plan.chunk)

    def blocks(self, tokens: int) -> int:
        """Count the blocks of what is `turned`: those of whole tiles of queries or keys."""
        step = min(128, self.plan.chunk)
        return _blocks(tokens, step) * step // self.width

    def turned(self, x: Tensor) -> Tensor:
        """Return x (..., T, D) in blocks with tokens last, (..., blocks, D, width)."""
        (tokens, size), rows, width = x.shape[-2:], x.shape[:-2].numel(), self.width
        out = x.new_empty((*x.shape[:-2], self.blocks(tokens), size, width))
        start(states.turned, (out.shape[-3], rows), x, out, tokens, out.shape[-3], size, width)
        return out

    def moments(self, x: Tensor, y: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return x (lanes, group, T, D) turned, and its running moments with y (..., T, M).

        Per chunk over all before it, or after it if there are weights; without order over all.
        """
        lanes, tokens, key_dim, value_dim = x.shape[0], *x.shape[2:], y.shape[3]
        chunks, blocks = self.chunks(tokens), self.blocks(tokens)
        out = x.new_empty((*x.shape[:-2], blocks, key_dim, self.width))
        size = key_dim * value_dim + key_dim * key_dim + value_dim + key_dim
        rest = x.new_empty((lanes, chunks, size), dtype=torch.float32)
        start(
            states.moments, (chunks, lanes),
            x, y, weights, out, rest, tokens, blocks, chunks, x.shape[1], self.plan.chunk, key_dim,
            value_dim, self.width, weights is not None, self.precision, launch=plans.MOMENTS,
        )  # fmt: skip
        self.run(rest, weights is not None)
        return out, rest

    def squares(self, x: Tensor, y: Tensor, after: bool) -> Tensor:
        """Return the running sums of degree 2 of x, turned, and y."""
        lanes, group, blocks, key_dim, width = x.shape
        tokens, value_dim = y.shape[-2:]
        chunks = self.chunks(tokens)
        out = x.new_empty((lanes, chunks, 3 * key_dim // 4, key_dim, value_dim))
        even = tokens % self.plan.chunk == 0
        start(
            states.states, (3 * key_dim // 16, chunks, lanes),
            x, y, out, tokens, blocks, chunks, group, self.plan.chunk, key_dim, value_dim, width,
            even, self.precision, launch=plans.SUMS,
        )  # fmt: skip
        self.run(out, after)
        return out

    def run(self, table: Tensor, after: bool) -> None:
        """Make sums per chunk, (lanes, chunks, ...), running ones in place."""
        lanes, chunks, size = *table.shape[:2], table[0, 0].numel()
        block = 1024 if size > 65536 else 256  # enough programs to fill a GPU
        start(
            states.running, (_blocks(size, block), lanes),
            table, chunks, size, block, after, not self.causal,
        )  # fmt: skip

    def shape(self, launch: plans.Launch) -> tuple:
        """Return what the kernels over queries or keys are compiled for."""
        sizes = (self.group, self.plan.chunk, self.key_dim, self.value_dim, self.width)
        return *sizes, launch.queries, launch.keys, self.causal, self.far, self.near

    def chunks(self, tokens: int) -> int:
        """Count the chunks of so many tokens."""
        return _blocks(tokens, self.plan.chunk)


def _blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor | None,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
    job: Job | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, what rounding took from it (if to keep), and the normalisers' inverses."""
    job = Job(q, k, v, numbers, causal, back=False) if job is None else job
    out = v.new_empty((*q.shape[:-1], job.value_dim))
    more = v.new_empty(out.shape if keep else 0)
    inverse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    turned, square, rest = q, q, inverse  # nothing reads them where all keys are near
    if job.far:
        keys, rest = job.moments(k[:, None], v[:, None], None)
        square = job.squares(keys, v[:, None], after=False)
        turned = job.turned(q)
        del keys
    launch = job.plan.outputs[not job.far]
    start(
        outputs, (_blocks(job.queries, launch.queries), job.lanes * job.group),
        q, turned, k, v, square, rest, seen, out, more, inverse, job.queries, turned.shape[-3],
        job.keys, job.chunks(job.keys), job.c0, job.c1, job.c2, job.shift, job.rest,
        *job.shape(launch), seen is not None, keep, job.carried, job.precision, launch=launch,
    )  # fmt: skip
    return out, more, inverse


def backward(
    dout: Tensor,
    out: Tensor,
    more: Tensor,
    inverse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    numbers: Sequence[float],
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v. The sums are made again: they are larger than k and v."""
    job = Job(q, k, v, numbers, causal, back=True)
    g, e, rows = torch.empty_like(out), torch.empty_like(inverse), inverse.numel()
    start(
        gradients.scaled, (_blocks(rows, 128),),
        dout, out, more, inverse, g, e, rows, job.value_dim, more.numel() > 0, 128,
    )  # fmt: skip
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    keys, queries, square, before, after = q, q, q, inverse, inverse
    if job.far:
        keys, before = job.moments(k[:, None], v[:, None], None)
        queries, after = job.moments(q, g, e)
        square = job.squares(keys, v[:, None], after=False)
    launch = job.plan.by_query[not job.far]
    start(
        gradients.query_gradients, (_blocks(job.queries, launch.queries), job.lanes * job.group),
        q, queries, k, v, g, e, square, before, dq, job.queries, queries.shape[-3], job.keys,
        job.chunks(job.keys), job.c1, job.c2, job.shift, *job.shape(launch), job.precision,
        launch=launch,
    )  # fmt: skip
    if job.far:
        del square  # before the next one: these are the largest tables
        square = job.squares(queries, g, after=True)
    launch = job.plan.by_key[not job.far]
    start(
        gradients.key_gradients, (_blocks(job.keys, launch.keys), job.lanes),
        q, k, keys, v, g, e, square, after, dk, dv, job.queries, job.keys, keys.shape[-3],
        job.chunks(job.queries), job.c0, job.c1, job.c2, job.shift, job.rest, *job.shape(launch),
        job.precision, launch=launch,
    )  # fmt: skip
    return dq, dk, dv
