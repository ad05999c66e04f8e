"""Few tokens: every query meets every key it sees, a tile of queries at a time.

Sums over features cost the same for every token, however few there are. Below some length, which
grows with the number of features, meeting the keys costs less. With v' = (v, 1) and w = f(q.k),
n' = w v' holds numerator and denominator; gradients are those of `passes`, without the sums.
A tile has all keys of its queries, so g.out = sum_j w_ij g.v_j / d comes from the g.v themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from querykey.backends.chunked.decay import log_gates
from querykey.backends.chunked.features import recentred, series

# Queries in a tile, and the bytes that its weights may take: on a CPU what each thread's cache
# holds; on a GPU enough that starting a kernel takes less time than running it.
SIZE, CACHE = 128, 1 << 20
GPU_SIZE, GPU_CACHE = 1024, 1 << 28


class Tile(NamedTuple):
    """Some lanes' queries `first` to `last` - 1, and keys before `end`, which one of them sees."""

    lanes: slice
    first: int
    last: int
    end: int
    own: int  # keys from here on are hidden from some of the queries

    def of(self, x: Tensor) -> Tensor:
        """Return the queries of x (lanes, group, T, n) as (lanes, group * queries, n)."""
        return x[self.lanes, :, self.first : self.last].flatten(1, 2)

    def put(self, x: Tensor, out: Tensor) -> None:
        """Write x, as `of` returns it, to the queries of `out`."""
        into = out[self.lanes, :, self.first : self.last]
        into.copy_(x.view(into.shape[0], into.shape[1], into.shape[2], -1))


class Gates(NamedTuple):
    """What a tile's weights are multiplied by for decay, with the keys' last axis last.

    Before the tile's own keys a factor exp(G_i - G_j) is one of the query times one of the key,
    both cut where the own keys begin; among those every pair has its own, 0 where hidden.
    """

    own: Tensor
    of_query: Tensor
    of_key: Tensor


class Pairs:
    """One call: q (lanes, group, T, D), k (lanes, S, D), v (lanes, S, M), real (lanes, S)."""

    def __init__(
        self,
        tensors: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None],
        numbers: Sequence[float],
        causal: bool,
        start: int,
    ):
        q, k, v, real, decay = tensors
        dtype = torch.promote_types(q.dtype, torch.float32)
        if real is not None:  # a key that is not real becomes nothing at all
            k, v = (x.masked_fill(~real[..., None], 0) for x in (k, v))
        exists = k.new_ones(k.shape[:2]) if real is None else real
        self.q, self.k = q.to(dtype), k.to(dtype)
        self.v = torch.cat([v.to(dtype), exists.to(dtype)[..., None]], -1)
        self.causal, self.start = causal, start
        self.running = None if decay is None else log_gates(decay, real).cumsum(-1)
        self.scale, *coefficients = numbers
        shift, self.factors = recentred(coefficients)
        self.slopes = tuple(self.scale * n * f for n, f in enumerate(self.factors))[1:]
        self.offset = self.q.new_full((1, 1, 1), shift)

    def tiles(self) -> Iterator[Tile]:
        """Cut lanes and queries so that the weights of a tile stay in the cache."""
        lanes, group, queries, _ = self.q.shape
        if self.q.device.type == "cpu":
            size, cache, threads = SIZE, CACHE, torch.get_num_threads()
        else:
            size, cache, threads = GPU_SIZE, GPU_CACHE, 1
        keys, size = self.k.shape[1], max(min(size, queries), 1)
        tile_bytes = group * size * keys * self.q.itemsize
        at_once = max(cache // max(tile_bytes, 1), 1) * threads
        for lane in range(0, lanes, at_once):
            for first in range(0, queries, size):
                last, end, own = min(first + size, queries), keys, keys
                if self.causal:
                    end = min(max(self.start + last, 0), keys)
                    own = min(max(self.start + first, 0), end)
                yield Tile(slice(lane, lane + at_once), first, last, end, own)

    def meet(self, q: Tensor, tile: Tile) -> Tensor:
        """Return u = scale q.k + shift for the tile's queries and keys."""
        k = self.k[tile.lanes, : tile.end]
        return torch.baddbmm(self.offset, q, k.mT, alpha=self.scale)

    def gates(self, tile: Tile) -> Gates | None:
        """Return the factors of decay for the tile's queries and keys."""
        if self.running is None or not tile.end:
            return None
        running = self.running[tile.lanes, None, :, None]  # (lanes, 1, S, 1)
        at = torch.arange(self.start + tile.first, self.start + tile.last, device=running.device)
        at_query = running[:, :, at.clamp(0, running.shape[2] - 1)]
        at_key = running[:, :, : tile.end]
        pivot = running[:, :, max(tile.own - 1, 0), None]
        own = (at_query - at_key[:, :, tile.own :].mT).masked_fill_(self.later(tile), -torch.inf)
        far = at_query - pivot, (pivot - at_key[:, :, : tile.own]).mT
        return Gates(own.to(self.q.dtype).exp_(), *(x.to(self.q.dtype).exp_() for x in far))

    def later(self, tile: Tile) -> Tensor:
        """Return which of the tile's own keys come after which of its queries."""
        device = self.q.device
        at = torch.arange(self.start + tile.first, self.start + tile.last, device=device)
        return torch.arange(tile.own, tile.end, device=device) > at[:, None]

    def hide(self, w: Tensor, tile: Tile, gates: Gates | None) -> Tensor:
        """Put zeros where a key comes after its query, and multiply the others by their gates."""
        by_head = w.view(len(w), self.q.shape[1], tile.last - tile.first, tile.end)
        if gates is not None:
            by_head[..., : tile.own].mul_(gates.of_query).mul_(gates.of_key)
            by_head[..., tile.own :].mul_(gates.own)
        elif tile.own < tile.end:
            by_head[..., tile.own :].masked_fill_(self.later(tile), 0)
        return w

    def forward(self, out: Tensor, d: Tensor) -> None:
        """Write numerators and denominators of all queries."""
        for tile in self.tiles():
            u = self.meet(tile.of(self.q), tile)
            w = series(self.factors, u, out=torch.empty_like(u))
            w = self.hide(w, tile, self.gates(tile))
            n = w @ self.v[tile.lanes, : tile.end]
            tile.put(n[..., :-1], out)
            tile.put(n[..., -1:], d[..., None])

    def backward(
        self, g: Tensor, inverse: Tensor, dq: Tensor, pulls: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Write the gradient of q; return those of k and v.

        `pulls` (lanes, S), if given, is added sum_i w_ij dw_ij, from which that of decay is made.
        """
        g = g * inverse[..., None]
        dk, dv = torch.zeros_like(self.k), torch.zeros_like(self.v[..., :-1])
        for tile in self.tiles():
            q, g_tile = tile.of(self.q), tile.of(g)
            k, v = self.k[tile.lanes, : tile.end], self.v[tile.lanes, : tile.end, :-1]
            u = self.meet(q, tile)
            gates = self.gates(tile)
            w = self.hide(series(self.factors, u, out=torch.empty_like(u)), tile, gates)
            dv[tile.lanes, : tile.end].baddbmm_(w.mT, g_tile)
            # g.v - g.out, with g.out from the same g.v: where few keys are seen nothing is left.
            pairs = g_tile @ v.mT
            weighted = w.mul_(pairs) if pulls is None else w * pairs
            pairs -= weighted.sum(-1, keepdim=True).mul_(tile.of(inverse[..., None]))
            if pulls is not None:
                pulls[tile.lanes, : tile.end].add_(w.mul_(pairs).sum(1))
            pairs = self.hide(pairs.mul_(series(self.slopes, u, out=w)), tile, gates)
            tile.put(pairs @ k, dq)
            dk[tile.lanes, : tile.end].baddbmm_(pairs.mT, q)
        return dk, dv
