"""What one forward pass of document 000's block costs, line by line, as exact formulas.

The text adds up orders; `qk.cost` derives the polynomial of each line from the same code in torch.
Whether the products that the text counts are those that its code forms is read off the graph that
`querykey.ag` records while the text's own code runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from querykey import ag
from querykey.costs import array, cost
from querykey.lab.claim import Claim
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.listings import transformer_block
from querykey.lab.measurement import Chart, Measurement, exact

CLAIMS = (
    Claim("A4", "one forward pass is {value}", "O(n C d^2 + n C^2 d + n C d h)",
          of="order of the forward pass"),
    Claim("A4", "projections cost {value} times n C d^2", 3, of="multiply-adds over n C d^2"),
    Claim("A4", "scores and weighted sum cost {value} times n C^2 d", 2,
          of="multiply-adds over n C^2 d"),
    Claim("A4", "the MLP costs {value} times n C d h", 2, of="multiply-adds over n C d h"),
    Claim("A4", "softmax is O(n C^2): pointwise work over n C^2, for exp, sum and division, is "
          "{value}", 3, of="pointwise operations of the softmax over n C^2"),
    Claim("A4", "of the tensors that the text counts, {value} are never formed by its code", (),
          of="tensors counted and never formed",
          right="There are no Values = X Wv: the code sums X with the weights first and applies Wv "
          "to the sum, which is the same by associativity and costs the same."),
)  # fmt: skip


class Line(nn.Module):
    """One line of the text that multiplies by a weight of its own."""

    def __init__(self, rows: int, columns: int, bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns))
        self.bias = nn.Parameter(torch.randn(columns)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return x W, plus b where there is one."""
        return x @ self.weight if self.bias is None else x @ self.weight + self.bias


class Product(nn.Module):
    """One line of the text that multiplies two computed matrices."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a b."""
        return a @ b


class RawSoftmax(nn.Module):
    """The text's two lines: exp, and division by its sum over keys."""

    def forward(self, scores: Tensor) -> Tensor:
        """Return exp(s) over its sum along axis 1."""
        powers = scores.exp()
        return powers / powers.sum(1, keepdim=True)


class BlockListing(nn.Module):
    """Document 000's block in torch, a module for every line that computes."""

    def __init__(self, d: int, h: int):
        super().__init__()
        self.Queries, self.Keys, self.Wv = Line(d, d), Line(d, d), Line(d, d)
        self.KQ, self.softmaxKQ, self.mixed = Product(), RawSoftmax(), Product()
        self.hidden, self.out = Line(d, h, bias=True), Line(h, d, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, (n, C, d)."""
        scores = self.KQ(self.Keys(x), self.Queries(x).transpose(1, 2))
        mixed = self.mixed(x.transpose(1, 2), self.softmaxKQ(scores))
        return self.out(self.hidden(self.Wv(mixed.transpose(1, 2))).relu())


def tensors_never_formed() -> tuple[str, ...]:
    """Return which tensors of the text's count do not occur while its code runs."""
    block, rng = transformer_block(3, 7, 0), np.random.default_rng(0)
    X = ag.Tensor(rng.standard_normal((5, 4, 3)), label="X")
    att, x = block.att, X.data
    formed = [node.data for node in history(block(X))]
    q, k, v = (x @ w.data for w in (att.Wq, att.Wk, att.Wv))
    scores = k @ q.swapaxes(1, 2)
    powers = np.exp(scores)
    a = powers / powers.sum(1, keepdims=True)
    counted = {
        "Queries": q, "Keys": k, "Values": v, "scores": scores, "weights": a,
        "weighted sum": a.swapaxes(1, 2) @ v,
    }  # fmt: skip
    return tuple(
        name
        for name, value in counted.items()
        if not any(f.shape == value.shape and np.allclose(f, value) for f in formed)
    )


def history(end: ag.Tensor) -> Iterator[ag.Tensor]:
    """Yield every Tensor that one was computed from, itself included."""
    seen, stack = {end}, [end]
    while stack:
        node = stack.pop()
        yield node
        for source, _ in node.edges:
            if source not in seen:
                seen.add(source)
                stack.append(source)


def measure(depth: Depth) -> Measurement:
    """Derive the formulas, and look at the graph of the text's code."""
    depth.tell("deriving the formulas")
    report = cost(BlockListing, array("n", "C", "d"), backward=False)
    n, C, d, h = (report.symbols[name] for name in "nCdh")
    forward = report.flops.forward
    macs = {
        "multiply-adds over n C d^2": forward.coeff(d, 2).coeff(n, 1).coeff(C, 1) / 2,
        "multiply-adds over n C^2 d": forward.coeff(C, 2).coeff(n, 1).coeff(d, 1) / 2,
        "multiply-adds over n C d h": forward.coeff(h, 1).coeff(n, 1).coeff(C, 1).coeff(d, 1) / 2,
    }
    lines = {name: report.modules[name] for name in report.modules if name}
    values = {
        "order of the forward pass": exact(str(report.order("flops.forward"))),
        "FLOPs of the forward pass": exact(str(forward)),
        **{name: exact(int(value)) for name, value in macs.items()},
        "pointwise operations of the softmax over n C^2": exact(
            int((lines["softmaxKQ"].flops.pointwise / (n * C**2)).simplify())
        ),
        "tensors counted and never formed": exact(tensors_never_formed()),
        **{f"FLOPs of the line {name}": exact(str(line.flops.forward or line.flops.pointwise))
           for name, line in lines.items()},
    }  # fmt: skip
    sizes = {"n": 1, "d": 64, "h": 256}
    curves = {
        name: [(2**p, int(line.flops.forward.subs(sizes | {"C": 2**p}))) for p in range(3, 13)]
        for name, line in lines.items()
        if line.flops.forward
    }
    chart = Chart("FLOPs of each line, d = 64, h = 256", "C", "FLOPs", curves, True)
    return Measurement(values, {"lines": chart})


EXPERIMENT = Experiment(
    "flops", "What does each line of the first document's code cost?", CLAIMS, measure
)
