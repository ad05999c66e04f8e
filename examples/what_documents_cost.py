"""Costs that courses derive by hand, each a module; `qk cost` derives them from the code.

python examples/what_documents_cost.py

qk cost examples/what_documents_cost.py:block --input "array(n,C,d)" --over d,h
qk cost examples/what_documents_cost.py:between_patches --input "array(N,D)" --at N=256,D=512
qk cost examples/what_documents_cost.py:between_channels --input "array(N,D)" --at N=256,D=512
"""

import torch
from torch import nn

import querykey as qk


class SingleHead(nn.Module):
    """Attention with one head, its softmax written out."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.queries, self.keys, self.values = (nn.Parameter(torch.randn(d, d)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.exp(x @ self.keys @ (x @ self.queries).mT)
        weights = weights / weights.sum(1, keepdim=True)
        return (x.mT @ weights).mT @ self.values


def block(d: int, h: int) -> nn.Module:
    """Return attention, then an MLP with h hidden features: n rows of C tokens of d features."""
    return nn.Sequential(SingleHead(d), nn.Linear(d, h), nn.ReLU(), nn.Linear(h, d))


class Products(nn.Module):
    """softmax(x x^T) x over the N rows of x, or over its D columns: no weights of its own."""

    def __init__(self, channels: bool) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.mT if self.channels else x
        out = (x @ x.mT).softmax(-1) @ x
        return out.mT if self.channels else out


def between_patches() -> nn.Module:
    """Return attention between N patches, using all of their D channels."""
    return Products(channels=False)


def between_channels() -> nn.Module:
    """Return attention between D channels, using all of the N patches."""
    return Products(channels=True)


class Softmax(nn.Module):
    """N queries and keys of D features, values of M."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


class Linear(nn.Module):
    """The same with the kernel (q k)^2, whose feature map has D^2 features: no N by N matrix."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k = ((x[:, :, None] * x[:, None]).flatten(1) for x in (q, k))
        return q @ (k.mT @ v) / (q @ k.sum(0))[:, None]


if __name__ == "__main__":
    report = qk.cost(block, qk.array("n", "C", "d"))
    print("a transformer block:", report.flops.forward)
    inputs = qk.array("N", "D"), qk.array("N", "D"), qk.array("N", "M")
    softmax, linear = (qk.cost(model, inputs, backward=False) for model in (Softmax(), Linear()))
    print("softmax attention:  ", softmax.order("flops.forward"))
    print("linear attention:   ", linear.order("flops.forward"))
    print("cost the same at N =", *softmax.compare(linear, "N", D=16, M=16).crossings)
