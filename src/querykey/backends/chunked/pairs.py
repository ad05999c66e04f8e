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


class Pairs:
    """One call: q (lanes, group, T, D), k (lanes, S, D), v (lanes, S, M), real (lanes, S)."""

    def __init__(
        self,
        tensors: tuple[Tensor, Tensor, Tensor, Tensor | None],
        numbers: Sequence[float],
        causal: bool,
        start: int,
    ):
        q, k, v, real = tensors
        dtype = torch.promote_types(q.dtype, torch.float32)
        if real is not None:  # a key that is not real becomes nothing at all
            k, v = (x.masked_fill(~real[..., None], 0) for x in (k, v))
        exists = k.new_ones(k.shape[:2]) if real is None else real
        self.q, self.k = q.to(dtype), k.to(dtype)
        self.v = torch.cat([v.to(dtype), exists.to(dtype)[..., None]], -1)
        self.causal, self.start = causal, start
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

    def hide(self, w: Tensor, tile: Tile) -> Tensor:
        """Put zeros where a key comes after its query."""
        if tile.own < tile.end:
            at = torch.arange(self.start + tile.first, self.start + tile.last, device=w.device)
            by_head = w.view(len(w), -1, len(at), tile.end)
            after = torch.arange(tile.own, tile.end, device=w.device) > at[:, None]
            by_head[..., tile.own :].masked_fill_(after, 0)
        return w

    def forward(self, out: Tensor, d: Tensor) -> None:
        """Write numerators and denominators of all queries."""
        for tile in self.tiles():
            u = self.meet(tile.of(self.q), tile)
            w = self.hide(series(self.factors, u, out=torch.empty_like(u)), tile)
            n = w @ self.v[tile.lanes, : tile.end]
            tile.put(n[..., :-1], out)
            tile.put(n[..., -1:], d[..., None])

    def backward(self, g: Tensor, inverse: Tensor, dq: Tensor) -> tuple[Tensor, Tensor]:
        """Write the gradient of q; return those of k and v."""
        g = g * inverse[..., None]
        dk, dv = torch.zeros_like(self.k), torch.zeros_like(self.v[..., :-1])
        for tile in self.tiles():
            q, g_tile = tile.of(self.q), tile.of(g)
            k, v = self.k[tile.lanes, : tile.end], self.v[tile.lanes, : tile.end, :-1]
            u = self.meet(q, tile)
            w = self.hide(series(self.factors, u, out=torch.empty_like(u)), tile)
            dv[tile.lanes, : tile.end].baddbmm_(w.mT, g_tile)
            # g.v - g.out, with g.out from the same g.v: where few keys are seen nothing is left.
            pairs = g_tile @ v.mT
            pairs -= w.mul_(pairs).sum(-1, keepdim=True).mul_(tile.of(inverse[..., None]))
            pairs = self.hide(pairs.mul_(series(self.slopes, u, out=w)), tile)
            tile.put(pairs @ k, dq)
            dk[tile.lanes, : tile.end].baddbmm_(pairs.mT, q)
        return dk, dv
