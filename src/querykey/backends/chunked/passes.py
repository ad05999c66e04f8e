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

from querykey.backends.chunked.panel import Lanes, Panel, take

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
    panel: Panel, plan: list[Step], lanes: Lanes, total: Tensor, n: Tensor, d: Tensor
) -> None:
    """Write n and d of every query, and add all keys of the plan to `total`."""
    for queries, keys in plan:
        lanes.load(panel, queries, keys)
        sums = _take_in(panel, total, keys)
        if queries is not None:
            torch.bmm(sums, panel.phi_q(), out=panel.n)
            if keys is not None:
                panel.n.baddbmm_(panel.v, panel.weights(panel.pairs()))
            take(panel.n_tokens[:, :-1], n[..., queries])
            take(panel.n_tokens[:, -1], d[..., queries])


def query_pass(panel: Panel, plan: list[Step], lanes: Lanes, total: Tensor, dq: Tensor) -> None:
    """Write the gradient of q, with the sums of the keys built up once more."""
    rows = panel.q_rows
    for queries, keys in plan:
        lanes.load(panel, queries, keys)
        sums = _take_in(panel, total, keys)
        if queries is not None:
            panel.phi_q()
            torch.bmm(sums.mT, panel.n, out=rows.grad)
            met = None
            if keys is not None:
                pairs = panel.pair_gradient(panel.pairs())
                met = torch.bmm(panel.met_k(), pairs, out=panel.to_q)
            panel.q.copy_(rows.gradient(panel.q, met))
            take(panel.q_tokens, dq[..., queries])


def _take_in(panel: Panel, total: Tensor, keys: slice | None) -> Tensor:
    """Add the panel's keys, if any, to the sums; return the sums before each of its chunks."""
    if keys is None:
        return panel.repeat(total)
    torch.bmm(panel.v, panel.phi_k().mT, out=panel.gains)
    return panel.collect(total)


def key_pass(
    panel: Panel,
    plan: list[Step],
    lanes: Lanes,
    total: Tensor,
    more: Tensor | None,
    dk: Tensor,
    dv: Tensor,
) -> None:
    """Write the gradients of k and v, last chunk first, and add all queries to `total`.

    `more` is the gradient of the sums after the last chunk.
    """
    rows = panel.k_rows
    for queries, keys in reversed(plan):
        lanes.load(panel, queries, keys)
        if queries is None:
            sums = panel.repeat(total, more)
        else:
            torch.bmm(panel.n, panel.phi_q().mT, out=panel.gains)
            sums = panel.collect(total, more, backwards=True)
        if keys is not None:
            torch.bmm(sums, panel.phi_k(), out=panel.to_v)
            torch.bmm(sums.mT, panel.v, out=rows.grad)
            met = None
            if queries is not None:
                u = panel.pairs()
                met = torch.bmm(panel.met_q(), panel.pair_gradient(u).mT, out=panel.to_k)
                panel.to_v.baddbmm_(panel.n, panel.weights(u).mT)
            panel.k.copy_(rows.gradient(panel.k, met))
            take(panel.k_tokens, dk[..., keys])
            panel.v.copy_(panel.to_v)
            take(panel.v_tokens[:, :-1], dv[..., keys])
