"""Kernel attention has a cost: an operator's own formula, found in torch's registry."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

import querykey as qk
from querykey.costs.formulas import registered
from querykey.models import presets


@pytest.fixture(scope="module")
def model():
    return qk.models.Decoder(presets.mechanism(qk.Kernel(qk.Quadratic()), 32, 1, 2, vocabulary=40))


@pytest.fixture(scope="module")
def report(model):
    return qk.cost(model, qk.tokens("batch", "seq"))


def test_a_decoder_with_kernel_attention_is_linear(report):
    assert report.unknown == {}
    assert report.engine == "symbolic"
    assert str(report.order("flops.forward")) == "O(batch seq)"
    assert str(report.order("flops.backward")) == "O(batch seq)"


def test_its_forward_formula_by_hand(report):
    width, heads, size, vocabulary, rows = 32, 2, 16, 40, 209
    # 1, x_i and blocks of 8 letters: letters 0 to 7 with all 16, 8 to 15 with 8.
    assert rows == 1 + 16 + 8 * 16 + 8 * 8
    layers = 2 * (4 * width * width + 8 * width * width) + 2 * width * vocabulary
    sums = heads * 2 * 2 * rows * (size + 1)
    pair = heads * 2 * (size + size + 1)
    batch, seq = (report.symbols[name] for name in ("batch", "seq"))
    few = 522  # two and a half to a row: up to there pairs are faster than sums
    for tokens in (7, 256, 522, 523, 1000):
        attention = pair * tokens if tokens <= few else sums + pair * 256
        wanted = 3 * tokens * (layers + attention)
        assert report.flops.forward.subs({batch: 3, seq: tokens}) == wanted


@pytest.mark.parametrize("tokens", [5, 300, 600])
def test_torch_counts_the_same(model, report, tokens):
    ids = torch.randint(0, 40, (2, tokens))
    with FlopCounterMode(display=False) as counter:
        out = model(ids)
        forward = counter.get_total_flops()
        out.sum().backward()
    found = report.at(batch=2, seq=tokens).flops
    assert (found.forward, found.backward) == (forward, counter.get_total_flops() - forward)


def test_a_formula_whose_arguments_would_be_mixed_up_is_left_out():
    torch.library.define("querykey_tests::named", "(Tensor x, *, int many) -> Tensor")
    register_flop_formula(torch.ops.querykey_tests.named)(lambda x, many, **_: many)
    try:
        assert torch.ops.querykey_tests.named in flop_registry
        assert "querykey_tests.named" not in registered()
        assert "querykey.chunked_forward" in registered()
    finally:
        del flop_registry[torch.ops.querykey_tests.named]
