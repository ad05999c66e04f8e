"""Gates between tokens: sim(q_i, k_j) is multiplied by exp(log_g[j + 1] + ... + log_g[i]).

Every log_g is at most 0. With G the running sum of log_g, that factor is exp(G_i - G_j), which is
never the exponential of a positive number. Running sums are in float64: after a strong gate G is
large, and the differences between the tokens behind it are small.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOOR = -750.0  # exp of less is 0 in any dtype; infinities would cancel to NaN
BLOCK = 16  # queries of a chunk that share what gates leave of the keys before them


def log_gates(decay: Tensor, real: Tensor | None) -> Tensor:
    """Return log_g (lanes, S) in float64, finite, and 0 for tokens that are not real."""
    gates = decay.double()
    if real is not None:
        gates = gates.masked_fill(~real, 0)
    return gates.clamp(min=FLOOR)


def decay_gradient(pulls: Tensor, before: Tensor | None, real: Tensor | None) -> Tensor:
    """Return the gradient of log_g (lanes, S).

    `pulls` (lanes, S) is v'_j . dv'_j, the sum of w_ij dw_ij over the queries i that see key j, and
    `before` (lanes,) is the same for the sums of the past. The gate of token t is a factor of every
    w_ij with j < t <= i. Over the keys j < t the pulls sum up these, and those of earlier queries,
    i < t, too; but an output is a ratio, so that for each query w_ij dw_ij sums up to 0.

    Roundings of the pulls add up along the sequence. In float32 this gradient errs more than one
    that multiplies the gates pair by pair: six times as much was seen at 1200 tokens.
    """
    hidden = pulls.new_zeros((), dtype=torch.bool) if real is None else ~real
    pulls = pulls.double().masked_fill(hidden, 0)
    gradient = pulls.cumsum(-1).sub_(pulls)
    if before is not None:
        gradient += before[:, None]
    else:
        # All pulls sum up to 0, but for rounding. What they do sum up to is taken off again, from
        # each as much as its square is of all squares. In float32 this mostly lowers the error, by
        # up to a half.
        squares = pulls.square()
        share = squares.cumsum(-1).sub_(squares)
        share /= squares.sum(-1, keepdim=True).clamp(min=torch.finfo(squares.dtype).tiny)
        gradient -= share * pulls.sum(-1, keepdim=True)
    return gradient.masked_fill_(hidden, 0)


class ChunkGates:
    """The factors that gates put between the tokens of successive chunks, used again like a panel.

    `between` (chunks, keys, queries) is exp(G_i - G_j), and 0 where key j comes after query i;
    `since_start` (chunks, 1, tokens) is exp(G_i), which is left of the sums before a chunk, and
    `to_end` (chunks, 1, tokens) is exp(G_last - G_j), which is left of key j in the sums after it.

    Exponentials are slow, and a chunk has many pairs. So queries are taken in blocks of `BLOCK`,
    beginning at token b: before b, exp(G_i - G_j) is exp(G_i - G_b) times exp(G_b - G_j).
    """

    def __init__(self, lanes: int, parts: int, size: int, like: Tensor):
        chunks, blocks = lanes * parts, -(-size // BLOCK)
        self.log_gates = like.new_zeros(lanes, parts, blocks * BLOCK, dtype=torch.float64)
        self.tokens = self.log_gates[..., :size]
        self.running = torch.empty_like(self.log_gates)
        place = torch.arange(blocks * BLOCK, device=like.device)
        self.before = (place[:, None] < place[::BLOCK]).to(like)  # (keys, blocks)
        self.visible = like.new_ones(BLOCK, BLOCK).triu_()
        pairs = like.new_zeros(chunks, blocks, BLOCK, blocks, BLOCK)
        self.by_block = pairs.view(chunks, blocks * BLOCK, blocks, BLOCK)
        self.own_block = pairs.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
        self.between = pairs.view(chunks, blocks * BLOCK, blocks * BLOCK)[:, :size, :size]
        self.since_start, self.to_end = (like.new_empty(chunks, 1, size) for _ in range(2))
        self.whole = self.since_start.view(lanes, parts, size)[..., -1:, None].unbind(1)

    def update(self) -> None:
        """Make the factors from the log_g in `tokens`."""
        torch.cumsum(self.log_gates, -1, out=self.running)
        size = self.tokens.shape[-1]
        by_token = self.running.flatten(0, 1)
        running = by_token.unflatten(-1, (-1, BLOCK))
        first = running[..., :1]
        to_block = self._exp(first[..., 0][:, None] - by_token[..., None]).mul_(self.before)
        torch.mul(to_block[..., None], self._exp(running - first)[:, None], out=self.by_block)
        own = self._exp(running[:, :, None] - running[..., None])
        self.own_block.copy_(own.mul_(self.visible))
        self.since_start[:, 0] = self._exp(by_token[:, :size])
        self.to_end[:, 0] = self._exp(by_token[:, size - 1 : size] - by_token[:, :size])

    def _exp(self, differences: Tensor) -> Tensor:
        """Return the exponentials; where a difference is above 0, and to be hidden, return 1."""
        return differences.clamp(max=0).to(self.between.dtype).exp_()
