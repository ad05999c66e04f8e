"""Formulas against what was derived by hand and counted by loops, at sizes that all differ."""

import pytest
import torch
from tests.costs import by_hand
from torch import nn

import querykey as qk

ENGINES = ("symbolic", "interpolation")


def values(model, inputs, engine, sizes, **options):
    report = qk.cost(model, inputs, engine=engine, attention="math", **options)
    return report.at(**sizes)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_linear_map_and_an_mlp(engine):
    model = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 3))
    at = values(model, qk.array("n", "t", 6), engine, {"n": 5, "t": 7})
    assert at.flops.forward == by_hand.loop_product(35, 6, 10) + by_hand.loop_product(35, 10, 3)
    first = by_hand.linear_backward(35, 6, 10, input_gradient=False)
    assert at.flops.backward == first + by_hand.linear_backward(35, 10, 3)
    assert at.params == 6 * 10 + 10 + 10 * 3 + 3
    # GELU saves its input; the second map saves the output of GELU.
    assert at.saved_bytes == 4 * (35 * 10 + 35 * 10)


def test_gradients_into_the_input_cost_where_they_are_asked_for():
    model = nn.Linear(6, 10)
    without = qk.cost(model, qk.array("n", 6))
    into = qk.cost(model, qk.array("n", 6, grad=True))
    assert into.at(n=5).flops.backward == 2 * without.at(n=5).flops.backward == 2 * 2 * 5 * 60


class Attention(nn.Module):
    """Grouped heads and a value width of its own, by scaled_dot_product_attention."""

    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("engine", ENGINES)
def test_attention(engine):
    q, k = qk.array("n", 3, "t", 4, grad=True), qk.array("n", 3, "s", 4, grad=True)
    v = qk.array("n", 3, "s", 6, grad=True)
    at = values(Attention(), (q, k, v), engine, {"n": 2, "t": 5, "s": 7})
    assert at.flops.forward == by_hand.loop_attention(2, 5, 7, 3, 4, 6)
    assert at.flops.backward == 2 * at.flops.forward


def test_fused_attention_computes_its_scores_twice_and_saves_no_scores():
    inputs = [qk.array("n", 3, "t", 4, grad=True) for _ in range(3)]
    math = qk.cost(Attention(), tuple(inputs), attention="math").at(n=2, t=5)
    flash = qk.cost(Attention(), tuple(inputs), attention="flash").at(n=2, t=5)
    assert flash.flops.forward == math.flops.forward == by_hand.attention(2, 5, 5, 3, 4, 4)
    assert flash.flops.recomputed == by_hand.loop_product(5, 4, 5) * 2 * 3
    assert flash.flops.backward == math.flops.backward + flash.flops.recomputed
    assert flash.saved_bytes == 4 * (2 * 3 * 5 * 4 + 2 * 3 * 5)  # the output, and one sum per query


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 0, 1), (2, 1, 1), (1, 1, 2)])
def test_convolution(engine, stride, padding, groups):
    model = nn.Conv2d(4, 6, 3, stride=stride, padding=padding, groups=groups)
    at = values(model, qk.images("n", 4, 9, 9), engine, {"n": 5})
    forward = by_hand.loop_convolution(5, 4, 6, 9, 3, stride, padding, groups)
    assert (at.flops.forward, at.flops.backward) == (forward, forward)


def test_a_transposed_convolution():
    model = nn.ConvTranspose2d(4, 6, 3, bias=False)
    at = qk.cost(model, qk.images("n", 4, 5, 5, grad=True)).at(n=2)
    assert at.flops.forward == 2 * (2 * 4 * 5 * 5) * 6 * 9
    assert at.flops.backward == 2 * at.flops.forward


@pytest.mark.parametrize("engine", ENGINES)
def test_norm_and_embedding_have_no_products(engine):
    model = nn.Sequential(nn.Embedding(11, 8), nn.LayerNorm(8))
    at = values(model, qk.tokens("n", "t"), engine, {"n": 5, "t": 7})
    assert (at.flops.forward, at.flops.backward, at.params) == (0, 0, 11 * 8 + 16)
    assert at.flops.pointwise == 35 * 8 * 8
    assert at.saved_bytes == by_hand.layer_norm_saved(35, 8)


def test_an_encoder_layer():
    model = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, dropout=0.0)
    at = qk.cost(model, qk.array("n", "t", 12), attention="math").at(n=5, t=7)
    assert at.flops.forward == by_hand.encoder_layer(5, 7, 12, 20)
    into_input = by_hand.linear(35, 12, 36)
    assert at.flops.backward == 2 * at.flops.forward - into_input


@pytest.mark.slow
def test_a_recurrent_net_loops_over_time():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.LSTM(6, 10, batch_first=True)

        def forward(self, x):
            return self.cells(x)[0]

    report = qk.cost(Last(), qk.array("n", "t", 6))
    assert report.engine == "interpolation"
    assert report.at(n=5, t=7).flops.forward == by_hand.lstm(5, 7, 6, 10)
    assert not report.unknown


def test_real_tensors_as_inputs_give_numbers():
    report = qk.cost(nn.Linear(6, 10), torch.zeros(5, 6))
    assert report.symbols == {}
    assert int(report.flops.forward) == by_hand.linear(5, 6, 10)
