"""What is found out about a model: one frozen value, made once, which no law changes."""

from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest
import torch
from torch import nn

import querykey as qk
from querykey.laws import LAWS, ModelFacts
from querykey.laws.check import as_subject
from querykey.laws.judge import judge
from querykey.laws.run import Setting
from querykey.laws.understanding import facts as module
from querykey.laws.understanding.understand import understand


class Decoder(nn.Module):
    """A causal layer with a padding mask, positions and a cache, all under usual names."""

    def __init__(self):
        super().__init__()
        self.window_size = 6
        self.embed, self.place = nn.Embedding(43, 16), nn.Embedding(200, 16)

    def forward(self, ids, attention_mask=None, position_ids=None, past=None, use_cache=None):
        start = 0 if past is None else past.shape[1]
        if position_ids is None:
            position_ids = torch.arange(start, start + ids.shape[1]).expand_as(ids)
        x = self.embed(ids) + self.place(position_ids)
        seen = x if past is None else torch.cat([past, x], 1)
        visible = torch.ones(seen.shape[1], seen.shape[1], dtype=torch.bool).tril()[start:]
        if attention_mask is not None:
            visible = visible & attention_mask.bool()[:, None, :]
        scores = (x @ seen.mT / 4).masked_fill(~visible, torch.finfo(x.dtype).min)
        out = x + scores.softmax(-1) @ seen
        return {"logits": out, "past": seen}


@pytest.fixture(scope="module")
def runner():
    return understand(as_subject(Decoder(), None, None))


def test_what_a_model_is_is_found_by_trying(runner):
    facts = runner.facts
    assert facts.kind == "decoder"
    assert facts.intent.why == "no position looks ahead"
    assert [mask.name for mask in facts.masks] == ["attention_mask"]
    assert facts.masks[0].names_real
    assert facts.arguments.positions.name == "position_ids"
    assert facts.arguments.flags == ("use_cache",)
    assert facts.cache.argument == "past"
    assert facts.cache.source == ("past",)
    assert facts.spans == (6,)
    assert facts.rounding.wide
    assert facts.threshold == 1e-6


def test_facts_cannot_be_changed_and_hold_at_most_six_fields(runner):
    kinds = [kind for kind in vars(module).values() if is_dataclass(kind)]
    assert ModelFacts in kinds
    assert [kind.__name__ for kind in kinds if len(fields(kind)) > 6] == []
    assert all(kind.__dataclass_params__.frozen for kind in kinds)
    with pytest.raises(FrozenInstanceError):
        runner.facts.spans = ()


def test_no_law_changes_what_is_known(runner):
    facts = runner.facts
    before = repr(facts)
    verdicts = {judge(runner, law).verdict for law in LAWS}
    assert "violated" not in verdicts
    assert runner.facts is facts
    assert repr(facts) == before


def test_supposing_other_facts_leaves_the_runner_as_it_was(runner):
    answers = len(runner.answers)
    other = runner.supposing(ModelFacts(runner.signature))
    setting = Setting(batch=2, length=7)
    assert other.attempt(other.inputs(setting), setting) is not None
    assert runner.facts.cache is not None
    assert other.facts.cache is None
    assert len(runner.answers) == answers


class MaskedWords(nn.Module):
    """An encoder whose padding mask is named after what it hides."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(40, 16), nn.Linear(16, 5)

    def forward(self, words, words_mask=None):
        x = self.table(words)
        scores = x @ x.mT / 4
        if words_mask is not None:
            scores = scores.masked_fill(~words_mask.bool()[:, None], -1e9)
        return self.out(scores.softmax(-1) @ x)


def test_a_mask_is_found_by_the_name_of_what_it_hides():
    report = qk.check(MaskedWords(), laws=["padding"])
    assert report.law("padding.right").verdict == "holds"
