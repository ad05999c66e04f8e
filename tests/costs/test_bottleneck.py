"""What a cost is spent on: document 001's question, and shares that sum to one."""

import pytest
import sympy
from torch import nn

import querykey as qk


class Attention(nn.Module):
    """Multi-head attention whose products of scores belong to the module itself."""

    def __init__(self, width):
        super().__init__()
        self.maps, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.maps(x).chunk(3, -1)
        return self.out((q @ k.mT).softmax(-1) @ v)


def test_projections_are_the_bottleneck_of_wide_models_and_scores_that_of_long_sequences():
    report = qk.cost(Attention, qk.array("b", "t", "width"))
    assert [part.module for part in report.bottleneck(growing="width")] == ["maps", "out"]
    assert [part.share for part in report.bottleneck(growing="width")] == [
        sympy.Rational(3, 4), sympy.Rational(1, 4),
    ]  # fmt: skip
    (scores,) = report.bottleneck(growing="t")
    assert (scores.module, scores.share) == ("", 1)


def test_shares_at_sizes_are_exact_and_sum_to_one():
    model = nn.Sequential(*(Attention(6) for _ in range(4)))
    report = qk.cost(model, qk.array("b", "t", 6), attention="math")
    parts = {part.module: part.share for part in report.bottleneck(b=2, t=9)}
    # per token and layer: 6*18, 6*6, and 2*9*6 multiply-adds
    assert parts == {
        "*": sympy.Rational(108, 252), "*.maps": sympy.Rational(108, 252),
        "*.out": sympy.Rational(36, 252),
    }  # fmt: skip
    parameters = report.bottleneck(of="params", b=2, t=9)
    assert sum(part.share for part in parameters) == 1
    assert str(parameters[0]) == "*.maps: 75.0%"
    with pytest.raises(qk.CostError, match="modules have no `span`"):
        report.bottleneck(of="span")
    with pytest.raises(qk.CostError, match="there is no size `seq`"):
        report.bottleneck(growing="seq")
