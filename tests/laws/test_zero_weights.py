"""Matrices of zeros: one factor of a product may begin so, and two never learn."""

import pytest
import torch
from torch import nn

from querykey.laws import check

WORDS, WIDTH = 37, 8


class Adapter(nn.Module):
    """A layer whose correction is a product of two matrices."""

    def __init__(self, both):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Parameter(torch.zeros(2, WIDTH) if both else torch.randn(2, WIDTH))
        self.up = nn.Parameter(torch.zeros(WIDTH, 2))

    def forward(self, x):
        return self.base(x) + x @ self.down.mT @ self.up.mT


class Gated(nn.Module):
    """A branch behind a gate of zeros, in a model whose last layer begins as zeros too."""

    def __init__(self):
        super().__init__()
        self.gate, self.inner = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, x):
        return x + self.gate(x) * self.inner(x).tanh()


def reaches(*layers):
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    finding = check(model, laws=["gradient.reaches"]).law("gradient.reaches")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    return finding


@pytest.mark.parametrize("both", [False, True])
def test_a_product_of_two_zeros_never_learns(both):
    finding = reaches(Adapter(both), nn.Linear(WIDTH, WORDS))
    assert finding.verdict == ("violated" if both else "holds")
    if both:
        assert finding.module == "1"
        assert "1.down and 1 more are zero" in finding.note


def test_zeros_behind_zeros_learn_one_after_the_other():
    last = nn.Linear(WIDTH, WORDS)
    nn.init.zeros_(last.weight)
    assert reaches(Gated(), Gated(), last).verdict == "holds"
