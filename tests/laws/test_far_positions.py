"""Positions beyond what half precision counts one by one: told in a call, or kept in a table."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from querykey.laws import check

WIDTH, HALF, WORDS = 24, 3, 53
RATES = 100.0 ** -(torch.arange(HALF) / HALF)


def table(counted_in, length=700):
    """Sines and cosines of positions that were counted in a precision."""
    angles = torch.arange(length).to(counted_in).float()[:, None] * RATES
    return torch.stack([angles.cos(), angles.sin()], -1).flatten(1)


class Rotary(nn.Module):
    """A causal layer with rotary positions, whose angles are made in one of several ways."""

    angles: torch.Tensor

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        if isinstance(way, torch.dtype):
            self.register_buffer("angles", table(way), persistent=False)

    def turns(self, positions, x):
        if isinstance(self.way, torch.dtype):
            cos, sin = self.angles[positions].unflatten(-1, (HALF, 2)).unbind(-1)
        else:
            counted = positions.to(x.dtype) if self.way == "as the tokens" else positions.double()
            angles = counted[..., None] * RATES.to(counted.dtype)
            cos, sin = angles.cos(), angles.sin()
        return torch.complex(cos.double(), sin.double())[:, None]

    def forward(self, ids, position_ids=None):
        x = self.words(ids)
        if position_ids is None:
            position_ids = torch.arange(ids.size(1)).expand(len(ids), -1)
        turns = self.turns(position_ids, x)
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        q, k = (
            torch.view_as_real(torch.view_as_complex(t.double().unflatten(-1, (HALF, 2))) * turns)
            .flatten(-2)
            .to(x.dtype)
            for t in (q, k)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("as the tokens", "positions from 4096 on give the answers of these positions rounded to"),
        (torch.bfloat16, "its table `angles` has the same row for positions 256 and 257"),
    ],
    ids=str,
)
def test_positions_that_half_precision_rounds_are_told(way, words):
    finding = check(Rotary(way), laws=["dtype.agree"]).law("dtype.agree")
    assert finding.verdict == "violated"
    assert words in finding.note


@pytest.mark.parametrize("way", ["in double", torch.float32, torch.float64], ids=str)
def test_positions_that_are_counted_exactly_are_lawful(way):
    assert check(Rotary(way), laws=["dtype.agree"]).law("dtype.agree").verdict == "holds"


class Counting(nn.Module):
    """The same where forward is told no positions and counts them itself."""

    def __init__(self, counted_in):
        super().__init__()
        self.counted_in, self.told = counted_in, Rotary("in double")

    def forward(self, ids):
        places = torch.arange(ids.size(1), dtype=self.counted_in or self.told.words.weight.dtype)
        return self.told(ids, places.expand(len(ids), -1))


@pytest.mark.parametrize(
    ("counted_in", "verdict"),
    [(None, "violated"), (torch.float32, "holds"), (torch.long, "holds")],
    ids=str,
)
def test_positions_that_a_model_counts_itself_are_tried_far_on(counted_in, verdict):
    finding = check(Counting(counted_in), laws=["dtype.agree"]).law("dtype.agree")
    assert finding.verdict == verdict
    assert ("positions are counted in bfloat16" in finding.note) is (verdict == "violated")


@pytest.mark.parametrize("name", ["repeated from the start", "zeros and ones", "beyond one"])
def test_other_tables_with_equal_rows_are_left_alone(name):
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS))
    rows = {
        "repeated from the start": table(torch.float32).repeat_interleave(4, 0),
        "zeros and ones": (torch.arange(600)[:, None] > 200).float().expand(-1, 4),
        "beyond one": table(torch.bfloat16) * 3,
    }[name]
    model.register_buffer("rows", rows)
    assert check(model, laws=["dtype.agree"]).law("dtype.agree").verdict == "holds"
