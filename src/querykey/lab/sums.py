"""Kernel attention as two torch modules, for `qk.cost`: by sums over keys, and by weights."""

from __future__ import annotations

from torch import Tensor, nn

from querykey.attention import Quadratic


class SummedKeys(nn.Module):
    """Equation (11) of document 004 with the quadratic kernel: no matrix of weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Let x (batch, N, D) attend to itself."""
        features = Quadratic()(x)
        sums = features.transpose(1, 2) @ x
        total = features.sum(1, keepdim=True).transpose(1, 2)
        return (features @ sums) / (features @ total)


class FormedWeights(nn.Module):
    """The same outputs by way of all N^2 weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Let x (batch, N, D) attend to itself."""
        features = Quadratic()(x)
        similarity = features @ features.transpose(1, 2)
        return (similarity / similarity.sum(-1, keepdim=True)) @ x
