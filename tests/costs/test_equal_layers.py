"""Equal layers are traced twice: the rest must cost the same, and is counted to make sure."""

from functools import partial

import pytest
import torch
from torch import nn

import querykey as qk
from querykey.costs.counting.equal_layers import equal_layers
from querykey.costs.counting.passes import PassOptions
from querykey.costs.formulas.symbolic import symbolic
from querykey.costs.inputs import Inputs
from querykey.costs.measured_model import MeasuredModel

OPTIONS = PassOptions(attention="math")


class Layer(nn.Module):
    """A map whose work may depend on the layer's number, or on a window of its own."""

    def __init__(self, number, window=0, odd=None):
        super().__init__()
        self.layer_idx, self.window, self.odd = number, window, odd
        self.map = nn.Linear(6, 6)

    def forward(self, x, *, scale=1.0):
        x = torch.tanh(self.map(x)) * scale
        if self.layer_idx == self.odd:
            x = self.map(x)
        return x[:, -self.window :] if 0 < self.window < x.size(1) else x


class Stack(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, scale=2.0)
        return x


def traced(model, copy_layers):
    measured = MeasuredModel(model, Inputs.of(qk.array("n", "t", 6)), {}, {})
    return symbolic(measured, OPTIONS, copy_layers=copy_layers)


def test_a_copied_layer_costs_what_it_costs_when_it_runs():
    model = Stack([Layer(number) for number in range(6)])
    short, whole = traced(model, True), traced(model, False)
    assert short.derivation.copied
    assert not whole.derivation.copied
    assert short.own == whole.own
    assert str(short.valid) == str(whole.valid)
    assert all("forward" not in vars(layer) for layer in model.layers)


@pytest.mark.slow
def test_layers_of_attention_within_layers():
    layers = [nn.TransformerEncoderLayer(12, 3, 20, 0.0, batch_first=True) for _ in range(4)]
    model = nn.Sequential(*(nn.Sequential(nn.Linear(12, 12), layer) for layer in layers))
    inputs = qk.array("n", "t", 12)
    short, whole = (qk.cost(model, inputs, engine=e) for e in ("auto", "symbolic"))
    assert short.modules == whole.modules


def test_a_layer_that_does_more_because_of_its_number_is_found():
    model = Stack([Layer(number, odd=4) for number in range(6)])
    assert traced(model, True).own != traced(model, False).own
    report = qk.cost(model, qk.array("n", "t", 6))
    assert str(report.flops.forward) == f"{7 * 72}*n*t"
    assert str(report.modules["layers.4"].flops.forward) == "144*n*t"


def test_only_layers_that_are_made_alike_are_copied():
    windows = Stack([Layer(number, window=20 + number) for number in range(6)])
    assert equal_layers(windows) == []
    report = qk.cost(windows, qk.array("n", "t", 6))
    assert (str(report.valid), str(report.below.valid)) == ("t >= 21", "t <= 20")
    assert equal_layers(Stack([Layer(n).train(n % 2 == 0) for n in range(6)])) == []
    tied = Stack([Layer(number) for number in range(6)])
    for layer in tied.layers:
        layer.map = tied.layers[0].map
    assert equal_layers(tied) == []
    assert [len(layers) for layers in equal_layers(Stack([Layer(n) for n in range(6)]))] == [6]
    settings = ("tanh", "tanh", "tanh", "tanh", "none", "none")
    partials = Stack([Layer(number) for number in range(6)])
    for layer, approximate in zip(partials.layers, settings, strict=True):
        layer.act = partial(nn.functional.gelu, approximate=approximate)
    assert [len(layers) for layers in equal_layers(partials)] == [4]


def test_layers_that_run_more_than_once_are_run_in_full():
    class Twice(Stack):
        def forward(self, x):
            return super().forward(super().forward(x))

    report = qk.cost(Twice([Layer(number) for number in range(5)]), qk.array("n", "t", 6))
    assert str(report.flops.forward) == f"{2 * 5 * 72}*n*t"
    assert str(report.modules["layers.4"].flops.forward) == "144*n*t"
