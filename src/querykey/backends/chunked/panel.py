"""The buffers of chunked kernel attention: some chunks of queries and keys, tokens last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from querykey.backends.chunked.decay import ChunkGates
from querykey.backends.chunked.features import Rows, series


@dataclass(frozen=True)
class PanelSizes:
    """How much is worked on at a time: `parts` successive chunks of `size` tokens in some lanes.

    The queries of the `heads` that share a key head stand side by side in a chunk.
    """

    lanes: int
    parts: int
    size: int
    heads: int
    key_dim: int
    value_dim: int


class Panel:
    """Successive chunks of queries and keys, side by side like lanes, used again for every panel.

    Chunks depend on each other through their sums alone, so all else is done for a whole panel in
    one call, and the more a call does the less it matters that it is made from Python. For the
    same reason views are made once, here.
    """

    def __init__(self, make: Callable[[Tensor], Rows], sizes: PanelSizes, like: Tensor):
        lanes, parts, size, heads = sizes.lanes, sizes.parts, sizes.size, sizes.heads
        both, many, wide = lanes * parts, heads * size, sizes.value_dim + 1
        self.sizes, self.tracked = sizes, False
        self.gates: ChunkGates | None = None  # of the tokens that are loaded, if they decay
        self.spare_gates: ChunkGates | None = None
        self.q, self.k = (like.new_empty(both, sizes.key_dim, n) for n in (many, size))
        self.n, self.v = (like.new_empty(both, wide, n) for n in (many, size))  # n' or g', v'
        self.u, self.w, self.e = (like.new_empty(both, size, many) for _ in range(3))
        self.q_rows = make(self.q)
        # Queries and keys take turns in one buffer where they can: it then stays in the cache.
        self.shared = self.q_rows.closed and heads == 1
        self.k_rows = self.q_rows if self.shared else make(self.k)
        self.offset = like.new_full((1, 1, 1), self.q_rows.shift)
        self.visible = like.new_ones(size, size).triu_().repeat(1, heads)
        rows = self.q_rows.values.shape[1]
        self.sums, self.gains = (like.new_empty(both, wide, rows) for _ in range(2))
        self.sums_of, self.gains_of = (
            x.unflatten(0, (lanes, parts)).unbind(1) for x in (self.sums, self.gains)
        )
        self.q_tokens, self.n_tokens = self._as_queries(self.q), self._as_queries(self.n)
        self.k_tokens, self.v_tokens = (
            x.view(lanes, parts, x.shape[1], size).transpose(1, 2) for x in (self.k, self.v)
        )

    def _as_queries(self, x: Tensor) -> Tensor:
        """View a buffer the way queries come: (lanes, rows, heads, parts, size)."""
        sizes = self.sizes
        x = x.view(sizes.lanes, sizes.parts, x.shape[1], sizes.heads, sizes.size)
        return x.permute(0, 2, 3, 1, 4)

    def track(self) -> None:
        """Get ready for gradients, once."""
        if self.tracked:
            return
        self.tracked = True
        self.q_rows.track()
        if not self.shared:
            self.k_rows.track()
        self.inverse = torch.empty_like(self.n[:, :1])
        self.inverse_tokens = self._as_queries(self.inverse)
        self.to_q, self.to_k = torch.empty_like(self.paired_q()), torch.empty_like(self.paired_k())
        self.to_v = torch.empty_like(self.v)

    def load_queries(self, q: Tensor) -> None:
        """Take queries (lanes, key_dim, heads, n)."""
        put(self.q_tokens, q)
        if not self.shared:
            self.q_rows.fill(self.q)

    def load_keys(self, k: Tensor, v: Tensor, real: Tensor | None) -> None:
        """Take keys and values (lanes, ..., n); one that is not real becomes nothing at all."""
        put(self.k_tokens, k)
        put(self.v_tokens[:, :-1], v)
        self.v[:, -1] = 1
        if real is not None or k.shape[-1] < self.sizes.parts * self.sizes.size:
            exists = k.new_ones(len(k), 1, k.shape[-1], dtype=torch.bool)
            if real is not None:
                exists &= real[:, None]
            padded = torch.zeros_like(self.v_tokens[:, :1], dtype=torch.bool)
            put(padded, exists)
            self.k_tokens.masked_fill_(~padded, 0)
            self.v_tokens.masked_fill_(~padded, 0)
        if not self.shared:
            self.k_rows.fill(self.k)

    def load_gates(self, log_gates: Tensor | None) -> None:
        """Take the logarithms (lanes, n) of the keys' gates, or None where nothing decays."""
        if log_gates is None:
            self.gates = None
            return
        if self.spare_gates is None:
            sizes = self.sizes
            self.spare_gates = ChunkGates(sizes.lanes, sizes.parts, sizes.size, self.u)
            self.v_at_end, self.n_at_start = torch.empty_like(self.v), torch.empty_like(self.n)
        self.gates = self.spare_gates
        put(self.gates.tokens, log_gates)
        self.gates.update()

    def load_gradient(self, g: Tensor, minus_go: Tensor, inverse: Tensor) -> None:
        """Take g (lanes, value_dim, heads, n), -g.out and 1/d of the queries, and make g'."""
        put(self.n_tokens[:, :-1], g)
        put(self.n_tokens[:, -1:], minus_go[:, None])
        put(self.inverse_tokens, inverse[:, None])
        self.n.mul_(self.inverse)

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

    def paired_q(self) -> Tensor:
        """Return what of the queries meets the keys within a chunk."""
        return self.q if self.q_rows.closed else self.q_rows.values

    def paired_k(self) -> Tensor:
        """Return what of the keys meets the queries within a chunk."""
        return self.k if self.k_rows.closed else self.k_rows.values

    def pairs(self) -> Tensor:
        """Return u = scale q.k + shift for every key and query of each chunk."""
        k, q = self.paired_k().mT, self.paired_q()
        return torch.baddbmm(self.offset, k, q, beta=1, alpha=self.q_rows.scale, out=self.u)

    def weights(self, u: Tensor) -> Tensor:
        """Return w = f(u) where the key is visible and 0 elsewhere (..., keys, queries)."""
        return self._hide(series(self.q_rows.factors, u, out=self.w))

    def pair_gradient(self, u: Tensor) -> Tensor:
        """Return the gradient of q.k: scale f'(u) g'.v' where visible and 0 elsewhere."""
        slopes = series(self.q_rows.slopes, u, out=self.w)
        return self._hide(torch.bmm(self.v.mT, self.n, out=self.e).mul_(slopes))

    def _hide(self, pairs: Tensor) -> Tensor:
        """Multiply pairs (..., keys, queries) by what gates leave of them, 0 where hidden."""
        if self.gates is None:
            return pairs.mul_(self.visible)
        by_head = pairs.view(*pairs.shape[:2], self.sizes.heads, -1)
        by_head.mul_(self.gates.between[:, :, None])
        return pairs

    def gated_v(self) -> Tensor:
        """Return v' times what is left of each key at the end of its chunk."""
        return self.v if self.gates is None else self.to_end(self.v, out=self.v_at_end)

    def gated_n(self) -> Tensor:
        """Return n', or g', times what is left for each query of the sums before its chunk."""
        return self.n if self.gates is None else self.since_start(self.n, out=self.n_at_start)

    def to_end(self, v: Tensor, out: Tensor) -> Tensor:
        """Write keys (..., size) times what is left of them at the end of their chunk."""
        return out if self.gates is None else torch.mul(v, self.gates.to_end, out=out)

    def pulls(self) -> Tensor:
        """Return v' . dv' for every key (lanes, parts, size)."""
        return (self.v * self.to_v).sum(1).view(self.sizes.lanes, self.sizes.parts, -1)

    def since_start(self, n: Tensor, out: Tensor) -> Tensor:
        """Write queries (..., heads * size) times what is left of the sums before their chunk."""
        if self.gates is not None:
            by_head, into = (x.view(*n.shape[:2], self.sizes.heads, -1) for x in (n, out))
            torch.mul(by_head, self.gates.since_start[:, :, None], out=into)
        return out

    def collect(self, total: Tensor, more: Tensor | None = None, backwards: bool = False) -> Tensor:
        """Return for every chunk the sums before it, ready to be read; add all gains to `total`.

        Gates take from `total`, and from `more`, in every chunk.
        """
        order = reversed(range(self.sizes.parts)) if backwards else range(self.sizes.parts)
        for part in order:
            self.ready(total, more, out=self.sums_of[part])
            if self.gates is None:
                total.add_(self.gains_of[part])
                continue
            whole = self.gates.whole[part]
            torch.addcmul(self.gains_of[part], total, whole, out=total)
            if more is not None:
                more.mul_(whole)
        return self.sums

    def repeat(self, total: Tensor, more: Tensor | None = None) -> Tensor:
        """Return the same sums for every chunk, ready to be read."""
        for part in range(self.sizes.parts):
            self.ready(total, more, out=self.sums_of[part])
        return self.sums

    def ready(self, total: Tensor, more: Tensor | None, out: Tensor) -> Tensor:
        """Return sums times the weights of the rows, plus `more`."""
        torch.mul(total, self.q_rows.weights, out=out)
        return out if more is None else out.add_(more)


def put(buffer: Tensor, tokens: Tensor) -> None:
    """Copy tokens (..., n) to the front of a buffer (..., parts, size), and zeros behind them."""
    parts, size = buffer.shape[-2:]
    whole, rest = divmod(tokens.shape[-1], size)
    buffer[..., :whole, :].copy_(tokens[..., : whole * size].unflatten(-1, (whole, size)))
    if whole < parts:
        buffer[..., whole, :rest].copy_(tokens[..., whole * size :])
        buffer[..., whole, rest:] = 0
        buffer[..., whole + 1 :, :] = 0


def take(buffer: Tensor, tokens: Tensor) -> None:
    """Copy the front of a buffer (..., parts, size) to tokens (..., n)."""
    size = buffer.shape[-1]
    whole, rest = divmod(tokens.shape[-1], size)
    tokens[..., : whole * size].unflatten(-1, (whole, size)).copy_(buffer[..., :whole, :])
    if rest:
        tokens[..., whole * size :].copy_(buffer[..., whole, :rest])


@dataclass
class Lanes:
    """What a pass reads for the lanes of one panel, tokens last.

    q (lanes, key_dim, heads, T), k (lanes, key_dim, S), v (lanes, value_dim, S), real and the
    logarithms of gates (lanes, S); for gradients also g (lanes, value_dim, heads, T), -g.out and
    1/d (lanes, heads, T).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    real: Tensor | None
    log_gates: Tensor | None = None
    gradient: tuple[Tensor, Tensor, Tensor] | None = None

    def load(self, panel: Panel, queries: slice | None, keys: slice | None) -> None:
        """Copy one step's tokens into the panel's buffers."""
        if keys is not None:
            real = None if self.real is None else self.real[:, keys]
            panel.load_keys(self.k[..., keys], self.v[..., keys], real)
        gates = self.log_gates
        panel.load_gates(None if gates is None or keys is None else gates[:, keys])
        if queries is not None:
            panel.load_queries(self.q[..., queries])
            if self.gradient is not None:
                panel.load_gradient(*(x[..., queries] for x in self.gradient))
