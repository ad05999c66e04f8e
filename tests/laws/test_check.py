"""`check` on anyone's model: what it takes, what it leaves alone, what it says."""

import copy
import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from querykey.laws import LAWS, Law, Report, Subject, assert_lawful, check, lifted, randomised
from querykey.laws.finding import VERDICTS
from querykey.laws.trial import Outcome
from querykey.targets import PRESETS


class Layer(nn.Module):
    def __init__(self, ahead=0, width=16):
        super().__init__()
        self.ahead, self.mix = ahead, nn.Linear(width, width)

    def forward(self, x):
        seen = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril(self.ahead)
        weights = (x @ x.mT).masked_fill(~seen, float("-inf")).softmax(-1)
        return x + self.mix(weights @ x)


def stack(*ahead):
    return nn.Sequential(nn.Embedding(41, 16), *(Layer(a) for a in ahead), nn.Linear(16, 41))


@pytest.mark.parametrize(("ahead", "guilty"), [((0, 1), "2"), ((1, 0, 0), "1"), ((0, 99, 0), "2")])
def test_a_leak_in_one_layer_is_found_and_named(ahead, guilty):
    report = check(stack(*ahead))
    assert {f.law for f in report.violations} == {
        "causality.perturb", "causality.gradient", "causality.prefix",
    }  # fmt: skip
    assert {f.module for f in report.violations} == {guilty}
    assert "test_check.py" in (report.violations[0].source or "")


def test_nothing_of_the_model_is_changed():
    model = stack(0, 1).train()
    model[1].eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    random, dtype = torch.get_rng_state(), torch.get_default_dtype()
    check(model)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert modes == [module.training for module in model.modules()]
    assert hooks == [len(module._forward_hooks) for module in model.modules()]
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert model[1].mix.weight.grad is None
    assert torch.equal(random, torch.get_rng_state())
    assert dtype == torch.get_default_dtype() == torch.float32


def encoder(width=24, **more):
    layer = nn.TransformerEncoderLayer(width, 4, 48, batch_first=True, **more)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Both(nn.Module):
    """Two recurrences of opposite directions: each is causal, the whole is not meant to be."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(37, 12)
        self.there, self.back = (nn.GRU(12, 12, batch_first=True) for _ in range(2))

    def forward(self, ids):
        x = self.embed(ids)
        return self.there(x)[0] + self.back(x.flip(1))[0].flip(1)


class TurnedInside(nn.Module):
    """Ids with the batch first, attention with positions first, and a mask of floats."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(37, 12), nn.MultiheadAttention(12, 3)

    def forward(self, ids):
        x = self.embed(ids).transpose(0, 1)
        hidden = torch.full((len(x), len(x)), float("-inf")).triu(1)
        return (x + self.mix(x, x, x, attn_mask=hidden)[0]).transpose(0, 1)


LAWFUL = {
    "encoder": (lambda: encoder(), "encoder"),
    "encoder, norm first": (lambda: encoder(norm_first=True), "encoder"),
    "nn.Transformer": (
        lambda: nn.Transformer(24, 4, 2, 2, 48, batch_first=True),
        "cross-attention",
    ),
    "TransformerDecoder, time first": (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(24, 4, 48), 2),
        "cross-attention",
    ),
    "MultiheadAttention": (
        lambda: nn.MultiheadAttention(24, 4, batch_first=True),
        "cross-attention",
    ),
    "LSTM": (lambda: nn.LSTM(12, 20, batch_first=True), "decoder"),
    "LSTM, time first": (lambda: nn.LSTM(12, 20), "decoder"),
    "LSTM, both ways": (lambda: nn.LSTM(12, 20, batch_first=True, bidirectional=True), "encoder"),
    "attention, time first inside": (TurnedInside, "decoder"),
    "two GRUs": (Both, "encoder"),
    "image": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Flatten(), nn.Linear(512, 5)),
        "vision",
    ),
    "classifier": (lambda: nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3)), "encoder"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAWFUL)
def test_lawful_models_raise_no_alarm(name):
    make, kind = LAWFUL[name]
    report = check(make())
    assert report.kind == kind
    bad = [f for f in report.laws if f.verdict in ("violated", "error", "tie")]
    assert bad == []


class AlwaysDropping(nn.Module):
    """Fused attention that is told to drop weights in evaluation mode, too."""

    def __init__(self):
        super().__init__()
        self.embed, self.maps = nn.Embedding(37, 12), nn.Linear(12, 36)

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = (part[:, None] for part in self.maps(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        return x + mixed[:, 0]


def test_dropout_that_stays_on_is_charged_once():
    assert [f.law for f in check(AlwaysDropping()).violations] == ["determinism"]


OFTEN = ("argmax", "mistral", "transformer", "vit")  # the others in the long suite


@pytest.mark.parametrize("name", ["encoder", "decoder", "encoder-decoder"])
def test_models_of_torch_layers_are_lawful(name):
    report = check(name)
    assert report.kind == name
    assert [f for f in report.laws if f.verdict in ("violated", "error", "tie")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(p, marks=[] if p in OFTEN else pytest.mark.full) for p in list(PRESETS)[3:]],
)
def test_our_presets_are_lawful(name):
    report = check(name)
    assert [f for f in report.laws if f.verdict in ("violated", "error", "tie")] == []
    if report.kind in ("decoder", "encoder-decoder"):
        assert {report.law(f"cache.{n}").verdict for n in ("step", "chunk", "generate")} == {
            "holds"
        }
    if name == "argmax":
        assert "no derivative" in report.law("gradient.reaches").note
    if name == "mistral":
        assert report.law("backend.agree").verdict == "holds"


def test_the_owner_may_say_what_trying_cannot_tell():
    model = encoder()
    assert check(model).violations == []
    assert check(model, kind="decoder", laws=["causality"]).violations != []
    assert check(Subject(model, causal=True), laws=["causality.perturb"]).violations != []
    assert check(stack(0, 1), kind="encoder", laws=["causality"]).violations == []


@pytest.mark.parametrize("form", ["module", "method", "function", "example"])
def test_forward_may_be_a_module_a_method_or_a_function(form):
    net = stack(0, 1)
    said = {
        "module": lambda: Subject(net),
        "method": lambda: Subject(net.forward),
        "function": lambda: Subject(lambda ids: net(ids)),
        "example": lambda: Subject(
            lambda ids: net(ids), example=torch.zeros(2, 5, dtype=torch.long)
        ),
    }[form]()
    report = check(said, laws=["causality.perturb"])
    assert report.law("causality.perturb").module == "2"


class Odd(nn.Module):
    """What it returns is up to `form`."""

    def __init__(self, form):
        super().__init__()
        self.form, self.net = form, stack(0)

    def forward(self, ids):
        logits = self.net(ids)
        return {
            "tuple": (object(), logits, None),
            "dict": {"loss": logits.sum(), "logits": logits, "past_key_values": object()},
            "nested": {"answers": [(logits, {"more": 3})]},
            "flat": logits.flatten(0, 1),
            "time first": logits.transpose(0, 1),
        }[self.form]


@pytest.mark.parametrize("form", ["tuple", "dict", "nested", "flat", "time first"])
def test_odd_outputs_are_understood(form):
    report = check(Odd(form), laws=["causality", "batch", "determinism"])
    assert {f.verdict for f in report.laws} == {"holds"}


class Moody(nn.Module):
    def __init__(self, mood):
        super().__init__()
        self.mood, self.net, self.calls = mood, stack(0), 0

    def forward(self, ids):
        if self.mood == "raises":
            raise RuntimeError("the width must be even")
        if self.mood == "returns nothing":
            return None
        logits = self.net(ids)
        if self.mood == "refuses float64" and logits.dtype is torch.float64:
            raise RuntimeError("no kernel for float64")
        if self.mood == "is random":
            logits = logits + torch.randn_like(logits)
        if self.mood == "remembers":
            self.calls += 1
            logits = logits * self.calls
        return logits


@pytest.mark.parametrize(
    ("mood", "verdict", "words"),
    [
        ("raises", "error", "the width must be even"),
        ("returns nothing", "error", "no floating tensor"),
        ("refuses float64", "holds", ""),
        ("is random", "not-applicable", "the same call gives another answer"),
        ("remembers", "holds", ""),  # every run begins with a copy that has not run
    ],
)
def test_a_difficult_model_yields_a_verdict_and_a_sentence(mood, verdict, words):
    report = check(Moody(mood))
    finding = report.law("causality.perturb")
    assert finding.verdict == verdict
    assert words in finding.note
    same = mood not in ("is random", "remembers")
    assert same or report.law("determinism").verdict == "violated"
    assert str(report)


def test_what_keeps_every_law_from_being_tried_is_said_once():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = stack(0)

        def forward(self, ids):
            return self.net(ids).square().mean()

    said = " ".join(str(check(Loss())).split())
    assert said.startswith("Loss (unknown) no law could be tried its output")
    assert said.count("returns scores or hidden states, and not only a loss") == 1


def test_vacuous_is_not_holds():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 8)

        def forward(self, ids):
            return self.embed(ids) * 0 + 1

    report = check(Subject(Constant(), causal=True), laws=["causality.perturb", "batch.others"])
    assert {f.verdict for f in report.laws} == {"vacuous"}


def test_the_report_says_what_it_found():
    report = check(stack(0, 1))
    assert isinstance(report, Report)
    text = str(report)
    for words in (" laws tried, 3 broken", "BROKEN causality.perturb", "first module to blame: 2"):
        assert words in text
    with pytest.raises(KeyError, match="no law `causality` was tried"):
        report.law("causality")


def test_the_report_as_json_has_the_documented_fields():
    report = check(stack(0, 1))
    made = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert made["schema"] == 1
    assert {"target", "kind", "built", "seconds", "versions", "seed", "weights", "laws"} <= set(
        made
    )
    for finding in made["laws"]:
        assert {
            "law", "verdict", "deviation", "floor", "where", "module", "setting", "repro", "note",
        } <= set(finding)  # fmt: skip
        assert finding["verdict"] in VERDICTS
    assert Report.from_json(made).as_json() == report.as_json()
    newer = made | {"new": 1, "laws": [finding | {"newer": 2} for finding in made["laws"]]}
    assert Report.from_json(newer).as_json() == report.as_json()


def test_a_checkout_that_was_not_installed_is_used_all_the_same(monkeypatch):
    from importlib import metadata

    read = metadata.version

    def missing(name):
        return read("no such package" if name == "querykey" else name)

    monkeypatch.setattr(metadata, "version", missing)
    told = check(stack(0), laws=["purity"]).as_json()["versions"]
    assert told["torch"] == torch.__version__
    assert "querykey" not in told


def test_assert_lawful_is_for_test_suites():
    assert_lawful(stack(0, 0))
    with pytest.raises(AssertionError, match=r"first module to blame: 2"):
        assert_lawful(stack(0, 1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # importing torch's compiler warns
def test_a_compiled_model_is_seen_through():
    model = stack(0, 1)
    plain, compiled = check(model), check(torch.compile(model))
    assert compiled.target == "Sequential"
    assert [(f.law, f.verdict, f.module) for f in compiled.laws] == [
        (f.law, f.verdict, f.module) for f in plain.laws
    ]
    told = Subject(torch.compile(stack(0, 1)), causal=True)
    assert check(told, laws=["causality.perturb"]).violations[0].module == "2"


def test_a_law_of_ones_own():
    law = Law(
        "mine.size",
        says="Answers stay below a thousand.",
        why="Otherwise a sum overflows.",
        how="Nothing is changed.",
        trials=lambda runner, setting: [Outcome(0.0 if runner.signature.sequential else 1.0)],
        sweep=lambda runner: [LAWS[0].sweep(runner).__next__()],
    )
    assert check(stack(0), laws=[law, "purity"]).law("mine.size").verdict == "holds"


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("no law is called `casuality`", lambda: check(stack(0), laws=["casuality"])),
        ("no law is called ``", lambda: check(stack(0), laws=[""])),
        ("kind is one of", lambda: check(stack(0), kind="decodr")),
        ("weights is random, own or both", lambda: check(stack(0), weights="mine")),
    ],
)
def test_a_wrong_call_is_told(words, call):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("laws", [[3], 3, [None]])
def test_a_law_that_is_no_name_is_told(laws):
    with pytest.raises(TypeError, match=r"a law is a name or a Law, not (3|None)"):
        check(stack(0), laws=laws)


def test_laws_are_chosen_by_how_their_names_begin():
    names = [f.law for f in check(stack(0), laws=["caus", "batch.a", "*.gradient"]).laws]
    assert names == [
        "causality.perturb", "causality.gradient", "causality.prefix", "batch.alone",
        "padding.gradient",
    ]  # fmt: skip


def test_the_lift_turns_float32_into_float64_and_stills_dropout():
    x = torch.ones(3, dtype=torch.float64)
    with lifted():
        assert x.float().dtype is torch.float64
        assert x.to(torch.float32).dtype is torch.float64
        assert x.softmax(-1, dtype=torch.float32).dtype is torch.float64
        assert torch.zeros(2).dtype is torch.float64
        assert torch.equal(nn.functional.dropout(x, 0.9, True), x)
    assert x.float().dtype is torch.float32
    assert torch.zeros(2).dtype is torch.float32


def test_redrawn_weights_leave_the_model_and_frozen_tables_alone():
    model = stack(0)
    model[0].weight.requires_grad_(False)
    twin = randomised(model)
    assert torch.equal(twin[0].weight.float(), model[0].weight)
    assert not torch.equal(twin[1].mix.weight.float(), model[1].mix.weight)
    assert torch.equal(randomised(model)[1].mix.weight, twin[1].mix.weight)


def test_the_page_on_laws_runs_and_names_every_law():
    text = (Path(__file__).parents[2] / "docs" / "laws.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(block, {"__name__": "page"})
    for law in LAWS:
        family, _, member = law.name.partition(".")
        assert family in text
        assert member in text
