"""The passes of chunked kernel attention: out; the gradient of q; the gradients of k and v.

Values carry a row of ones, v' = (v, 1), so that one product gives a numerator and its denominator:
n'_i = sum_j w_ij v'_j with w_ij = sim(q_i, k_j), and out = n / d. The keys of earlier chunks are
known by their sums S = sum_j v'_j phi(k_j)^T alone: n'_i = S phi(q_i). The gradient of n'_i is
g'_i = (g_i, -g_i.out_i) / d_i; so that of phi(q_i) is S^T g'_i, that of phi(k_j) is R^T v'_j and
that of v'_j is R phi(k_j), where R = sum_i g'_i phi(q_i)^T over the queries of later chunks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from querykey.backends.chunked_buffers import Chunk, Lanes

Step = tuple[slice | None, slice | None]


def steps(queries: int, keys: int, causal: bool, start: int, size: int) -> list[Step]:
    """Cut the work into chunks of (queries, keys), in the order in which keys become visible.

    Keys alone join the sums, queries alone read them; in a chunk of both, one of the diagonal,
    query i also sees the chunk's keys up to i. So a call without a mask is all keys, then all
    queries. Queries before the first key see nothing: they are in no chunk.
    """
    blind = min(max(-start, 0), queries) if causal else 0
    seen = min(max(start, 0), keys) if causal else keys
    both = min(queries - blind, keys - seen)
    diagonal = [
        (slice(blind + a.start, blind + a.stop), slice(seen + a.start, seen + a.stop))
        for a in cuts(0, both, size)
    ]
    before = [(None, a) for a in cuts(0, seen, size)]
    reading = [(a, None) for a in cuts(blind + both, queries, size)]
    after = [(None, a) for a in cuts(seen + both, keys, size)]
    return [*before, *diagonal, *reading, *after]


def cuts(begin: int, end: int, size: int) -> Iterator[slice]:
    """Cut a range into slices of at most `size`."""
    for a in range(begin, end, size):
        yield slice(a, min(a + size, end))


def forward_pass(
    chunk: Chunk, plan: list[Step], lanes: Lanes, sums: Tensor | None, n: Tensor, d: Tensor
) -> Tensor:
    """Write n and d of every query; return the sums, those given plus all keys of the plan."""
    total, empty = begin(chunk, sums)
    for queries, keys in plan:
        lanes.load(chunk, queries, keys)
        if queries is not None:
            if empty:
                chunk.n.zero_()
            else:
                torch.bmm(chunk.weighted(total), chunk.phi_q(), out=chunk.n)
            if keys is not None:
                chunk.n.baddbmm_(chunk.v, chunk.weights(chunk.pairs()))
            done = chunk.n_tokens[..., : queries.stop - queries.start]
            n[..., queries].copy_(done[:, :-1])
            d[..., queries].copy_(done[:, -1])
        if keys is not None:
            total.baddbmm_(chunk.v, chunk.phi_k().mT)
            empty = False
    return total


def query_pass(
    chunk: Chunk, plan: list[Step], lanes: Lanes, sums: Tensor | None, dq: Tensor
) -> None:
    """Write the gradient of q, with the sums of the keys built up once more."""
    total, empty = begin(chunk, sums)
    rows = chunk.q_rows
    for queries, keys in plan:
        lanes.load(chunk, queries, keys)
        if queries is not None:
            chunk.phi_q()
            if empty:
                rows.grad.zero_()
            else:
                torch.bmm(chunk.weighted(total).mT, chunk.n, out=rows.grad)
            met = None
            if keys is not None:
                met = torch.bmm(chunk.met_k(), chunk.pair_gradient(chunk.pairs()))
            grad = rows.gradient(chunk.q, met).unflatten(-1, (chunk.heads, chunk.size))
            dq[..., queries].copy_(grad[..., : queries.stop - queries.start])
        if keys is not None:
            total.baddbmm_(chunk.v, chunk.phi_k().mT)
            empty = False


def key_pass(
    chunk: Chunk,
    plan: list[Step],
    lanes: Lanes,
    dsums: Tensor | None,
    dk: Tensor,
    dv: Tensor,
) -> Tensor:
    """Write the gradients of k and v, last chunk first; return that of the sums before the first.

    `dsums` is the gradient of the sums after the last.
    """
    total, empty = torch.zeros_like(chunk.sums), dsums is None
    rows = chunk.k_rows
    for queries, keys in reversed(plan):
        lanes.load(chunk, queries, keys)
        if keys is not None:
            phi_k = chunk.phi_k()
            if empty:
                rows.grad.zero_()
                to_v = torch.zeros_like(chunk.v)
            else:
                read = chunk.weighted(total, dsums)
                torch.bmm(read.mT, chunk.v, out=rows.grad)
                to_v = torch.bmm(read, phi_k)
            met = None
            if queries is not None:
                u = chunk.pairs()
                met = torch.bmm(chunk.met_q(), chunk.pair_gradient(u).mT)
                to_v.baddbmm_(chunk.n, chunk.weights(u).mT)
            count = keys.stop - keys.start
            dk[..., keys].copy_(rows.gradient(chunk.k, met)[..., :count])
            dv[..., keys].copy_(to_v[:, :-1, :count])
        if queries is not None:
            total.baddbmm_(chunk.n, chunk.phi_q().mT)
            empty = False
    return chunk.weighted(total, dsums)


def begin(chunk: Chunk, sums: Tensor | None) -> tuple[Tensor, bool]:
    """Return the sums to start from, as a buffer to add to, and whether they are all zero."""
    if sums is None:
        return torch.zeros_like(chunk.sums), True
    return sums.to(chunk.sums, copy=True), False
