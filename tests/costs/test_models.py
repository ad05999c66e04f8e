"""Whole models: their formulas, by both engines, and what autograd really saves."""

import functools

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import querykey as qk

transformers = pytest.importorskip("transformers", reason="the extra `hf` is not installed")

pytestmark = pytest.mark.slow

COMMON = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}


def bert():
    config = transformers.BertConfig(
        **COMMON, intermediate_size=128, vocab_size=97, max_position_embeddings=256
    )
    return transformers.BertModel(config).eval()


def gpt2():
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=97, n_positions=256,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def llama():
    config = transformers.LlamaConfig(
        **COMMON, num_key_value_heads=2, intermediate_size=112, vocab_size=97
    )
    return transformers.LlamaForCausalLM(config).eval()


def t5():
    config = transformers.T5Config(
        d_model=64, num_layers=2, num_heads=4, d_kv=16, d_ff=128, vocab_size=97
    )
    return transformers.T5ForConditionalGeneration(config).eval()


def vit():
    config = transformers.ViTConfig(**COMMON, intermediate_size=128, image_size=32, patch_size=8)
    return transformers.ViTModel(config).eval()


def encoder_layer():
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)


TOKENS = qk.tokens("B", "T")
PAIR = {"input_ids": TOKENS, "decoder_input_ids": qk.tokens("B", "U")}
MODELS = {
    "encoder layer": (
        encoder_layer, qk.array("B", "T", 64),
        "256*B*T**2 + 65536*B*T", "512*B*T**2 + 106496*B*T",
    ),
    "bert": (
        bert, TOKENS,
        "512*B*T**2 + 131072*B*T + 8192*B", "1024*B*T**2 + 262144*B*T",
    ),
    "gpt2": (gpt2, TOKENS, "512*B*T**2 + 209024*B*T", "1024*B*T**2 + 418048*B*T"),
    "llama": (llama, TOKENS, "512*B*T**2 + 147584*B*T", "1024*B*T**2 + 295168*B*T"),
    "t5": (
        t5, PAIR,
        "512*B*T**2 + 512*B*T*U + 163840*B*T + 512*B*U**2 + 176256*B*U",
        "1024*B*T**2 + 1024*B*T*U + 327680*B*T + 1024*B*U**2 + 352512*B*U",
    ),
    "vit": (vit, qk.images("B", 3, 32, 32), "2777600*B", "5145600*B"),
}  # fmt: skip


@functools.cache
def derived(name):
    """A model and its report by both engines, which several tests look at."""
    model = MODELS[name][0]()
    return model, qk.cost(model, MODELS[name][1], attention="math", engine="both")


@pytest.mark.parametrize("name", MODELS)
def test_both_engines_give_the_known_formula_term_for_term(name):
    _, _, forward, backward = MODELS[name]
    report = derived(name)[1]
    assert str(report.flops.forward) == forward
    assert str(report.flops.backward) == backward
    assert "both engines agree term for term" in report.notes
    assert not report.unknown


def test_the_range_in_which_a_formula_holds_is_told():
    report = derived("bert")[1]
    assert str(report.valid) == "T <= 256"
    with pytest.raises(qk.CostError, match="B=1, T=300 is outside the range of this formula"):
        report.at(B=1, T=300)


SIZES = {"B": 3, "T": 11, "U": 5}


def really_saved(model, given):
    """Bytes that autograd saves in a real run, each piece of memory once, nothing known before."""
    made = {
        name: torch.randint(0, 97, [SIZES[a] for a in each.axes])
        if each.kind == "tokens"
        else torch.randn([a if isinstance(a, int) else SIZES[a] for a in each.axes])
        for name, each in given.items()
    }
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    known |= {t.untyped_storage().data_ptr() for t in made.values()}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage
        return tensor

    with sdpa_kernel(SDPBackend.MATH), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = model(**made)
        first = out if isinstance(out, torch.Tensor) else next(iter(out.values()))
        first.sum()
    return sum(storage.nbytes() for storage in found.values())


@pytest.mark.parametrize("name", MODELS)
def test_saved_bytes_are_those_of_a_real_run(name):
    inputs = MODELS[name][1]
    names = {"encoder layer": "src", "vit": "pixel_values"}
    given = inputs if isinstance(inputs, dict) else {names.get(name, "input_ids"): inputs}
    model, report = derived(name)
    sizes = {size: SIZES[size] for size in report.symbols}
    assert report.at(**sizes).saved_bytes == really_saved(model, given)


@pytest.mark.full
def test_llama_7b_without_its_weights():
    config = transformers.LlamaConfig(
        hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
        num_attention_heads=32, vocab_size=32000,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    report = qk.cost(model, TOKENS, attention="math", engine="both")
    assert str(report.flops.forward) == "524288*B*T**2 + 13214154752*B*T"
    assert str(report.flops.backward) == "1048576*B*T**2 + 26428309504*B*T"
    assert report.params == 6738415616
    assert "both engines agree term for term" in report.notes
