"""One call of chunked kernel attention, cut into shares, slices of lanes and panels of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from querykey.backends.chunked.panel import Lanes, Panel, Sizes
from querykey.backends.chunked.features import row_count, rows
from querykey.backends.chunked.layout import Layout, layout, same
from querykey.backends.chunked.passes import Step, steps

# Bytes that one buffer of features may take: what a CPU's cache holds, or enough to fill a GPU.
CACHE, ELSEWHERE = 3 << 20, 1 << 28
# Tokens in a chunk. Long chunks spend more on pairs, which matters where features are many; where
# they are few, what matters is the number of calls.
CHUNK = (256, 128)
MANY = 512

Work = Callable[[slice, Panel, Lanes], None]


class Job:
    """q (lanes, heads, T, D), k (lanes, S, D), v (lanes, S, M), real (lanes, S), and the kernel."""

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
        self.lanes, self.heads, queries, self.key_dim = self.q.shape
        longest = max(queries, self.k.shape[1], 1)
        self.dtype = torch.promote_types(self.q.dtype, torch.float32)
        self.rows = row_count(self.key_dim, kind, numbers)
        on_cpu = self.q.device.type == "cpu"
        self.shares = max(min(torch.get_num_threads(), self.lanes), 1) if on_cpu else 1
        self.size = min(CHUNK[self.rows >= MANY], longest)
        chunks = -(-longest // self.size)
        each = self.rows * self.size * self.heads * self.dtype.itemsize
        fit = max((CACHE if on_cpu else ELSEWHERE) // each, 1)
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
    def layout(self) -> Layout:
        """Where the sums by the map's own phi are among our rows."""
        return layout(self.key_dim, self.numbers) if self.kind == "series" else same(self.rows)

    def start(self, sums: Tensor | None, panel: Panel, at: slice) -> Tensor:
        """Return the sums before the first token, by our rows, to be added to."""
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
                self._share(0, work)
            return

        def share(index: int) -> None:
            torch.set_num_threads(max(threads // self.shares, 1))
            try:
                # Neither autograd nor autocast reach into a new thread from where it was started.
                with torch.inference_mode():
                    self._share(index, work)
            finally:
                # What one thread sets last is what threads to come begin with.
                torch.set_num_threads(threads)

        with ThreadPoolExecutor(self.shares) as pool:
            list(pool.map(share, range(self.shares)))

    def _share(self, index: int, work: Work) -> None:
        first, last = (i * self.lanes // self.shares for i in (index, index + 1))
        for slice_of_lanes in self._slices(first, last):
            work(*slice_of_lanes)

    def _slices(self, first: int, last: int) -> Iterator[tuple[slice, Panel, Lanes]]:
        """Yield slices of the lanes with buffers for them, which are used again where they fit."""
        panel = None
        for begin in range(first, last, self.at_once):
            at = slice(begin, min(begin + self.at_once, last))
            if panel is None or panel.sizes.lanes != at.stop - at.start:
                panel = self._panel(at.stop - at.start)
            real = None if self.real is None else self.real[at]
            q, k, v = self.q[at].permute(0, 3, 1, 2), self.k[at].mT, self.v[at].mT
            yield at, panel, Lanes(q, k, v, real)

    def _panel(self, lanes: int) -> Panel:
        like = self.q.new_empty(0, dtype=self.dtype)
        value_dim = self.v.shape[-1]
        sizes = Sizes(lanes, self.parts, self.size, self.heads, self.key_dim, value_dim)
        return Panel(lambda x: rows(x, self.kind, self.numbers), sizes, like)
