"""The kernels in order: one call forward, one backward. Nothing here is differentiated."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.backends.triton import plans
from querykey.backends.triton.kernels import gradients
from querykey.backends.triton.kernels import sums as states
from querykey.backends.triton.kernels.outputs import outputs
from querykey.backends.triton.launches import start
from querykey.backends.triton.ops import empty_outputs


class Job:
    """One call's sizes and how it is cut up; q (lanes, group, T, D), k (lanes, N, D), v."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        numbers: Sequence[float],
        causal: bool,
        keep: bool,
        before: tuple[Tensor, Tensor, Tensor] | None = None,
    ):
        self.lanes, self.group, self.queries, self.key_dim = q.shape
        self.keys, self.value_dim = k.shape[1], v.shape[2]
        scale, c0, c1, c2 = numbers
        # As (rise d + shift)^2 + rest, so that nothing cancels where a square comes near 0.
        rise, shift = scale * math.sqrt(c2), c1 / (2 * math.sqrt(c2))
        rest = c0 - shift**2
        self.similarity = (rise, shift, rest if abs(rest) > 1e-12 * c0 else 0.0)
        self.plan = plans.plan(self.key_dim, self.value_dim)
        self.causal, self.device = causal, q.device
        # The sums of tokens before the first, if there are some, and room for those of all.
        self.before, self.count = (before[:2], before[2]) if before else ((), None)
        self.after = [torch.empty_like(x) for x in self.before]
        self.far = bool(self.before) or self.plan.far(self.queries, self.keys, keep)
        self.near = causal or not self.far
        # Float32 inputs mean float32 products; half-precision ones tf32 where the sums come in.
        self.precision = "ieee" if q.dtype == torch.float32 else "tf32"

    @property
    def width(self) -> int:
        """Count the tokens to a block of what is `turned`, which lies inside a chunk."""
        return min(plans.STEP, self.plan.chunk)

    def turned(self, x: Tensor) -> Tensor:
        """Return x (..., T, D) in the blocks of whole chunks, tokens last: (..., D, width)."""
        (tokens, size), rows, width = x.shape[-2:], x.shape[:-2].numel(), self.width
        blocks = self.chunks(tokens) * self.plan.chunk // width
        out = x.new_empty((*x.shape[:-2], blocks, size, width))
        start(states.turned, (blocks, rows), x, out, tokens, blocks, size, width)
        return out

    def scaled(
        self, dout: Tensor, out: Tensor, more: Tensor, inverse: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return e of `gradients`, and g and a where queries are summed up."""
        e, rows = torch.empty_like(inverse), inverse.numel()
        g, a = (torch.empty_like(x) if self.far else None for x in (out, inverse))
        start(
            gradients.scaled, (_blocks(rows, 128),),
            dout, out, more, inverse, e, g, a, rows, self.value_dim, more.numel() > 0, self.far,
            128,
        )  # fmt: skip
        return e, g, a

    def sums(self, x: Tensor, turned: Tensor, y: Tensor, w: Tensor | None) -> list[Tensor]:
        """Return the running sums of x (lanes, group, T, D) and y (..., T, M): degree 2, the rest.

        Per chunk over all before it, or after it if there are weights; without order over all.
        """
        (lanes, group, tokens, key_dim), value_dim = x.shape, y.shape[3]
        chunks, after, chunk = self.chunks(tokens), w is not None, self.plan.chunk
        square = x.new_empty((lanes, chunks, 3 * key_dim // 4, key_dim, value_dim))
        size = key_dim * value_dim + key_dim * key_dim + value_dim + key_dim
        rest = x.new_empty((lanes, chunks, size), dtype=torch.float32)
        # Nobody comes before the first or after the last to ask for its sums, but after a prompt.
        asked = chunks - 1 if self.causal and not self.before else chunks
        start(
            states.states, (3 * key_dim // 16 + 1, asked, lanes),
            x, turned, y, w, square, rest, tokens, turned.shape[2], chunks, group, chunk, key_dim,
            value_dim, self.width, chunks - asked if after else 0, tokens % chunk == 0, after,
            self.precision, launch=plans.SUMS,
        )  # fmt: skip
        sizes, block = (square[0, 0].numel(), size), 1024 if key_dim > 32 else 256
        start(
            states.running, (sum(_blocks(n, block) for n in sizes), lanes),
            square, rest, *(self.before or (None, None)), *(self.after or (None, None)), chunks,
            *sizes, block, bool(self.before), after, not self.causal,
        )  # fmt: skip
        return [square, rest] if self.causal else [x[:, :1].contiguous() for x in (square, rest)]

    def shape(self, launch: plans.Launch) -> tuple:
        """Return what the kernels over queries or keys are compiled for."""
        sizes = (self.group, self.plan.chunk, self.key_dim, self.value_dim, self.width)
        return *sizes, launch.queries, launch.keys, self.causal, self.far, self.near

    def together(self, x: Tensor, y: Tensor) -> int:
        """Count the lanes whose x and y fit into the cache at once."""
        return max(plans.CACHE * self.lanes // max(x.nbytes + y.nbytes, 1), 1)

    def far_counts(self, real: Tensor | None) -> Tensor | None:
        """Count the real keys before each chunk, or all without order; None where that is plain."""
        before, chunk = self.count, self.plan.chunk
        if not self.far or (real is None and before is None):
            return None
        if real is None:
            counts = torch.arange(0, self.keys, chunk, device=self.device)
        elif self.causal:
            counts = F.pad(real.cumsum(-1)[:, chunk - 1 : -1 : chunk], (1, 0))
        else:
            counts = real.sum(-1, keepdim=True)
        return (counts if before is None else counts + before[:, None]).int()

    def chunks(self, tokens: int) -> int:
        """Count the chunks of so many tokens."""
        return _blocks(tokens, self.plan.chunk)


def _blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
    job: Job | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the output, and what `ops` says of what to keep."""
    job = Job(q, k, v, numbers, causal, keep) if job is None else job
    out, more, inverse = empty_outputs(q, v, keep)
    square, rest, turned = q.new_empty(0, 0), inverse.new_empty(0, 0), q  # read where keys are far
    if job.far:
        square, rest = job.sums(k[:, None], job.turned(k[:, None]), v[:, None], None)
        turned = job.turned(q)
    flags = None if real is None else real.to(torch.uint8).contiguous()
    launch = job.plan.outputs[not job.far]
    start(
        outputs, (_blocks(job.queries, launch.queries), job.lanes * job.group),
        q, turned, k, v, square, rest, flags, job.far_counts(real), out, more, inverse,
        job.queries, turned.shape[-3], job.keys, rest.shape[1], job.together(k, v) * job.group,
        *job.similarity, *job.shape(launch), more.numel() > 0, bool(job.before), job.precision,
        launch=launch,
    )  # fmt: skip
    if not keep:
        square, rest = square.new_empty(0, 0), rest.new_empty(0, 0)
    return out, more, inverse, square, rest


def backward(
    dout: Tensor,
    out: Tensor,
    more: Tensor,
    inverse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    square: Tensor,
    rest: Tensor,
    numbers: Sequence[float],
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v."""
    job = Job(q, k, v, numbers, causal, keep=True)
    e, g, a = job.scaled(dout, out, more, inverse)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    turned = job.turned(q) if job.far else q
    launch = job.plan.by_query[not job.far]
    start(
        gradients.query_gradients, (_blocks(job.queries, launch.queries), job.lanes * job.group),
        q, turned, k, v, dout, e, inverse, square, rest, dq, job.queries, turned.shape[-3],
        job.keys, rest.shape[1], job.together(k, v) * job.group, *job.similarity[:2],
        *job.shape(launch), job.precision, launch=launch,
    )  # fmt: skip
    if g is not None:
        square, rest = job.sums(q, turned, g, a)
        del turned, g  # before the next
        turned = job.turned(k)
    launch = job.plan.by_key[not job.far]
    start(
        gradients.key_gradients, (_blocks(job.keys, launch.keys), job.lanes),
        q, k, turned, v, dout, e, inverse, square, rest, dk, dv, job.queries, job.keys,
        turned.shape[-3], rest.shape[1], job.together(q, dout), *job.similarity,
        *job.shape(launch), job.precision, launch=launch,
    )  # fmt: skip
    return dq, dk, dv
