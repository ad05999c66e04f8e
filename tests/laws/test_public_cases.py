"""Defects that were reported in public, rebuilt small. Each is lawful when its switch is off."""

import pytest
import torch
from torch import nn

from querykey.laws import check


class Decoder(nn.Module):
    """A decoder of one layer whose `fault` brings one public defect back."""

    def __init__(self, fault="", width=24, heads=3, window=6, dropout=0.1):
        super().__init__()
        self.fault, self.heads, self.window, self.dropout = fault, heads, window, dropout
        self.embed, self.place = nn.Embedding(47, width), nn.Embedding(64, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.head = nn.Linear(width, 47)

    def forward(self, ids, attention_mask=None, past=None):
        B, T = ids.shape
        old = 0 if past is None else past[0].size(2)
        real = (
            torch.ones(B, old + T, dtype=torch.long) if attention_mask is None else attention_mask
        )
        places = (real.cumsum(1) - 1).clamp(min=0)[:, old:]
        if self.fault == "left padding without position ids":
            places = torch.arange(old, old + T)
        x = self.embed(ids) + self.place(places)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        query, key = torch.arange(old, old + T)[:, None], torch.arange(old + T)
        reach = self.window + (self.fault == "off-by-one window in the cache" and old > 0)
        seen = ((key <= query) & (key > query - reach))[None, None]
        seen = seen & real[:, None, None].bool()
        if self.fault == "causal mask skipped without a mask" and attention_mask is None:
            seen = torch.ones_like(seen)
        if self.fault == "mask dropped with dropout" and self.training and self.dropout > 0:
            seen = torch.ones_like(seen)
        scores = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(~seen, torch.finfo(x.dtype).min)
        weights = nn.functional.dropout(scores.softmax(-1), self.dropout, self.training)
        return self.head(self.out((weights @ v).transpose(1, 2).flatten(2))), (k, v)


class Recurrent(nn.Module):
    """A recurrence whose prompt may come in chunks."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault, self.embed = fault, nn.Embedding(43, 16)
        self.core, self.head = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 43)

    def forward(self, ids, state=None):
        if self.fault and ids.size(1) > 1:
            state = None
        x, state = self.core(self.embed(ids), state)
        return self.head(x), state


CASES = [
    # keras 21284 and 23038, transformers 48745: attention to the future by default arguments
    (Decoder, "causal mask skipped without a mask", "causality.perturb"),
    # xformers 103: the mask is lost on the path that training takes
    (Decoder, "mask dropped with dropout", "causality.perturb"),
    # transformers 22161, 29029: left padding moves absolute positions
    (Decoder, "left padding without position ids", "padding.left"),
    # transformers pull request 46741: a later chunk of the prompt starts afresh
    (Recurrent, "chunked prefill restarts the state", "cache.chunk"),
    # candle pull request 3743: the window is one longer once there is a cache
    (Decoder, "off-by-one window in the cache", "cache.step"),
]


@pytest.mark.parametrize(("model", "fault", "law"), CASES, ids=lambda each: str(each)[:30])
def test_a_public_case_is_found(model, fault, law):
    report = check(model(fault))
    assert report.law(law).verdict == "violated", str(report)


@pytest.mark.parametrize("model", [Decoder, Recurrent])
def test_without_the_defect_no_law_is_broken(model):
    report = check(model())
    assert report.violations == [], str(report)
    assert report.law("causality.perturb").verdict == "holds"
    assert report.law("cache.step").verdict == "holds"
    assert report.law("cache.chunk").verdict == "holds"


def test_a_query_that_sees_nothing_is_told():  # pytorch 41508, 103749
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mix = nn.Embedding(31, 12), nn.Linear(12, 12)

        def forward(self, ids, attention_mask=None):
            x = self.embed(ids)
            scores = x @ self.mix(x).mT
            if attention_mask is not None:
                scores = scores.masked_fill(attention_mask[:, None] == 0, float("-inf"))
            return scores.softmax(-1) @ x

    finding = check(Encoder()).law("masked-row")
    assert finding.verdict == "violated"
    assert "are NaN or infinite" in finding.note
