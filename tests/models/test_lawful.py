"""Our models are lawful, and have a formula: every preset, mechanism and kind of positions."""

import json
from dataclasses import replace

import pytest
import torch
from tests.models import test_text as text

import querykey as qk
from querykey.attention.biases import ALiBi
from querykey.attention.positions import Rotary
from querykey.cli import run
from querykey.models import (
    PRESETS,
    Decoder,
    Distances,
    Encoder,
    Learned,
    Sinusoidal,
    build,
    preset,
    presets,
)

# Argmax's queries and keys get no gradient: that is what it is.
INHERENT = {"argmax": {"gradient.reaches"}}
MECHANISMS = {
    "softcap": qk.Softmax(softcap=5.0),
    "polynomial": qk.Kernel(qk.Polynomial(4), scale=0.25),
    "taylor": qk.Kernel(qk.Taylor(2), scale=0.25),
    "random": qk.Kernel(qk.RandomFeatures(24), scale=0.25),
    "similarity": qk.Similarity(lambda q, k: (q @ k.mT / 4).exp()),
}
POSITIONS = {
    "none": None,
    "learned": Learned(64),
    "sinusoidal": Sinusoidal(),
    "rotary": Rotary(layout="interleaved"),
    "half rotary": Rotary(width=8),
    "alibi": ALiBi(4),
    "distances": Distances(8, 16),
}


def broken(report):
    return {finding.law for finding in report.violations}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_lawful(name):
    assert broken(qk.check(name)) <= INHERENT.get(name, set())


# A window of 4096 tokens and two lengths take many passes.
LONG = [pytest.param(name, marks=pytest.mark.full) for name in ("mistral", "t5")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*LONG, *(name for name in PRESETS if name not in ("mistral", "t5"))]
)
def test_presets_have_a_formula(name, capsys):
    assert run(["cost", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def lawful(model):
    assert broken(qk.check(model)) == set()
    report = qk.cost(model, qk.tokens("batch", "seq"))
    at = report.at(batch=2, seq=7)
    assert at.flops.forward > 2 * 2 * 7 * 64**2
    return report


@pytest.mark.full
@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanisms(name):
    torch.manual_seed(0)
    lawful(Decoder(presets.mechanism(MECHANISMS[name])))


@pytest.mark.full
@pytest.mark.parametrize("name", POSITIONS)
def test_positions(name):
    torch.manual_seed(0)
    lawful(Decoder(replace(presets.gpt(), positions=POSITIONS[name])))
    lawful(Encoder(replace(presets.bert(), positions=POSITIONS[name])))


def test_the_cost_of_gates_is_counted():
    """A gate per key head and layer: a row of weights and a bias, and the product with them."""
    plain, gated = (
        qk.cost(build(preset(name)), qk.tokens("batch", "seq")).at(batch=3, seq=512)
        for name in ("quadratic", "quadratic-decay")
    )
    layers, heads, width = 2, 4, 64
    assert gated.params - plain.params == layers * heads * (width + 1)
    products = 2 * 3 * 512 * layers * heads * width
    assert gated.flops.forward - plain.flops.forward == products
    assert gated.flops.pointwise > plain.flops.pointwise


@pytest.mark.slow
def test_the_check_can_fail():
    model = text.decoder()
    model.stack.blocks[1].attention.mask = qk.FULL
    assert "causality.perturb" in broken(qk.check(model))
