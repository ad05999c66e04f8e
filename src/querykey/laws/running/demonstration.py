"""A small language model with a leak in one layer, to show what a check finds."""

from __future__ import annotations

import torch
from torch import nn

LEAK = """
seen = torch.ones(T, T, dtype=torch.bool).tril(self.ahead)   # ahead is 0, and 1 in one layer
scores = (q @ k.mT / width**0.5).masked_fill(~seen, float("-inf"))
"""


class Layer(nn.Module):
    """One head of attention; `ahead` is how many later tokens it sees: none, if it is right."""

    def __init__(self, width: int, ahead: int):
        super().__init__()
        self.ahead = ahead
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x + attention(norm(x)), as in a usual block."""
        q, k, v = self.project(self.norm(x)).chunk(3, -1)
        seen = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril(self.ahead)
        scores = (q @ k.mT / x.size(-1) ** 0.5).masked_fill(~seen, float("-inf"))
        return x + self.out(scores.softmax(-1) @ v)


def leaky_model() -> nn.Module:
    """Return a model of three layers, the second of which sees one token too many."""
    layers = [Layer(32, ahead) for ahead in (0, 1, 0)]
    return nn.Sequential(nn.Embedding(100, 32), *layers, nn.Linear(32, 100))
