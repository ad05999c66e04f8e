"""The source of an attention layer that sees `ahead` later tokens, for tests that write models."""

LAYER = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, ahead):
        super().__init__()
        self.ahead, self.mix = ahead, nn.Linear(16, 16)

    def forward(self, x):
        seen = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril(self.ahead)
        scores = (x @ self.mix(x).mT / 4).masked_fill(~seen, float("-inf"))
        return x + scores.softmax(-1) @ x
"""
