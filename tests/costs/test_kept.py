"""What attention with grouped heads keeps, beside what torch keeps in real passes on the CPU."""

import pytest
import torch
from tests.costs.measured import measured_peak, measured_saved
from torch import nn
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

import querykey as qk

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
SIZES = {"b": 3, "t": 20}


class Grouped(nn.Module):
    """Eight heads of queries that share two heads of keys and values, and a last map."""

    def __init__(self, ordered):
        super().__init__()
        self.maps, self.out, self.ordered = nn.Linear(32, 48), nn.Linear(32, 32), ordered

    def forward(self, x):
        heads = self.maps(x).unflatten(-1, (12, 4)).transpose(1, 2)
        q, k, v = heads.split((8, 2, 2), 1)
        if self.ordered:  # one head after the other in memory
            q, k, v = (part.contiguous() for part in (q, k, v))
        attended = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(attended.transpose(1, 2).flatten(2))


def llama(cache):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
        intermediate_size=48, vocab_size=61, use_cache=cache,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).train()


@pytest.mark.parametrize("attention", BACKENDS)
def test_shared_heads_keep_what_autograd_keeps(attention):
    model, inputs = Grouped(ordered=False), {"x": torch.ones(3, 20, 32)}
    report = qk.cost(model, {"x": qk.array("b", "t", 32)}, attention=attention)
    assert report.at(**SIZES).saved_bytes == measured_saved(model, inputs, BACKENDS[attention])


def test_an_output_of_fused_attention_is_laid_out_as_its_queries():
    """So heads of queries that lie one after the other are copied to be put beside each other."""
    x = qk.array("b", "t", 32)
    beside, ordered = (qk.cost(Grouped(o), x).at(**SIZES).saved_bytes for o in (False, True))
    maps, queries = 4 * 3 * 20 * 48, 4 * 3 * 20 * 32
    log_sums = 4 * 3 * 20 * 8
    assert beside == maps + log_sums + queries
    assert ordered == maps + log_sums + 2 * queries


@pytest.mark.parametrize("attention", BACKENDS)
@pytest.mark.parametrize("cache", [True, False])
def test_a_llama_keeps_what_autograd_keeps_with_and_without_a_cache(cache, attention):
    """Without a cache it looks for packed sequences, which positions of its own never are."""
    model, ids = llama(cache), torch.zeros(3, 20, dtype=torch.long)
    report = qk.cost(model, {"input_ids": qk.tokens("b", "t")}, attention=attention)
    at = report.at(**SIZES)
    kept = measured_saved(model, {"input_ids": ids}, BACKENDS[attention])
    assert at.saved_bytes == kept
    hidden = sum(key > query for query in range(20) for key in range(20))
    layers, products = 2, 2
    assert at.flops.forward - at.flops.visible == layers * products * 3 * hidden * 2 * 32


def test_positions_that_are_given_may_hold_packed_sequences():
    model, ids = llama(False), torch.zeros(3, 20, dtype=torch.long)
    packed = torch.arange(10).repeat(3, 2)
    inputs = {"input_ids": qk.tokens("b", "t"), "position_ids": qk.tokens("b", "t")}
    at = qk.cost(model, inputs, attention="math").at(**SIZES)
    given = {"input_ids": ids, "position_ids": packed}
    assert at.saved_bytes == measured_saved(model, given, SDPBackend.MATH)
    assert at.flops.visible == at.flops.forward


@pytest.mark.parametrize("train", [True, False], ids=["training", "inference"])
def test_the_peak_of_a_llama_is_that_of_the_cpu_allocator(train):
    model, inputs = llama(False), {"input_ids": qk.tokens("b", "t")}
    report = qk.cost(model, inputs, attention="math", backward=train)
    ours = report.peak("train" if train else "inference", **SIZES)
    assert ours.bytes == measured_peak(model, inputs, SIZES, train)
