"""Kernel attention has a cost: an operator's own formula, found in torch's registry."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import querykey as qk
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
    assert str(report.valid) == "seq >= 2"  # the sum over one token copies nothing
    assert str(report.order("flops.forward")) == "O(batch seq)"
    assert str(report.order("flops.backward")) == "O(batch seq)"


def test_its_forward_formula_by_hand(report):
    width, heads, size, vocabulary, rows = 32, 2, 16, 40, 209
    # 1, x_i and blocks of 8 letters: letters 0 to 7 with all 16, 8 to 15 with 8.
    assert rows == 1 + 16 + 8 * 16 + 8 * 8
    layers = 2 * (4 * width * width + 8 * width * width) + 2 * width * vocabulary
    sums = heads * 2 * 2 * rows * (size + 1)
    pairs = heads * 2 * (size + size + 1)
    batch, seq = (report.symbols[name] for name in ("batch", "seq"))
    for tokens in (7, 256, 1000):
        wanted = 3 * tokens * (layers + sums + pairs * min(tokens, 256))
        assert report.flops.forward.subs({batch: 3, seq: tokens}) == wanted


@pytest.mark.parametrize("tokens", [5, 300])
def test_torch_counts_the_same(model, report, tokens):
    ids = torch.randint(0, 40, (2, tokens))
    with FlopCounterMode(display=False) as counter:
        out = model(ids)
        forward = counter.get_total_flops()
        out.sum().backward()
    found = report.at(batch=2, seq=tokens).flops
    assert (found.forward, found.backward) == (forward, counter.get_total_flops() - forward)
