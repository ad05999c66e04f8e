"""The buffers of chunked kernel attention: one chunk of queries and keys, tokens last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from querykey.backends.chunked_features import Rows, series


class Chunk:
    """The buffers for one chunk of queries and keys in some lanes, used again for every chunk.

    The queries of all heads that share a key head stand side by side: (lanes, rows, heads * size).
    Views are made here, once, since making one costs as much as a small product.
    """

    def __init__(self, make: Callable[[Tensor], Rows], shape: Sequence[int], like: Tensor):
        lanes, self.heads, self.size, key_dim, value_dim = shape
        many = self.heads * self.size
        self.q, self.k = (like.new_empty(lanes, key_dim, n) for n in (many, self.size))
        self.n = like.new_empty(lanes, value_dim + 1, many)  # n' forward, g' backward
        self.v = like.new_ones(lanes, value_dim + 1, self.size)
        self.u, self.w, self.e = (like.new_empty(lanes, self.size, many) for _ in range(3))
        self.q_rows = make(self.q)
        # Queries and keys take turns in one buffer where they can: it then stays in the cache.
        self.shared = self.q_rows.closed and self.heads == 1
        self.k_rows = self.q_rows if self.shared else make(self.k)
        self.sums = like.new_empty(lanes, value_dim + 1, self.q_rows.values.shape[1])
        self.offset = like.new_full((1, 1, 1), self.q_rows.shift)
        self.visible = like.new_ones(self.size, self.size).triu_().repeat(1, self.heads)
        self.q_tokens = self.q.unflatten(-1, (self.heads, self.size))
        self.n_tokens = self.n.unflatten(-1, (self.heads, self.size))
        self.v_tokens, self.ones = self.v[:, :-1], self.v[:, -1]

    def load_queries(self, q: Tensor) -> None:
        """Take queries (lanes, key_dim, heads, n)."""
        put(self.q_tokens, q)
        if not self.shared:
            self.q_rows.fill(self.q)

    def load_keys(self, k: Tensor, v: Tensor, real: Tensor | None) -> None:
        """Take keys and values (lanes, ..., n); one that is not real becomes nothing at all."""
        put(self.k, k)
        put(self.v_tokens, v)
        self.ones.fill_(1)
        count = k.shape[-1]
        if real is not None:
            hidden = ~real[:, None]
            self.k[..., :count].masked_fill_(hidden, 0)
            self.v[..., :count].masked_fill_(hidden, 0)
        if count < self.size:
            self.ones[:, count:] = 0
        if not self.shared:
            self.k_rows.fill(self.k)

    def load_gradient(self, g: Tensor, minus_go: Tensor, inverse: Tensor) -> None:
        """Take g and -g.out of the queries and make g'."""
        count = g.shape[-1]
        tokens = self.n_tokens[..., :count]
        torch.mul(g, inverse[:, None], out=tokens[:, :-1])
        torch.mul(minus_go, inverse, out=tokens[:, -1])
        self.n_tokens[..., count:] = 0

    def phi_q(self) -> Tensor:
        """Return the rows of the queries."""
        if self.shared:
            self.q_rows.fill(self.q)
        return self.q_rows.values

    def phi_k(self) -> Tensor:
        """Return the rows of the keys."""
        if self.shared:
            self.k_rows.fill(self.k)
        return self.k_rows.values

    def met_q(self) -> Tensor:
        """Return what of the queries meets the keys within a chunk."""
        return self.q if self.q_rows.closed else self.q_rows.values

    def met_k(self) -> Tensor:
        """Return what of the keys meets the queries within a chunk."""
        return self.k if self.k_rows.closed else self.k_rows.values

    def pairs(self) -> Tensor:
        """Return u = scale q.k + shift for every key and query of the chunk."""
        k, q = self.met_k().mT, self.met_q()
        return torch.baddbmm(self.offset, k, q, beta=1, alpha=self.q_rows.scale, out=self.u)

    def weights(self, u: Tensor) -> Tensor:
        """Return w = f(u) where the key is visible and 0 elsewhere (lanes, keys, queries)."""
        return series(self.q_rows.factors, u, out=self.w).mul_(self.visible)

    def pair_gradient(self, u: Tensor) -> Tensor:
        """Return the gradient of q.k: scale f'(u) g'.v' where visible and 0 elsewhere."""
        slopes = series(self.q_rows.slopes, u, out=self.w)
        return torch.bmm(self.v.mT, self.n, out=self.e).mul_(slopes).mul_(self.visible)

    def weighted(self, sums: Tensor, more: Tensor | None = None) -> Tensor:
        """Return the sums times the weights of the rows, plus `more`."""
        weights = self.q_rows.weights
        if weights is None:
            return sums if more is None else torch.add(sums, more, out=self.sums)
        if more is None:
            return torch.mul(sums, weights, out=self.sums)
        return torch.addcmul(more, sums, weights, out=self.sums)


def put(buffer: Tensor, tokens: Tensor) -> None:
    """Copy tokens (last axis) to the front of a buffer, and zeros behind them."""
    count = tokens.shape[-1]
    if count == buffer.shape[-1]:
        buffer.copy_(tokens)
    else:
        buffer[..., :count].copy_(tokens)
        buffer[..., count:] = 0


@dataclass
class Lanes:
    """What a pass reads, for the lanes of one chunk object, tokens last.

    q (lanes, key_dim, heads, T), k (lanes, key_dim, S), v (lanes, value_dim, S), real (lanes, S);
    for gradients also g like q, minus_go and inverse = 1/d (lanes, heads, T).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    real: Tensor | None
    g: Tensor | None = None
    minus_go: Tensor | None = None
    inverse: Tensor | None = None

    def load(self, chunk: Chunk, queries: slice | None, keys: slice | None) -> None:
        """Copy one step's tokens into the chunk's buffers."""
        if keys is not None:
            real = None if self.real is None else self.real[:, keys]
            chunk.load_keys(self.k[..., keys], self.v[..., keys], real)
        if queries is not None:
            chunk.load_queries(self.q[..., queries])
            if self.g is not None and self.minus_go is not None and self.inverse is not None:
                at = (..., queries)
                chunk.load_gradient(self.g[at], self.minus_go[at], self.inverse[at])
