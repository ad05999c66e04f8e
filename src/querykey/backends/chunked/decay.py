"""Gates between tokens: sim(q_i, k_j) is multiplied by exp(log_g[j + 1] + ... + log_g[i]).

Every log_g is at most 0. With G the running sum of log_g, that factor is exp(G_i - G_j), which is
never the exponential of a positive number. Running sums are in float64: after a strong gate G is
large, and the differences between the tokens behind it are small.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOOR = -750.0  # exp of less is 0 in any dtype; infinities would cancel to NaN


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
    """
    hidden = pulls.new_zeros((), dtype=torch.bool) if real is None else ~real
    pulls = pulls.double().masked_fill(hidden, 0)
    gradient = pulls.cumsum(-1).sub_(pulls)
    if before is not None:
        gradient += before[:, None]
    else:
        # All pulls sum up to 0, but for rounding. What they do sum up to is taken off again, from
        # each as much as its square is of all squares: this halves the error in float32.
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
    """

    def __init__(self, lanes: int, parts: int, size: int, like: Tensor):
        self.tokens = like.new_empty(lanes, parts, size, dtype=torch.float64)
        self.running = self.tokens.view(lanes * parts, size)
        self.differences = self.running.new_empty(lanes * parts, size, size)
        self.later = like.new_full((size, size), -torch.inf).tril_(-1)
        self.between = like.new_empty(lanes * parts, size, size)
        self.since_start = like.new_empty(lanes * parts, 1, size)
        self.to_end = self.between[:, None, :, -1]
        self.whole = self.since_start.view(lanes, parts, size)[..., -1:, None].unbind(1)

    def update(self) -> None:
        """Make the factors from the log_g in `tokens`, which is used up."""
        running = self.running.cumsum_(-1)
        torch.sub(running[:, None], running[..., None], out=self.differences)
        self.between.copy_(self.differences).add_(self.later).exp_()
        self.since_start[:, 0].copy_(running).exp_()
