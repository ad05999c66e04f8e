"""Attention in which each query sees an interval of keys: documents, once each stands in one piece.

The intervals of queries over keys, and of keys over the queries that see them, are given by their
first token and the one after their last. Whole tiles outside of them are skipped; what is left is
every pair of a document, so time grows with the squares of the documents' lengths.
The equations are those of `outputs` and `gradients`.
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from querykey.backends.triton.kernels.pairs import from_keys, from_queries, read, settle, tokens
from querykey.backends.triton.launches import start
from querykey.backends.triton.ops import empty_outputs
from querykey.backends.triton.passes import Job


@triton.jit
def bounds(low, up, STEP: tl.constexpr):
    """Return where the tokens begin that some row sees, all rows see, all saw, none sees any more.

    In steps, but for the last; between the second and the third nothing is hidden.
    """
    end = tl.max(up, 0)
    first = tl.minimum(tl.cdiv(tl.max(low, 0), STEP) * STEP, end)
    return (
        tl.min(low, 0) // STEP * STEP,
        first,
        tl.maximum(tl.min(up, 0) // STEP * STEP, first),
        end,
    )


@triton.jit
def outputs(
    Q, K, V, LOW, UP, REAL, OUT, MORE, INVERSE, T, heads, rise, shift, rest,
    G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    KEEP: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Write BQ queries' outputs, what rounding took from them, and their normalisers' inverses."""
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    lane = row // G
    t = block * BQ + tl.arange(0, BQ)
    # Rows past the last do as the last one does, and are not written.
    at = lane // heads * T + tl.minimum(t, T - 1)
    low, up = tl.load(LOW + at), tl.load(UP + at)
    q = tokens(Q + row * T * D, t, T, D)
    K, V = K + lane * T * D, V + lane * T * M
    acc = tl.zeros((BQ, M), tl.float32)
    z = tl.zeros((BQ,), tl.float32)
    begin, first, last, end = bounds(low, up, BK)
    low, up = low[:, None], up[:, None]
    if REAL is not None:
        REAL += lane // heads * T
    acc, z = read(acc, z, q, low, up, K, V, REAL, begin, first, T, rise, shift, rest, D, M, BK, True, PREC)  # fmt: skip  # noqa: E501
    acc, z = read(acc, z, q, low, up, K, V, REAL, first, last, T, rise, shift, rest, D, M, BK, False, PREC)  # fmt: skip  # noqa: E501
    acc, z = read(acc, z, q, low, up, K, V, REAL, last, end, T, rise, shift, rest, D, M, BK, True, PREC)  # fmt: skip  # noqa: E501
    settle(acc, z, OUT, MORE, INVERSE, row, t, T, M, KEEP)


@triton.jit
def query_gradients(
    Q, K, V, DOUT, E, INVERSE, LOW, UP, DQ, T, heads, rise, shift,
    G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """Write the gradients of BQ queries."""
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    lane = row // G
    d = tl.arange(0, D)
    t = block * BQ + tl.arange(0, BQ)
    real = t < T
    at = lane // heads * T + tl.minimum(t, T - 1)
    low, up = tl.load(LOW + at), tl.load(UP + at)
    q, o = tokens(Q + row * T * D, t, T, D), tokens(DOUT + row * T * M, t, T, M)
    e = tl.load(E + row * T + t, mask=real, other=0.0)
    K, V = K + lane * T * D, V + lane * T * M
    acc = tl.zeros((BQ, D), tl.float32)
    begin, first, last, end = bounds(low, up, BK)
    low, up = low[:, None], up[:, None]
    acc = from_keys(acc, q, o, e, low, up, K, V, begin, first, T, rise, shift, D, M, BK, True, PREC)  # fmt: skip  # noqa: E501
    acc = from_keys(acc, q, o, e, low, up, K, V, first, last, T, rise, shift, D, M, BK, False, PREC)  # fmt: skip  # noqa: E501
    acc = from_keys(acc, q, o, e, low, up, K, V, last, end, T, rise, shift, D, M, BK, True, PREC)  # fmt: skip  # noqa: E501
    inverse = tl.load(INVERSE + row * T + t, mask=real, other=0.0)
    acc *= 2 * rise * inverse[:, None]
    DQ += row * T * D
    tl.store(DQ + t[:, None] * D + d[None, :], acc.to(DQ.dtype.element_ty), mask=real[:, None])


@triton.jit
def key_gradients(
    Q, K, V, DOUT, E, INVERSE, LOW, UP, DK, DV, T, heads, rise, shift, rest,
    G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """Write the gradients of BK keys and their values; the intervals are those of queries."""
    block, lane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    d, m = tl.arange(0, D), tl.arange(0, M)
    u = block * BK + tl.arange(0, BK)
    real = u < T
    at = lane // heads * T + tl.minimum(u, T - 1)
    low, up = tl.load(LOW + at), tl.load(UP + at)
    at_k, at_v = u[:, None] * D + d[None, :], u[:, None] * M + m[None, :]
    k, v = tokens(K + lane * T * D, u, T, D), tokens(V + lane * T * M, u, T, M)
    dk = tl.zeros((BK, D), tl.float32)
    dv = tl.zeros((BK, M), tl.float32)
    begin, first, last, end = bounds(low, up, BQ)
    low, up = low[:, None], up[:, None]
    for h in range(G):
        row = lane * G + h
        q, o, e, i = Q + row * T * D, DOUT + row * T * M, E + row * T, INVERSE + row * T
        dk, dv = from_queries(dk, dv, k, v, low, up, q, o, e, i, begin, first, T, rise, shift, rest, D, M, BQ, True, PREC)  # fmt: skip  # noqa: E501
        dk, dv = from_queries(dk, dv, k, v, low, up, q, o, e, i, first, last, T, rise, shift, rest, D, M, BQ, False, PREC)  # fmt: skip  # noqa: E501
        dk, dv = from_queries(dk, dv, k, v, low, up, q, o, e, i, last, end, T, rise, shift, rest, D, M, BQ, True, PREC)  # fmt: skip  # noqa: E501
    dk *= 2 * rise
    tl.store(DK + lane * T * D + at_k, dk.to(DK.dtype.element_ty), mask=real[:, None])
    tl.store(DV + lane * T * M + at_v, dv.to(DV.dtype.element_ty), mask=real[:, None])


@triton.jit
def ordered(X, Y, ORDER, T, heads, SIZE: tl.constexpr, B: tl.constexpr, BACK: tl.constexpr):
    """Copy B tokens of X (rows, T, SIZE) to Y, in an order for each `heads` rows, or back."""
    row = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * B + tl.arange(0, B)
    other = tl.load(ORDER + row // heads * T + t, mask=t < T)
    if BACK:
        old, new = t, other
    else:
        old, new = other, t
    size = tl.arange(0, SIZE)[None, :]
    x = tl.load(X + row * T * SIZE + old[:, None] * SIZE + size, mask=(t < T)[:, None])
    tl.store(Y + row * T * SIZE + new[:, None] * SIZE + size, x, mask=(t < T)[:, None])


def in_order(x: Tensor, order: Tensor, back: bool = False) -> Tensor:
    """Return x (lanes, ..., T, size) with tokens in an order for each of the batch, or undo it."""
    if not x.numel():
        return x
    y, (tokens, size) = torch.empty_like(x), x.shape[-2:]
    rows = x.numel() // (tokens * size)
    block = 4096 // size
    start(
        ordered, (triton.cdiv(tokens, block), rows),
        x, y, order, tokens, rows // len(order), size, block, back,
    )  # fmt: skip
    return y


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: Tensor,
    table: Tensor,
    numbers: Sequence[float],
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Do as `passes.forward`, by the order and the table of `documents.bounds`."""
    job = Job(q, k, v, numbers, causal=False, keep=keep)
    q, k, v = (in_order(x, order) for x in (q, k, v))
    out, more, inverse = empty_outputs(q, v, keep)
    low, up, _, _, *real = table
    launch = job.plan.outputs[1]
    start(
        outputs, (triton.cdiv(job.queries, launch.queries), job.lanes * job.group),
        q, k, v, low, up, real[0] if real else None, out, more, inverse, job.queries,
        job.lanes // len(low),
        *job.similarity, job.group, job.key_dim, job.value_dim, launch.queries,
        launch.keys, more.numel() > 0, job.precision, launch=launch,
    )  # fmt: skip
    inverse = in_order(inverse[..., None], order, back=True)[..., 0]
    return in_order(out, order, back=True), in_order(more, order, back=True), inverse


def backward(
    dout: Tensor,
    out: Tensor,
    more: Tensor,
    inverse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: Tensor,
    table: Tensor,
    numbers: Sequence[float],
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Do as `passes.backward`; a causal query is the first that sees its own key."""
    job = Job(q, k, v, numbers, causal=False, keep=True)
    job.far = False  # pairs alone, no sums
    e, _, _ = job.scaled(dout, out, more, inverse)
    e, inverse = (in_order(x[..., None], order) for x in (e, inverse))
    q, k, v, dout = (in_order(x, order) for x in (q, k, v, dout))
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    low, up, end, *_ = table
    heads, sizes = job.lanes // len(low), (job.group, job.key_dim, job.value_dim)
    launch = job.plan.by_query[1]
    start(
        query_gradients, (triton.cdiv(job.queries, launch.queries), job.lanes * job.group),
        q, k, v, dout, e, inverse, low, up, dq, job.queries, heads, *job.similarity[:2], *sizes,
        launch.queries, launch.keys, job.precision, launch=launch,
    )  # fmt: skip
    first = torch.arange(job.keys, device=k.device, dtype=low.dtype).expand_as(low)
    first = first.contiguous() if causal else low
    launch = job.plan.by_key[1]
    start(
        key_gradients, (triton.cdiv(job.keys, launch.keys), job.lanes),
        q, k, v, dout, e, inverse, first, end, dk, dv, job.queries, heads, *job.similarity,
        *sizes, launch.queries, launch.keys, job.precision, launch=launch,
    )  # fmt: skip
    dq, dk, dv = (in_order(x, order, back=True) for x in (dq, dk, dv))
    return dq, dk, dv
