"""Faults that show only at some place, size or id: each was once told as lawful."""

import pytest
import torch
from tests.laws.planted.cache_guises import Repeating
from tests.laws.strangers import odd_idioms
from tests.laws.strangers.scoring import score
from torch import nn

from querykey.laws import check

WORDS, WIDTH, HEADS = 61, 12, 2


class Decoder(nn.Module):
    """A causal layer of attention, with one fault by name."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault, self.num_heads = fault, HEADS
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids, attention_mask=None):
        T = ids.size(1)
        seen = torch.ones(T, T, dtype=torch.bool).tril().expand(len(ids), HEADS, T, T)
        if self.fault == "a leak beyond 256":
            seen = seen | (torch.arange(T) >= 256)[:, None] & (torch.arange(T) >= 256)
        if self.fault == "2 ends a document":
            number = (ids == 2).cumsum(1)
            seen = seen & (number[:, None, :, None] == number[:, None, None])
        if attention_mask is not None:
            over = attention_mask.bool()
            wrong = self.fault == "a mask over heads" and len(ids) == HEADS
            seen = seen & (over[None, :, None] if wrong else over[:, None, None])
            seen = seen | torch.eye(T, dtype=torch.bool)
        if self.fault == "rare ids are written over":
            ids[ids >= WORDS - 3] = 4
        x = self.embed(ids)
        if self.fault == "high ids are louder":
            x = x * torch.where(ids > WORDS // 2, 2.0, 1.0)[..., None]
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / 2).masked_fill(~seen, float("-inf")).softmax(-1)
        return self.head(x + self.out((weights @ v).transpose(1, 2).flatten(2)))


FAULTS = {
    "a leak beyond 256": "causality.perturb",
    "a mask over heads": "padding.left",
    "2 ends a document": "vocabulary",
    "high ids are louder": "vocabulary",
    "rare ids are written over": "purity",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_one_place_is_told(fault):
    finding = check(Decoder(fault), laws=[FAULTS[fault]], weights="random").law(FAULTS[fault])
    assert (finding.verdict, finding.module) == ("violated", "(model)"), finding


class Started(Decoder):
    """Puts the mark of a start before the words, or in the place of the first."""

    def __init__(self, shifts, fault=""):
        super().__init__(fault)
        self.shifts = shifts

    def forward(self, ids, attention_mask=None):
        first = torch.zeros_like(ids[:, :1])
        return super().forward(torch.cat([first, ids[:, :-1] if self.shifts else ids[:, 1:]], 1))


@pytest.mark.parametrize("shifts", [True, False])
def test_a_mark_that_a_model_puts_first_may_be_no_word(shifts):
    report = check(Started(shifts), laws=["vocabulary"], weights="random")
    assert report.law("vocabulary").verdict == "advice"


def test_a_word_that_means_something_is_told_beside_such_a_mark():
    finding = check(Started(True, "2 ends a document"), laws=["vocabulary"]).law("vocabulary")
    assert finding.verdict == "violated"
    assert " is 0" not in finding.note


def test_without_a_fault_these_laws_hold():
    report = check(Decoder(), laws=sorted(set(FAULTS.values())), weights="random")
    assert {finding.verdict for finding in report.laws} == {"holds"}


def test_the_rows_of_a_cache_that_is_one_tensor_are_reordered():
    assert check(Repeating(), laws=["cache.reorder"]).law("cache.reorder").verdict == "holds"


@pytest.mark.parametrize("seed", [55, 142])
def test_a_unit_that_turns_by_rounding_is_no_breach(seed):
    """Of these weights, one unit's input is nearly 0 for one draw, and its gradient jumps."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3))
    assert check(model, laws=["paths.autocast"]).law("paths.autocast").verdict == "holds"


@pytest.mark.parametrize(
    "name", ["rotated-keys-restart", "chopped-in-front", "keys-are-plain-arrays"]
)
def test_a_fault_in_an_odd_idiom_is_told_and_its_twin_is_not(name):
    [case] = [case for case in odd_idioms.CASES if case.name == name]
    one = score("odd_idioms", case)
    assert one.right, one.note


class BackwardModel(odd_idioms.DilatedChoppedInFront):
    """Scores every word by those after it, as half of a model of both directions does."""


class Turned(odd_idioms.Dilated):
    def forward(self, ids):
        return super().forward(ids.flip(1)).flip(1)


@pytest.mark.parametrize("kind", [BackwardModel, Turned])
def test_a_model_that_reads_from_the_end_on_purpose_is_not_accused(kind):
    assert not check(kind(), laws=["causality"]).violations


class Prompted(odd_idioms.PureApply):
    """Takes vectors that are put before the words, and returns those of the words alone."""

    def forward(self, tokens, kept=None):
        scores = super().forward(tokens)
        vectors = self.tree()["embed/table"][tokens]
        if kept is not None:
            scores = scores + odd_idioms.dense(self.tree(), "out", kept.mean(1, keepdim=True))
        return scores, vectors


def test_what_does_not_grow_is_no_cache():
    assert check(Prompted(), laws=["cache"]).about["cache"] == "none found"


class Digits(nn.Module):
    """Continues numbers of ten digits, so that labels are alike; `step` is how far they shift."""

    def __init__(self, step=1, rolled=0):
        super().__init__()
        self.step, self.rolled = step, rolled
        self.embed, self.score = nn.Embedding(10, WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, ids, labels=None):
        scores = self.score(self.embed(ids).cumsum(1))
        if labels is None:
            return scores, None
        labels = labels.roll(self.rolled, 0)
        first = scores[:, : ids.size(1) - self.step].mT
        return scores, nn.functional.cross_entropy(first, labels[:, self.step :])


@pytest.mark.parametrize(("given", "verdict"), [((1, 0), "holds"), ((2, 0), "violated"),
                                                ((1, 1), "violated")])  # fmt: skip
def test_labels_of_a_small_vocabulary_are_not_mistaken_for_each_other(given, verdict):
    assert check(Digits(*given), laws=["loss.shift"]).law("loss.shift").verdict == verdict


class Segments(nn.Module):
    """Reads in segments of up to 64 tokens; what was read before is one mean of a memory."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids, memories=None):
        x = self.embed(ids)
        before = 0 if memories is None else memories.mean(1, keepdim=True)
        kept = x if memories is None else torch.cat([memories, x], 1)
        return self.head(x + x.cumsum(1).tanh() + before), kept


def test_a_memory_of_segments_is_no_cache():
    report = check(Segments(), laws=["cache"])
    assert not report.violations, report
