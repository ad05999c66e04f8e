"""One call of chunked kernel attention: how it is cut into chunks, and its three passes over them.

Values carry a row of ones, v' = (v, 1), so that one product gives a numerator and its denominator:
n'_i = sum_j w_ij v'_j with w_ij = sim(q_i, k_j), and out = n / d. The keys of earlier chunks are
known by their sums S = sum_j v'_j phi(k_j)^T alone: n'_i = S phi(q_i). The gradient of n'_i is
g'_i = (g_i, -g_i.out_i) / d_i; so that of phi(q_i) is S^T g'_i, that of phi(k_j) is R^T v'_j and
that of v'_j is R phi(k_j), where R = sum_i g'_i phi(q_i)^T over the queries of later chunks.

With gates, w_ij is sim(q_i, k_j) exp(G_i - G_j): see `decay`. From chunk to chunk the sums shrink
by exp(G_last); a key joins S, or reads R, times exp(G_last - G_j); a query reads S, or joins R,
times exp(G_i).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from querykey.backends.chunked.decay import log_gates
from querykey.backends.chunked.features import row_count, rows
from querykey.backends.chunked.layout import MonomialLayout, layout, same
from querykey.backends.chunked.panel import Lanes, Panel, PanelSizes, take

# Bytes that one buffer of features may take: what a CPU's cache holds, or enough to fill a GPU.
CACHE, ELSEWHERE = 3 << 20, 1 << 28
# Tokens in a chunk. Long chunks spend more on pairs, which matters where features are many; where
# they are few, what matters is the number of calls.
CHUNK = (256, 128)
MANY = 512

Step = tuple[slice | None, slice | None]
Work = Callable[[slice, Panel, Lanes], None]


class ChunkedCall:
    """q (lanes, heads, T, D), k (lanes, S, D), v (lanes, S, M), real and decay (lanes, S).

    The lanes are cut into one share for each thread, a share into slices whose buffers fit into
    the cache, and the tokens of a slice into panels of successive chunks.
    """

    def __init__(
        self,
        tensors: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None],
        kind: str,
        numbers: Sequence[float],
        causal: bool,
        start: int,
    ):
        self.q, self.k, self.v, self.real, decay = tensors
        self.log_gates = None if decay is None else log_gates(decay, self.real)
        self.kind, self.numbers = kind, tuple(numbers)
        self.lanes, self.heads, queries, self.key_dim = self.q.shape
        longest = max(queries, self.k.shape[1], 1)
        self.dtype = torch.promote_types(self.q.dtype, torch.float32)
        self.rows = row_count(self.key_dim, kind, numbers)
        on_cpu = self.q.device.type == "cpu"
        self.shares = max(min(torch.get_num_threads(), self.lanes), 1) if on_cpu else 1
        self.size = min(CHUNK[self.rows >= MANY], longest)
        chunks = -(-longest // self.size)
        chunk_bytes = self.rows * self.size * self.heads * self.dtype.itemsize
        fit = max((CACHE if on_cpu else ELSEWHERE) // chunk_bytes, 1)
        self.at_once = max(min(fit, -(-self.lanes // self.shares)), 1)
        panels = -(-chunks // max(fit // self.at_once, 1))
        self.parts = -(-chunks // panels)
        self.plan = steps(queries, self.k.shape[1], causal, start, self.parts * self.size)
        self.blind = min(max(-start, 0), queries) if causal else 0

    @property
    def until_last_query(self) -> list[Step]:
        """The plan without the keys that no query sees."""
        last = max((i for i, (queries, _) in enumerate(self.plan) if queries), default=-1)
        return self.plan[: last + 1]

    @property
    def layout(self) -> MonomialLayout:
        """Where the sums by the feature map's own phi are among the sums of the chunks."""
        return layout(self.key_dim, self.numbers) if self.kind == "series" else same(self.rows)

    def sums_before(self, sums: Tensor | None, panel: Panel, at: slice) -> Tensor:
        """Return the sums before the first token, one for each row of phi, to be added to."""
        if sums is None:
            return torch.zeros_like(panel.sums_of[0])
        return self.layout.to_rows(sums[at])

    def run(self, work: Work) -> None:
        """Do the work for every lane, on a CPU with a thread for each share of the lanes.

        A chunk is many small calls. Were each of them to use all threads, these would wait for one
        another thousands of times, which is slow and, on a busy machine, a catastrophe.
        """
        threads = torch.get_num_threads()
        if self.shares < 2:
            # Within an operator autocast is still on, and would round the sums.
            with torch.autocast(self.q.device.type, enabled=False):
                self._run_share(0, work)
            return

        def run_in_thread(index: int) -> None:
            torch.set_num_threads(max(threads // self.shares, 1))
            try:
                # Neither autograd nor autocast reach into a new thread from where it was started.
                with torch.inference_mode():
                    self._run_share(index, work)
            finally:
                # What one thread sets last is what threads to come begin with.
                torch.set_num_threads(threads)

        with ThreadPoolExecutor(self.shares) as pool:
            list(pool.map(run_in_thread, range(self.shares)))

    def _run_share(self, index: int, work: Work) -> None:
        """Do the work for one share, slice by slice, with buffers used again where they fit."""
        first, last = (i * self.lanes // self.shares for i in (index, index + 1))
        panel = None
        for begin in range(first, last, self.at_once):
            at = slice(begin, min(begin + self.at_once, last))
            if panel is None or panel.sizes.lanes != at.stop - at.start:
                panel = self._panel(at.stop - at.start)
            real, gates = (None if x is None else x[at] for x in (self.real, self.log_gates))
            q, k, v = self.q[at].permute(0, 3, 1, 2), self.k[at].mT, self.v[at].mT
            work(at, panel, Lanes(q, k, v, real, gates))

    def _panel(self, lanes: int) -> Panel:
        like = self.q.new_empty(0, dtype=self.dtype)
        value_dim = self.v.shape[-1]
        sizes = PanelSizes(lanes, self.parts, self.size, self.heads, self.key_dim, value_dim)
        return Panel(lambda x: rows(x, self.kind, self.numbers), sizes, like)


def steps(queries: int, keys: int, causal: bool, start: int, size: int) -> list[Step]:
    """Cut the work into steps of (queries, keys), in the order in which keys become visible.

    Keys alone join the sums, queries alone read them; in a step of both, one of the diagonal,
    query i also sees the step's keys up to i. So a call without a mask is all keys, then all
    queries. Queries before the first key see nothing: they are in no step.
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
        sums = _sums_of_keys(panel, total, keys)
        if queries is not None:
            panel.since_start(torch.bmm(sums, panel.phi_q(), out=panel.n), out=panel.n)
            if keys is not None:
                panel.n.baddbmm_(panel.v, panel.weights(panel.pairs()))
            take(panel.n_tokens[:, :-1], n[..., queries])
            take(panel.n_tokens[:, -1], d[..., queries])


def query_pass(panel: Panel, plan: list[Step], lanes: Lanes, total: Tensor, dq: Tensor) -> None:
    """Write the gradient of q, with the sums of the keys built up once more."""
    phi = panel.q_rows
    for queries, keys in plan:
        lanes.load(panel, queries, keys)
        sums = _sums_of_keys(panel, total, keys)
        if queries is not None:
            panel.phi_q()
            torch.bmm(sums.mT, panel.gated_n(), out=phi.grad)
            from_pairs = None
            if keys is not None:
                pairs = panel.pair_gradient(panel.pairs())
                from_pairs = torch.bmm(panel.paired_k(), pairs, out=panel.to_q)
            panel.q.copy_(phi.gradient(panel.q, from_pairs))
            take(panel.q_tokens, dq[..., queries])


def _sums_of_keys(panel: Panel, total: Tensor, keys: slice | None) -> Tensor:
    """Add the panel's keys, if any, to `total`; return the sums before each of its chunks."""
    if keys is None:
        return panel.repeat(total)
    torch.bmm(panel.gated_v(), panel.phi_k().mT, out=panel.gains)
    return panel.collect(total)


def key_pass(
    panel: Panel,
    plan: list[Step],
    lanes: Lanes,
    total: Tensor,
    more: Tensor | None,
    dk: Tensor,
    dv: Tensor,
    pulls: Tensor | None,
) -> None:
    """Write the gradients of k and v, last chunk first, and add all queries to `total`.

    `more` is the gradient of the sums after the last chunk. `pulls` (lanes, S), if given, becomes
    v'_j . dv'_j, from which the gradient of the decay is made.
    """
    phi = panel.k_rows
    for queries, keys in reversed(plan):
        lanes.load(panel, queries, keys)
        sums = _sums_of_queries(panel, total, more, queries)
        if keys is not None:
            panel.to_end(torch.bmm(sums, panel.phi_k(), out=panel.to_v), out=panel.to_v)
            torch.bmm(sums.mT, panel.gated_v(), out=phi.grad)
            from_pairs = None
            if queries is not None:
                u = panel.pairs()
                pairs = panel.pair_gradient(u).mT
                from_pairs = torch.bmm(panel.paired_q(), pairs, out=panel.to_k)
                panel.to_v.baddbmm_(panel.n, panel.weights(u).mT)
            panel.k.copy_(phi.gradient(panel.k, from_pairs))
            take(panel.k_tokens, dk[..., keys])
            if pulls is not None:
                take(panel.pulls(), pulls[:, keys])
            panel.v.copy_(panel.to_v)
            take(panel.v_tokens[:, :-1], dv[..., keys])


def _sums_of_queries(
    panel: Panel, total: Tensor, more: Tensor | None, queries: slice | None
) -> Tensor:
    """Add the panel's queries, if any, to `total`; return the sums after each of its chunks."""
    if queries is not None:
        torch.bmm(panel.gated_n(), panel.phi_q().mT, out=panel.gains)
    elif panel.gates is None:
        return panel.repeat(total, more)
    else:
        panel.gains.zero_()
    return panel.collect(total, more, backwards=True)
