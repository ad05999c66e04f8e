"""Models as people write them, each lawful until `fault` replaces one thing."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from querykey.laws import Subject, check
from querykey.laws.catalogue.sweeps import long

WORDS, WIDTH = 47, 24


class Faulty(nn.Module):
    """Says whether the fault of this name is on."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def has(self, name):
        return self.fault == name


class StateSpace(Faulty):
    """A convolution and a decaying state; the cache comes out only when it is asked for."""

    def __init__(self, fault=""):
        super().__init__(fault)
        self.conv, self.rate = nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids, cache=None, use_cache=False):
        x = self.embed(ids)
        window = x.new_zeros(len(x), 2, WIDTH) if cache is None else cache["window"]
        state = x.new_zeros(len(x), WIDTH) if cache is None else cache["state"]
        joined = torch.cat([window, x], 1)
        x, out = self.conv(joined.mT).mT, []
        for t in range(x.size(1)):
            keep = torch.sigmoid(self.rate(x[:, t]))
            state = keep * state + (1 - keep) * x[:, t]
            out.append(state)
        kept = joined[:, -3:-1] if self.has("an old window is kept") else joined[:, -2:]
        logits = self.head(torch.stack(out, 1))
        return (logits, {"window": kept, "state": state}) if use_cache else logits


class Recurrent(Faulty):
    """torch's own recurrence, its state by a name of the user's."""

    def __init__(self, fault=""):
        super().__init__(fault)
        self.core = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)

    def forward(self, x, hc=None):
        if hc is not None and self.has("the state is not used"):
            hc = None
        if hc is not None and self.has("states change places"):
            hc = hc[::-1]
        y, hc = self.core(self.embed(x), hc)
        return self.head(y), hc


class Tutorial(Faulty):
    """Time first, and a mask that is made where none is given."""

    def __init__(self, fault=""):
        super().__init__(fault)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 48)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, src, src_mask=None):
        if src_mask is None:
            src_mask = nn.Transformer.generate_square_subsequent_mask(len(src), device=src.device)
        if self.has("the mask is turned round"):
            src_mask = src_mask.T
        if self.has("the mask is forgotten"):
            src_mask = None
        return self.head(self.layers(self.embed(src) * math.sqrt(WIDTH), src_mask))


class Cross(Faulty):
    """A bare layer that looks at another sequence."""

    def __init__(self, fault=""):
        super().__init__(fault)
        del self.embed
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x, context, context_mask=None):
        k, v = self.kv(context).chunk(2, -1)
        scores = self.q(x) @ k.mT / WIDTH**0.5
        if context_mask is not None and not self.has("the mask is ignored"):
            hidden = ~context_mask[:, None].bool()
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        axis = 0 if self.has("softmax over the batch") else -1
        return self.head(x + scores.softmax(axis) @ v)


class Pooled(Faulty):
    """One answer per row, from the mean of its real tokens; the mask must be given."""

    def __init__(self, fault=""):
        super().__init__(fault)
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids, mask):
        x = self.embed(ids)
        scores = self.q(x) @ self.k(x).mT / WIDTH**0.5
        x = x + scores.masked_fill(mask[:, None] == 0, -1e9).softmax(-1) @ x
        if self.has("padding is in the mean"):
            return self.head(x.mean(1))
        count = mask.sum(1, keepdim=True).clamp(min=1)
        return self.head((x * mask[..., None]).sum(1) / count)


class Plain(Faulty):
    """torch's fused attention; the scale is up to it."""

    def __init__(self, fault=""):
        super().__init__(fault)
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, *, tokens):
        x = self.embed(tokens)
        q, k, v = (
            part.unflatten(-1, (3, 8)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        scale = 1.0 if self.has("no scale") else None
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        if self.has("batch statistics"):
            x = F.batch_norm(x.mT, None, None, training=True).mT
        return {"logits": self.head(x + mixed.transpose(1, 2).flatten(2)), "attentions": None}


class Faint(Faulty):
    """Later tokens are made unlikely, not hidden."""

    def __init__(self, fault=""):
        super().__init__(fault)
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        ahead = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        return self.head(x + (q @ k.mT / 2 + ahead * -20.0).softmax(-1) @ v)


@pytest.mark.parametrize("seed", range(4))
def test_a_small_leak_is_no_tie(seed):
    torch.manual_seed(0)
    verdicts = {f.verdict for f in check(Faint(), laws=["causality"], seed=seed).laws}
    assert verdicts <= {"violated", "holds"}
    assert "violated" in verdicts


class Fused(Faulty):
    """One projection for queries, keys and values, a padding token, and units that may sleep."""

    def __init__(self, fault=""):
        super().__init__(fault)
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 96), nn.Linear(96, WIDTH)

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.has("values are detached"):
            v = v.detach()
        seen = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
        weights = (q @ k.mT / WIDTH).masked_fill(~seen, -math.inf).softmax(-1)
        x = x + (weights.detach() if self.has("weights are detached") else weights) @ v
        return self.head(x + self.down(F.relu(self.up(x) - 1.5)))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("values are detached", "24 of the 72 rows of qkv.weight, from 48 on,"),
        ("weights are detached", "48 of the 72 rows of qkv.weight, from 0 on,"),
    ],
)
def test_a_part_of_a_fused_weight_that_never_learns_is_found(fault, words):
    finding = check(Fused(fault), laws=["gradient.reaches"]).law("gradient.reaches")
    assert (finding.verdict, finding.module) == ("violated", "qkv")
    assert finding.note == f"{words} are used but get no gradient"


class Restless(Faulty):
    """Its dropout acts whatever the mode."""

    def forward(self, ids):
        return self.head(F.dropout(self.embed(ids), 0.5))


def test_dropout_left_on_is_one_breach():
    report = check(Restless())
    assert [f.law for f in report.violations] == ["determinism"]
    assert report.law("dtype.agree").verdict == "not-applicable"


class BestKeys(Faulty):
    """Only the four best visible keys count, so that fewer tokens raise."""

    def forward(self, ids):
        x = self.embed(ids)
        seen = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
        scores = (x @ x.mT / WIDTH).masked_fill(~seen, -1e9)
        least = scores.topk(4, -1).values[..., -1:]
        return self.head(x + scores.masked_fill(scores < least, -1e9).softmax(-1) @ x)


class RightPadded(Faulty):
    """torch's attention, its mask and its custom: rows are padded on the right."""

    def __init__(self, fault=""):
        super().__init__(fault)
        self.place = nn.Parameter(torch.randn(64, WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, ids, key_padding_mask=None):
        x, length = self.embed(ids) + self.place[: ids.shape[1]], ids.shape[1]
        ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = self.attention(x, x, x, attn_mask=ahead, key_padding_mask=key_padding_mask)[0]
        return self.head(x + mixed)


def test_absolute_positions_by_the_custom_of_torch_are_no_breach():
    report = check(RightPadded())
    assert report.violations == []
    assert report.law("padding.left").verdict == "advice"


def test_features_are_tried_in_the_precision_of_the_weights():
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)).bfloat16()
    assert check(model).law("batch.others").verdict == "holds"


class TurnedRound(Faulty):
    """An encoder that hides the real tokens, so that in a row without padding none is seen."""

    def __init__(self, fault=""):
        super().__init__(fault)
        self.place = nn.Parameter(torch.randn(64, WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, ids, key_padding_mask=None):
        x = self.embed(ids) + self.place[: ids.shape[1]]
        hidden = None if key_padding_mask is None else ~key_padding_mask
        weighed = self.has("weights are asked for")
        mixed = self.attention(x, x, x, key_padding_mask=hidden, need_weights=weighed)[0]
        return self.head(x + mixed)


@pytest.mark.parametrize("fault", ["", "weights are asked for"])  # zeros, and NaN
def test_seeing_nothing_does_not_make_a_decoder(fault):
    report = check(TurnedRound(fault))
    assert report.kind == "encoder"
    assert {(f.law, f.module) for f in report.violations} == {
        ("padding.right", "(model)"), ("padding.gradient", "(model)"),
    }  # fmt: skip


class Stacked(Faulty):
    """torch's own stacks in a module of ours: what is done to the mask is done by `middle`."""

    def __init__(self, fault=""):
        super().__init__(fault)
        self.middle = Middle(fault)

    def forward(self, ids, source, src_key_padding_mask=None):
        return self.head(self.middle(self.embed(ids), self.embed(source), src_key_padding_mask))


class Middle(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault
        self.there = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 4, 48, batch_first=True),
            2,
            enable_nested_tensor=False,
        )
        self.back = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(WIDTH, 4, 48, batch_first=True), 2
        )

    def forward(self, x, source, mask):
        turned = mask is not None and self.fault == "the mask is turned round"
        inside = None if self.fault == "the encoder is told nothing" else ~mask if turned else mask
        across = None if self.fault == "the decoder is told nothing" else mask
        memory = self.there(source, src_key_padding_mask=inside)
        return self.back(x, memory, memory_key_padding_mask=across)


def test_handing_the_mask_on_is_lawful():
    assert check(Stacked()).violations == []


@pytest.mark.parametrize(
    "fault",
    ["the mask is turned round", "the encoder is told nothing", "the decoder is told nothing"],
)
@pytest.mark.parametrize("law", ["padding.right", "padding.gradient"])
def test_who_loses_a_padding_mask_is_blamed_and_not_torch(fault, law):
    finding = check(Stacked(fault), laws=[law]).law(law)
    assert (finding.verdict, finding.module) == ("violated", "middle")


MODELS = (StateSpace, Recurrent, Tutorial, Cross, Pooled, Plain, Fused, BestKeys)


@pytest.mark.parametrize("kind", MODELS)
def test_without_a_fault_there_is_no_alarm(kind):
    report = check(kind())
    bad = [f for f in report.laws if f.verdict in ("violated", "error", "tie", "advice")]
    assert bad == []
    cached = kind in (StateSpace, Recurrent)
    assert report.law("cache.generate").verdict == ("holds" if cached else "not-applicable")


FAULTS = [
    (StateSpace, "an old window is kept", "cache.step", "(model)"),
    (Recurrent, "the state is not used", "cache.step", "(model)"),
    (Recurrent, "states change places", "cache.step", "(model)"),
    (Tutorial, "the mask is turned round", "causality.perturb", "(model)"),
    (Tutorial, "the mask is forgotten", "causality.perturb", "(model)"),
    (Cross, "the mask is ignored", "padding.right", "(model)"),
    (Cross, "softmax over the batch", "batch.others", "(model)"),
    (Pooled, "padding is in the mean", "padding.right", "(model)"),
    (Plain, "batch statistics", "batch.others", "(model)"),
]


@pytest.mark.parametrize(("kind", "fault", "law", "module"), FAULTS, ids=lambda each: str(each))
def test_a_fault_is_caught_and_its_module_named(kind, fault, law, module):
    finding = check(kind(fault), laws=[law]).law(law)
    assert finding.verdict == "violated"
    assert finding.module == module


def test_a_missing_scale_is_seen_through_fused_attention():
    finding = check(Plain("no scale"), laws=["saturation"]).law("saturation")
    assert finding.verdict == "advice"
    assert "is the scale 1/sqrt(width) missing" in finding.note


def test_a_trial_that_raises_hides_no_other():
    finding = check(BestKeys(), laws=["causality.prefix"]).law("causality.prefix")
    assert finding.verdict == "holds"
    assert "not tried: the sequence was cut after 1 of 13 tokens" in finding.note


class Speaker(Plain):
    """Has a generate of its own; `way` is how it draws and what it returns."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, ids):
        return super().forward(tokens=ids)["logits"]

    def generate(self, ids, steps=20, repetition_penalty=1.3):
        start = ids.shape[1]
        for _ in range(steps):
            scores = self(ids)[:, -1]
            if repetition_penalty != 1:
                scores = scores.scatter_reduce(1, ids, torch.full_like(scores, -9.0)[:, :1], "sum")
            chances = scores.softmax(-1)
            if self.way == "gumbel":
                drawn = (chances / torch.empty_like(chances).exponential_(1)).argmax(-1)
            elif self.way == "numpy":
                drawn = [np.random.choice(WORDS, p=row.numpy()) for row in chances.detach()]
                drawn = torch.tensor(np.array(drawn))
            else:
                drawn = torch.multinomial(chances, 1)[:, 0]
            ids = torch.cat([ids, drawn[:, None]], 1)
        first = torch.zeros_like(ids[:, :1])
        return {"new": ids[:, start:], "begun": torch.cat([first, ids], 1)}.get(self.way, ids)


@pytest.mark.parametrize(
    ("way", "verdict", "words"),
    [
        ("multinomial", "holds", ""),
        ("gumbel", "holds", ""),
        ("new", "holds", ""),
        ("numpy", "not-applicable", "by a chance that cannot be kept from acting"),
        ("begun", "not-applicable", "neither the prompt continued nor new tokens"),
    ],
)
def test_any_generate_is_understood_or_left_alone(way, verdict, words):
    finding = check(Speaker(way), laws=["cache.generate"]).law("cache.generate")
    assert finding.verdict == verdict
    assert words in finding.note


class Chooser(nn.Module):
    """Takes the value of the best key: nothing tells queries and keys how to get better."""

    def __init__(self):
        super().__init__()
        self.embed, self.q = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids):
        x = self.embed(ids)
        return x + F.one_hot((self.q(x) @ x.mT).argmax(-1), x.size(1)).to(x.dtype) @ x


def test_what_breaks_a_law_by_design_says_so():
    law = "gradient.reaches"
    assert check(Chooser(), laws=[law]).law(law).module == "(model)"  # its code cuts q off
    told = check(Subject(Chooser(), breaks={law: "it chooses"}), laws=[law]).law(law)
    assert (told.verdict, told.note) == ("not-applicable", "by design: it chooses")
    model = nn.Sequential(Chooser(), nn.Linear(WIDTH, WIDTH))
    model[0].breaks_laws = {law: "it chooses"}
    assert check(model, laws=[law]).law(law).verdict == "not-applicable"


def test_it_vouches_for_itself_alone():
    class Dead(nn.Module):
        def __init__(self):
            super().__init__()
            self.chooser, self.extra = Chooser(), nn.Linear(WIDTH, WIDTH)
            self.chooser.breaks_laws = {"gradient.*": "it chooses"}

        def forward(self, ids):
            x = self.chooser(ids)
            return x + 0 * self.extra(x)

    finding = check(Dead(), laws=["gradient.reaches"]).law("gradient.reaches")
    assert (finding.verdict, finding.module) == ("violated", "(model)")
    assert "extra.weight is used but gets no gradient" in finding.note


def test_a_model_that_cannot_be_differentiated_breaks_no_law():
    class Refuses(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("train me in training mode")

    class Proud(Faulty):
        def forward(self, ids):
            return self.head(Refuses.apply(self.embed(ids).cumsum(1)))

    finding = check(Proud(), laws=["causality"]).law("causality.gradient")
    assert finding.verdict == "not-applicable"
    assert "it refuses to be differentiated" in finding.note


class Settling(Faulty):
    """Causal, with a state that training moves; `fault` says which of them the answer follows."""

    def __init__(self, fault=""):
        super().__init__(fault)
        self.mix = nn.Linear(WIDTH, WIDTH)
        if self.has("a norm"):
            nn.utils.parametrizations.spectral_norm(self.mix)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.count = 0

    def forward(self, ids):
        x = self.embed(ids)
        mixed = self.mix(x - self.mean if self.has("a mean") else x).cumsum(1)
        if self.has("a count"):
            mixed = mixed * (1 - 0.5 ** (self.count + 1))
        if self.training:
            self.mean.lerp_(x.detach().mean((0, 1)), 0.1)
            self.count += 1
        return self.head(x + mixed)


@pytest.mark.parametrize("state", ["a norm", "a mean", "a count"])
def test_a_state_that_training_moves_is_no_leak(state):
    assert check(Settling(state), laws=["causality"]).violations == []


class LateLeak(Faulty):
    """Looks one token ahead in sequences beyond some length, and takes so many at most."""

    def __init__(self, beyond, most):
        super().__init__()
        self.beyond, self.place = beyond, nn.Embedding(most, WIDTH)

    def forward(self, ids):
        length = ids.size(1)
        x = self.embed(ids) + self.place(torch.arange(length))
        hidden = torch.ones(length, length).triu(1 + (length > self.beyond)).bool()
        return self.head(x + (x @ x.mT / WIDTH).masked_fill(hidden, -1e9).softmax(-1) @ x)


@pytest.mark.parametrize(("beyond", "most"), [(16, 32), (32, 64), (128, 200)])
def test_a_leak_that_begins_late_is_found_where_the_model_takes_as_many(beyond, most):
    found = check(LateLeak(beyond, most), laws=["causality.perturb"]).law("causality.perturb")
    assert found.verdict == "violated"
    assert found.setting["length"] > beyond
    lawful = check(LateLeak(most, most), laws=["causality.perturb"]).law("causality.perturb")
    assert (lawful.verdict, lawful.note) == ("holds", "")


class AheadInAll(Faulty):
    """Whether it is meant to look ahead is asked of its parts."""

    def __init__(self):
        super().__init__()
        self.core = nn.TransformerEncoderLayer(WIDTH, 4, 48, batch_first=True)

    def forward(self, ids):
        return self.head(self.core(self.embed(ids)))


@pytest.mark.parametrize("kind", [Restless, AheadInAll])
def test_the_random_numbers_of_the_caller_stay(kind):
    model, before = kind(), torch.get_rng_state()
    check(model, laws=["purity"])
    assert torch.equal(before, torch.get_rng_state())


class Mixed(Faulty):
    """Rows mix in the second of three layers, and gradients differ most elsewhere."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.norm = nn.BatchNorm1d(WIDTH, track_running_stats=False)

    def forward(self, ids):
        x = self.layers[0](self.embed(ids)).cumsum(1)
        x = self.layers[1](self.norm(x.mT).mT)
        return self.head(self.layers[2](x.tanh()))


def test_gradients_that_do_not_add_up_are_blamed_where_rows_mix():
    report = check(Mixed(), laws=["batch.alone", "accumulation"])
    assert {(f.verdict, f.module) for f in report.laws} == {("violated", "norm")}


class Hearing(nn.Module):
    """Attention with a cache, to which a padding mask may mean nothing."""

    def __init__(self, deaf):
        super().__init__()
        self.deaf, self.qkv = deaf, nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x, real, past):
        q, k, v = self.qkv(x).chunk(3, -1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        seen = torch.ones(q.size(1), k.size(1), dtype=torch.bool).tril(k.size(1) - q.size(1))
        if real is not None and not self.deaf:
            seen = seen & real[:, None].bool()
        scores = (q @ k.mT / WIDTH**0.5).masked_fill(~seen, -1e9)
        return x + scores.softmax(-1) @ v, (k, v)


class Listening(Faulty):
    """A decoder whose second layer does not hear the padding mask."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Hearing(deaf) for deaf in (False, True, False)])

    def forward(self, ids, attention_mask=None, past_key_values=None):
        x, cache = self.embed(ids), []
        for layer, past in zip(self.layers, past_key_values or [None] * 3, strict=True):
            x, kept = layer(x, attention_mask, past)
            cache.append(kept)
        return self.head(x), cache


def test_what_a_cache_holds_at_padding_is_nobodys_fault():
    torch.manual_seed(0)  # whether another token is the likeliest one is a matter of weights
    found = check(Listening(), laws=["cache.generate"], seed=2).law("cache.generate")
    assert (found.verdict, found.module) == ("violated", "layers.1")


class Handing(Faulty):
    """A causal mask of its own, handed to torch, which makes floats of it."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 48, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        hidden = torch.ones(ids.size(1), ids.size(1), dtype=torch.bool).triu(2)
        return self.head(self.layers(self.embed(ids), mask=hidden))


def test_who_made_a_wrong_mask_is_blamed_and_not_torch():
    assert {f.module for f in check(Handing(), laws=["causality"]).violations} == {"(model)"}


class Forgetful(Faulty):
    """torch's encoder-decoder, told of the padding of its source, but not of its memory."""

    def __init__(self):
        super().__init__()
        self.both = nn.Transformer(WIDTH, 4, 1, 1, 48, batch_first=True)

    def forward(self, src, tgt, src_key_padding_mask=None):
        hidden = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1)
        x, y = self.embed(src), self.embed(tgt)
        x = self.both(x, y, tgt_mask=hidden, src_key_padding_mask=src_key_padding_mask)
        return self.head(x)


def test_a_mask_that_torch_was_not_given_is_not_lost_by_torch():
    found = check(Forgetful(), laws=["padding.right"]).law("padding.right")
    assert (found.verdict, found.module) == ("violated", "(model)")


class Gated(Faulty):
    """Branches that begin at zero: a low-rank update, and a gate."""

    def __init__(self, fault=""):
        super().__init__(fault)
        self.mix, self.gate = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.zeros(()))
        self.down = nn.Parameter(torch.randn(4, WIDTH))
        self.up = nn.Parameter(torch.zeros(WIDTH, 4))

    def forward(self, ids):
        x = self.embed(ids)
        mixed = self.mix(x).cumsum(1)
        if self.has("the branch is detached"):
            mixed = mixed.detach()
        return self.head(x + self.gate * mixed + x @ self.down.T @ self.up.T)


@pytest.mark.parametrize(("fault", "guilty"), [("", []), ("the branch is detached", ["(model)"])])
def test_what_begins_at_zero_learns_and_what_is_cut_off_does_not(fault, guilty):
    report = check(Gated(fault), laws=["gradient.reaches"], weights="own")
    assert [f.module for f in report.violations] == guilty


class Wrapped(nn.Module):
    """Takes a dict."""

    def __init__(self):
        super().__init__()
        self.inner = Fused()

    def forward(self, batch):
        return self.inner(batch["ids"])


def test_tensors_inside_an_example_are_refused_in_a_sentence_that_helps():
    ids, model = torch.zeros(2, 7, dtype=torch.long), Wrapped()
    for example in ({"batch": {"ids": ids}}, ({"ids": ids},)):
        found = check(model, example=example, laws=["purity"]).law("purity")
        assert found.verdict == "error"
        assert "the example's `batch` holds its tensors inside a dict" in found.note
    said = Subject(lambda ids: model({"ids": ids}), example=ids)
    assert check(said, laws=["causality.perturb"]).law("causality.perturb").verdict == "holds"
    assert "holds no tensor" in check(model, example={"batch": 3}, laws=["purity"]).laws[0].note


class TwoHeads(Faulty):
    """Two outputs, of which the second looks so many tokens ahead."""

    def __init__(self, ahead, form):
        super().__init__()
        self.form, self.second = form, Ahead(ahead)

    def forward(self, ids):
        x = self.embed(ids)
        main, other = self.head(x.cumsum(1)), self.second(x)
        return {"logits": main, "aux": other} if self.form == "dict" else (main, other)


class Ahead(nn.Module):
    def __init__(self, ahead):
        super().__init__()
        self.ahead, self.mix = ahead, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        seen = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril(self.ahead)
        scores = (x @ self.mix(x).mT / WIDTH).masked_fill(~seen, -math.inf)
        return scores.softmax(-1) @ x


@pytest.mark.parametrize("form", ["dict", "tuple"])
def test_a_leak_in_a_second_output_is_found(form, capsys):
    model = TwoHeads(1, form)
    report = check(model, laws=["causality"])
    assert [(f.law, f.module) for f in report.violations] == [
        ("causality.perturb", "second"),
        ("causality.prefix", "second"),
    ]
    assert ".aux shows it" in report.violations[0].note or form == "tuple"
    script = (report.violations[0].repro or "").replace(
        'raise SystemExit("build the model here")', "pass"
    )
    with pytest.raises(SystemExit) as ending:
        exec(script, {"TwoHeads": TwoHeads, "model": model})
    assert ending.value.code == 1, capsys.readouterr().out


@pytest.mark.parametrize("ahead", [0, 99])  # one that sees everything is meant to
def test_a_second_output_may_be_causal_or_not(ahead):
    assert check(TwoHeads(ahead, "dict")).violations == []


def test_no_long_text_is_tried_where_a_missing_row_would_end_the_process():
    copies = SimpleNamespace(device=torch.device("cuda"))
    assert list(long(SimpleNamespace(copies=copies))) == []
