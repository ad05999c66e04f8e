"""Twenty architectures of `transformers`: formulas against a real run at other sizes."""

import pytest
import torch

import querykey as qk
from querykey.costs.command import inputs_of
from querykey.costs.counting.counts import counts_of
from querykey.costs.counting.passes import PassOptions, PassSetting, run_pass
from querykey.costs.inputs import Inputs
from querykey.costs.sums import sums_at
from querykey.targets import build

pytest.importorskip("transformers", reason="the extra `hf` is not installed")

SAMPLE = (
    "albert cohere deepseek_v3 distilbert electra falcon gemma2 gpt_neox gptj mistral mixtral "
    "modernbert mpnet mpt olmo2 opt phi3 qwen3 roformer starcoder2"
)
SIZES = {"batch": 3, "seq": 10}
OPTIONS = PassOptions(attention="math")


def really(target):
    """FLOPs forward and backward and saved bytes of one real run on the CPU."""
    generator = torch.Generator().manual_seed(0)
    example = {e.name: e.make(SIZES, generator) for e in target.inputs if e.required}
    trace = run_pass(target.model, Inputs((), example), OPTIONS, PassSetting({}))
    found = sums_at(counts_of(trace, target.model, {}).own, {})
    return [
        sum(n for (_, metric), n in found.items() if metric == name)
        for name in ("forward", "backward", "saved")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE.split())
def test_a_formula_gives_what_a_real_run_costs(name):
    target = build(f"hf:{name}")
    report = qk.cost(target.model, inputs_of(target), attention="math", engine="symbolic")
    at = report.at(**SIZES)
    assert [at.flops.forward, at.flops.backward, at.saved_bytes] == really(target)
    assert report.complete
