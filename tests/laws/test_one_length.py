"""Models that take one number of tokens and no other: later tokens are changed, and none cut."""

import pytest
import torch
from torch import nn

from querykey.laws import check

WORDS, WIDTH, TOKENS = 31, 12, 17


class Decoder(nn.Module):
    """Positions are added whole and the mask is a table, so that one length is taken alone."""

    def __init__(self, sees=0):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.positions = nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("hidden", torch.ones(TOKENS, TOKENS).triu(sees + 1).bool())

    def forward(self, ids, mask=None):
        x = self.embed(ids) + self.positions
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT / 4).masked_fill(self.hidden, -1e9)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None] == 0, -1e9)
        return self.head(x + scores.softmax(-1) @ v)


class InOneAxis(Decoder):
    def forward(self, ids, mask=None):
        return super().forward(ids, mask).reshape(-1, WORDS)


class NextBlock(nn.Module):
    """Mixes tokens by a table of weights, of which those above the diagonal are taken away."""

    def __init__(self, sees=0):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.mix, self.sees = nn.Parameter(torch.randn(TOKENS, TOKENS)), sees

    def forward(self, tokens):
        return {"scores": self.head(self.mix.tril(self.sees) @ self.embed(tokens))}


class Translator(nn.Module):
    """Scores the next words of a target of 17 tokens, beside a source of 9."""

    def __init__(self, sees=0):
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, WIDTH), NextBlock(sees)
        self.places = nn.Parameter(torch.randn(9, WIDTH))

    def forward(self, source, target):
        scores = self.target(target)["scores"]
        return scores + self.target.head((self.source(source) * self.places).mean(1))[:, None]


EXAMPLES = {
    Translator: {
        "source": torch.zeros(2, 9, dtype=torch.long),
        "target": torch.zeros(2, TOKENS, dtype=torch.long),
    }
}


def causality(model, example=None, kind=None):
    report = check(model, example, kind=kind, laws=["causality", "batch", "determinism"])
    return report, {finding.law: finding.verdict for finding in report.laws}


@pytest.mark.parametrize("kind", [Decoder, InOneAxis, NextBlock, Translator])
def test_later_tokens_are_changed_where_none_can_be_cut_off(kind):
    report, verdicts = causality(kind(), EXAMPLES.get(kind))
    assert "17 tokens in every call" in report.about["input"]
    assert verdicts["causality.perturb"] == verdicts["causality.gradient"] == "holds"
    assert verdicts["batch.alone"] == verdicts["batch.others"] == verdicts["determinism"] == "holds"
    assert report.law("causality.prefix").note == (
        "it takes 17 tokens and no other number, so none can be cut off"
    )
    _, verdicts = causality(kind(sees=1), EXAMPLES.get(kind))
    assert verdicts["causality.perturb"] == verdicts["causality.gradient"] == "violated"


def test_padding_of_one_length_is_changed_and_not_left_out():
    verdicts = {f.law: f.verdict for f in check(Decoder(), laws=["padding"]).laws}
    assert set(verdicts.values()) == {"holds"}


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Decoder()

    def forward(self, ids, labels=None):
        scores = self.net(ids)
        if labels is None:
            return scores, None
        return scores, nn.functional.cross_entropy(scores[:, :-1].mT, labels[:, 1:])


def test_no_law_fails_on_a_model_of_one_length():
    report = check(WithLoss())
    assert {"error", "violated"}.isdisjoint(finding.verdict for finding in report.laws)
    assert report.law("loss.shift").verdict == "holds"


def test_features_are_tokens_where_the_owner_says_so():
    class OfFeatures(Decoder):
        def __init__(self, sees=0):
            super().__init__(sees)
            self.embed = nn.Linear(5, WIDTH)

    example = torch.zeros(2, TOKENS, 5)
    assert causality(OfFeatures(1), example)[1]["causality.perturb"] == "not-applicable"
    assert causality(OfFeatures(1), example, "decoder")[1]["causality.perturb"] == "violated"
    assert causality(OfFeatures(), example, "decoder")[1]["causality.perturb"] == "holds"


def test_an_encoder_of_one_length_is_no_decoder():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mix = nn.Embedding(WORDS, WIDTH), nn.Linear(TOKENS, TOKENS)

        def forward(self, ids):
            return self.mix(self.embed(ids).mT).mT

    example = torch.zeros(2, TOKENS, dtype=torch.long)
    report, verdicts = causality(Encoder(), example)
    assert report.kind == "encoder"
    assert verdicts["causality.perturb"] == "not-applicable"
    assert check(Encoder(), example, laws=["equivariance"]).laws[0].verdict == "not-applicable"


def test_a_classifier_of_one_length_is_left_alone():
    model = nn.Sequential(Decoder(), nn.Flatten(), nn.Linear(TOKENS * WORDS, 5))
    report, verdicts = causality(model, torch.zeros(2, TOKENS, dtype=torch.long))
    assert report.kind == "classifier"
    assert verdicts["causality.perturb"] == "not-applicable"
