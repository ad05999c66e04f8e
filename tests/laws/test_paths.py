"""The path that users take: low precision, fused attention, the model's own device."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from querykey.laws import check
from querykey.laws.catalogue.backends import fused
from querykey.laws.catalogue.precision import precisions
from querykey.laws.check import as_subject
from querykey.laws.run import Setting
from querykey.laws.understanding.understand import understand

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Fused(nn.Module):
    """One layer of torch's fused attention; `fault` breaks it where only users of it look."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.embed, self.place = nn.Embedding(43, 32), nn.Embedding(64, 32)
        self.qkv, self.head = nn.Linear(32, 96), nn.Linear(32, 43)

    def forward(self, ids, attention_mask=None):
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        x = self.embed(ids) + self.place((real.cumsum(1) - 1).clamp(min=0))
        q, k, v = (p.unflatten(-1, (2, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        T = ids.shape[1]
        seen = torch.ones(T, T, dtype=torch.bool, device=ids.device).tril()
        seen = seen & (real[:, None, None, :] > 0) | torch.eye(T, device=ids.device).bool()
        if self.fault == "leak":
            seen = torch.ones_like(seen)
        if self.fault == "low" and torch.backends.cuda.flash_sdp_enabled():
            v = v if v.dtype is torch.float64 else v * 1.5
        mixed = scaled_dot_product_attention(q, k, v, seen)
        return self.head(x + mixed.transpose(1, 2).flatten(2))


def test_the_fused_path_in_low_precision_is_held_against_the_plain_one():
    for fault in ("", "low"):
        runner = understand(as_subject(Fused(fault), None, None))
        found = [o.deviation > runner.facts.threshold for o in fused(runner, Setting())]
        assert len(found) == 4  # two precisions, without padding and with it
        assert set(found) == {bool(fault)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_held_in_low_precision_is_judged_in_it(dtype):
    model = Fused().to(dtype)
    assert precisions(understand(as_subject(model, None, None))) == [dtype]
    report = check(model)
    assert report.violations == []
    assert report.law("dtype.agree").verdict == "holds"


@gpu
def test_a_model_is_checked_where_it_is():
    report = check(Fused().cuda())
    assert [f for f in report.laws if f.verdict in ("violated", "error", "tie")] == []
    for law in ("causality.perturb", "padding.left", "backend.agree", "gradient.reaches"):
        assert report.law(law).verdict == "holds"


@gpu
@pytest.mark.parametrize(
    ("fault", "law"), [("leak", "causality.perturb"), ("low", "backend.agree")]
)
def test_a_fault_is_found_there(fault, law):
    assert check(Fused(fault).cuda(), kind="decoder").law(law).verdict == "violated"


@gpu
@pytest.mark.parametrize("target", ["gpt", "quadratic", "transformer", "vit"])
def test_our_models_are_lawful_there(target):
    from querykey.targets import build

    report = check(build(target).model.cuda())
    assert [f for f in report.laws if f.verdict in ("violated", "error", "tie")] == []


@gpu
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5"])
def test_an_architecture_is_lawful_there(name):
    pytest.importorskip("transformers")
    from querykey.targets import build

    report = check(build(f"hf:{name}").model.cuda())
    assert [f for f in report.laws if f.verdict in ("violated", "error", "tie")] == []


@pytest.mark.slow
def test_flex_attention_of_a_library_is_tried_where_it_offers_it(monkeypatch):
    modeling = pytest.importorskip("transformers.modeling_utils")
    kernels = modeling.ALL_ATTENTION_FUNCTIONS
    usual, ran = kernels["flex_attention"], []

    def twice_as_sharp(module, query, *rest, **kwargs):
        ran.append(module)
        return usual(module, 2 * query, *rest, **kwargs)

    assert check("hf:llama:causal", laws=["paths.backend"]).violations == []
    monkeypatch.setitem(kernels, "flex_attention", twice_as_sharp)
    [finding] = check("hf:llama:causal", laws=["paths.backend"]).violations
    assert ran
    assert "attention is computed by flex_attention and not by eager" in finding.note
    assert finding.module == "model"  # the kinds of masks differ, and attention takes them


def test_what_flex_attention_cannot_do_is_said_and_is_no_failure():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")

    class Flexible(Fused):
        def forward(self, ids):
            x = self.embed(ids)
            q, k, v = (p.unflatten(-1, (2, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
            with torch.compiler.set_stance("force_eager"):
                mixed = flex.flex_attention(q, k, v)
            return self.head(x + mixed.transpose(1, 2).flatten(2))

    finding = check(Flexible(), laws=["gradient.reaches"]).law("gradient.reaches")
    assert finding.verdict == "not-applicable"
    assert "FlexAttention does not support backward on CPU" in finding.note
