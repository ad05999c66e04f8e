"""Faults that a checker may pass over in silence: leaks everywhere, no gradients, kept state."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from querykey.laws import check

WORDS, WIDTH, HEADS = 43, 24, 3


def visible_by_positions(length):
    """Return a causal mask made by a helper, without a triangle's name."""
    place = torch.arange(length)
    return place[:, None] >= place[None, :]


class Attention(nn.Module):
    """Attention whose way to hide the future is a method, for others to get wrong."""

    def __init__(self, longest=64):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.longest = longest

    def hide(self, scores):
        """Hide later keys."""
        return scores.masked_fill(~visible_by_positions(scores.size(-1)), -torch.inf)

    def merge(self, mixed):
        """Join the heads."""
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, x):
        """Mix positions."""
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        scores = self.hide(q @ k.mT / math.sqrt(q.size(-1)))
        return self.out(self.merge(scores.softmax(-1) @ v))


class Discarded(Attention):
    """The masked scores are thrown away."""

    def hide(self, scores):
        scores.masked_fill(~visible_by_positions(scores.size(-1)), -torch.inf)
        return scores


class Inverted(Attention):
    """The mask hides what is visible, and the first query loses nothing."""

    def hide(self, scores):
        return scores + visible_by_positions(scores.size(-1)).mT * 1.0


class OnlySometimes(Attention):
    """The mask is an attribute that is used for short texts alone."""

    def __init__(self):
        super().__init__()
        self.mask = visible_by_positions(self.longest)

    def hide(self, scores):
        length = scores.size(-1)
        if length < 6:
            scores = scores.masked_fill(~self.mask[:length, :length], -torch.inf)
        return scores


class AfterSoftmax(Attention):
    """The mask comes after the softmax, whose sums have seen everything."""

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        weights = (q @ k.mT).softmax(-1) * visible_by_positions(x.size(1))
        return self.out(self.merge(weights @ v))


class Mixed(Attention):
    """Heads are merged without being moved back, so that positions mix."""

    def merge(self, mixed):
        return mixed.reshape(mixed.size(0), mixed.size(2), -1)


class Inherited(Discarded):
    """The fault is in the class above, and this one's own code says nothing."""


class Flagged(Attention):
    """torch's fused attention is asked for a causal mask, and a second call forgets it."""

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(self.merge(F.scaled_dot_product_attention(q, k, v)))


class Model(nn.Module):
    """Token ids in, scores over the vocabulary out; nothing in its name says what for."""

    def __init__(self, mixer=Attention):
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.mixers = nn.ModuleList([mixer() for _ in range(2)])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        """Score the vocabulary at every position."""
        x = self.embed(ids) + self.place(torch.arange(ids.size(1)))
        for mixer in self.mixers:
            x = x + mixer(x)
        return self.head(x)


LEAKS = [Discarded, Inverted, OnlySometimes, AfterSoftmax, Mixed, Inherited, Flagged]


@pytest.mark.parametrize("mixer", LEAKS, ids=lambda mixer: mixer.__name__)
def test_a_decoder_that_leaks_everywhere_does_not_pass_for_an_encoder(mixer):
    finding = check(Model(mixer), laws=["causality.perturb"]).law("causality.perturb")
    assert finding.verdict == "violated", finding
    assert finding.module in ("mixers.0", "mixers.1")


class Open(Attention):
    """Nothing hides anything, and nothing says that it should."""

    def hide(self, scores):
        return scores


class Generating(Model):
    """Its interface alone says that it continues texts."""

    def generate(self, ids, max_new_tokens):
        """Append the likeliest tokens."""
        for _ in range(max_new_tokens):
            ids = torch.cat([ids, self(ids)[:, -1:].argmax(-1)], 1)
        return ids


class Shifted(Model):
    """Its loss compares every position's scores with the next label."""

    def forward(self, ids, labels=None):
        scores = super().forward(ids)
        if labels is None:
            return {"logits": scores}
        loss = F.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": scores}


class TinyGPT(Model):
    """Its name says it."""


@pytest.mark.parametrize("kind", [Generating, Shifted, TinyGPT], ids=lambda kind: kind.__name__)
def test_the_interface_says_what_no_mask_does(kind):
    finding = check(kind(Open), laws=["causality.perturb"]).law("causality.perturb")
    assert finding.verdict == "violated", finding


def test_a_doubt_is_told_and_goes_when_the_owner_says_what_it_is():
    model = Model(Open)
    finding = check(model, laws=["causality.perturb"]).law("causality.perturb")
    assert finding.verdict == "advice"
    assert "if it is meant to be causal, say kind=decoder" in finding.note
    assert check(model, kind="decoder", laws=["causality.perturb"]).violations
    told = check(model, kind="encoder", laws=["causality.perturb"]).law("causality.perturb")
    assert told.verdict == "not-applicable"


class Unlearning(Model):
    """A lawful model that cannot learn, or not all of it, in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        if way == "modules in a list":
            mixers = list(self.mixers)
            del self.mixers
            self.mixers = mixers
        if way == "modules in a dict":
            del self.mixers
            self.parts = {"a": Attention(), "b": Attention()}
        if way == "a bare tensor":
            self.gain = torch.ones(WIDTH, requires_grad=True)
        if way == "an unused parameter":
            self.gain = nn.Parameter(torch.ones(WIDTH))
        if way == "an unused linear":
            self.gain = nn.Linear(WIDTH, WIDTH)
        if way == "an empty parameter":
            self.gain = nn.Parameter(torch.ones(0, WIDTH))

    def forward(self, ids):
        if self.way == "modules in a dict":
            x = self.embed(ids) + self.place(torch.arange(ids.size(1)))
            return self.head(x + self.parts["b"](x + self.parts["a"](x)))
        if self.way in ("no_grad", "inference_mode"):
            with getattr(torch, self.way)():
                return super().forward(ids)
        scores = super().forward(ids)
        if self.way == "a bare tensor":
            scores = scores * self.gain.mean()
        return scores.detach() if self.way == "detached" else scores


@pytest.mark.parametrize(
    ("way", "verdict", "words"),
    [
        ("no_grad", "violated", "no output can be differentiated"),
        ("inference_mode", "violated", "no output can be differentiated"),
        ("detached", "violated", "no output can be differentiated"),
        ("modules in a list", "violated", "`mixers[0]`, an Attention"),
        ("modules in a dict", "violated", "`parts['a']`, an Attention"),
        ("a bare tensor", "violated", "`gain`, a tensor"),
        ("an unused parameter", "advice", "no operation reads gain"),
        ("an unused linear", "advice", "no operation reads gain.weight and 1 more"),
        ("an empty parameter", "holds", ""),
        ("", "holds", ""),
    ],
)
def test_what_never_learns_is_told(way, verdict, words):
    report = check(Unlearning(way), laws=["gradient.reaches"])
    finding = report.law("gradient.reaches")
    assert finding.verdict == verdict, finding
    assert words in finding.note
    assert verdict != "violated" or finding.module == "(model)"


SHARED = {}  # what one of the models below keeps outside of itself


class Keeping(Model):
    """Its second call gives another answer than its first one, wherever it counts its calls."""

    kept_by_class = 0

    def __init__(self, where):
        super().__init__()
        self.where, self.longest, self.memo = where, 20, {}
        self.register_buffer("memory", torch.zeros(1), persistent=False)
        count = 0

        def counted():
            nonlocal count
            count += 1
            return count

        self.counted = counted

    def forward(self, ids):
        return super().forward(ids) / self.calls(ids.size(1))

    def calls(self, length):
        """Return a number that an earlier call has changed."""
        if self.where == "a length that only grows":
            self.longest = max(self.longest, length)
            return self.longest
        if self.where == "a buffer":
            self.memory = self.memory + 1
            return self.memory
        if self.where == "a closure":
            return self.counted()
        if self.where == "the class":
            Keeping.kept_by_class += 1
            return Keeping.kept_by_class
        memo = {"a dict": self.memo, "the file": SHARED}.get(self.where, {})
        memo["calls"] = memo.get("calls", 0) + 1
        return memo["calls"]


PLACES = ["a buffer", "a closure", "the class", "a dict", "the file"]


@pytest.mark.parametrize("where", PLACES)
def test_state_that_outlives_a_call_is_found_and_spoils_nothing_else(where):
    model = Keeping(where)
    report = check(model)
    assert [finding.law for finding in report.violations] == ["determinism"]
    assert report.law("causality.perturb").verdict == "holds"
    assert SHARED == {}
    assert Keeping.kept_by_class == 0
    assert (model.longest, model.memo) == (20, {})


def test_a_length_that_only_grows_is_found_by_a_longer_call_before():
    finding = check(Keeping("a length that only grows"), laws=["determinism"]).law("determinism")
    assert finding.verdict == "violated"
    assert "after calls of other sizes" in finding.note


def test_what_is_computed_anew_in_every_call_is_no_state():
    assert check(Keeping("nowhere")).violations == []


class GrowingTable(nn.Module):
    """Replaces its table of positions by a longer one, as FSMT does, or a module by another."""

    def __init__(self, part):
        super().__init__()
        self.part = part
        self.embed, self.score = nn.Embedding(40, 12), nn.Linear(12, 40)
        self.grow(16)

    def grow(self, length):
        table = torch.arange(length * 12.0).reshape(length, 12).sin()
        if self.part == "parameter":
            self.table = nn.Parameter(table)
        else:
            self.table = nn.Embedding.from_pretrained(table, freeze=False)

    def forward(self, ids):
        T = ids.size(1)
        weight = self.table if self.part == "parameter" else self.table.weight
        if len(weight) < T:
            self.grow(2 * T)
        table = self.table if self.part == "parameter" else self.table.weight
        x = self.embed(ids) + table[:T]
        return self.score(x.cumsum(1) / torch.arange(1, T + 1)[:, None])


@pytest.mark.parametrize("part", ["parameter", "module"])
def test_a_table_that_grew_in_one_law_is_put_back_before_the_next(part):
    report = check(GrowingTable(part), laws=["causality.perturb", "batch"])
    assert {finding.verdict for finding in report.laws} == {"holds"}, report
