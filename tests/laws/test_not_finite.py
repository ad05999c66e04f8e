"""Weights that are NaN or infinite: told once, with the module that holds them."""

import pytest
import torch
from torch import nn

from querykey.laws import check

LAWS = ["gradient.reaches", "batch.others"]


class Tagger(nn.Module):
    """Embeds, looks back by a running mean, and scores; `unused` is never read."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(31, 12), nn.LayerNorm(12)
        self.mix, self.score = nn.Linear(12, 12), nn.Linear(12, 31)
        self.batch_norm = nn.BatchNorm1d(12)
        self.unused = nn.Parameter(torch.zeros(3, 5))

    def forward(self, ids):
        x = self.norm(self.embed(ids))
        counts = torch.arange(1, x.size(1) + 1)[:, None]
        x = x + self.mix(x).cumsum(1) / counts
        return self.score(self.batch_norm(x.mT).mT)


@pytest.mark.parametrize(
    ("name", "value", "module"),
    [
        ("mix.weight", float("nan"), "mix"),
        ("norm.bias", float("nan"), "norm"),
        ("batch_norm.running_var", float("nan"), "batch_norm"),
        ("score.weight", float("inf"), "score"),
    ],
)
def test_one_number_that_is_not_finite_breaks_a_law(name, value, module):
    model = Tagger().eval()
    model.state_dict()[name].view(-1)[1] = value
    report = check(model, laws=LAWS)
    finding = report.law("gradient.reaches")
    assert (finding.verdict, finding.module) == ("violated", module)
    assert finding.note.startswith("1 of ")
    assert f"numbers of {name} are not finite" in finding.note
    assert check(model, laws=LAWS, weights="own").law("gradient.reaches").verdict == "violated"


def test_what_holds_by_other_weights_says_that_the_models_own_were_not_tried():
    model = Tagger()
    model.state_dict()["mix.weight"].view(-1)[1] = float("nan")
    finding = check(model, laws=LAWS).law("batch.others")
    assert finding.note == "not tried: with the model's own weights: they are not finite"


class NeverTwo(Tagger):
    """Never predicts word 2."""

    def forward(self, ids):
        scores = super().forward(ids).clone()
        scores[..., 2] = float("-inf")
        return scores


@pytest.mark.parametrize("kind", [Tagger, NeverTwo])
@pytest.mark.parametrize("name", ["", "unused"])
def test_finite_weights_and_those_that_nothing_reads_break_nothing(kind, name):
    model = kind()
    if name:
        model.state_dict()[name].view(-1)[1] = float("nan")
    assert check(model, laws=LAWS).violations == []
