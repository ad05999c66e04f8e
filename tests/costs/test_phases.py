"""Reading a prompt and decoding: caches beside real ones, FLOPs beside torch's counter."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import querykey as qk
from querykey.targets import build

HF = ("gpt2", "llama", "gpt_neox", "opt", "falcon", "bloom", "qwen2", "phi3")
OURS = ("gpt", "quadratic")


def real_cache(cache):
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [HF[0], HF[1], *(pytest.param(n, marks=pytest.mark.full) for n in HF[2:])]
)
def test_a_cache_has_the_bytes_and_a_token_the_flops_of_a_real_one(name):
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    model = build(f"hf:{name}:causal").model
    inputs = {"input_ids": qk.tokens("batch", "seq")}
    report = qk.cost(model, inputs, phase="decode", attention="math").at(batch=3, seq=17)
    ids = torch.randint(0, 90, (3, 18))
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        cache = model(ids[:, :17], use_cache=True).past_key_values
        assert report.state_bytes == real_cache(cache)
        with FlopCounterMode(display=False) as counter:
            model(ids[:, 17:], past_key_values=cache, use_cache=True)
    assert report.flops.forward == report.flops.visible == counter.get_total_flops()
    assert (report.flops.backward, report.saved_bytes) == (0, 0)


@pytest.mark.slow
def test_a_window_keeps_as_many_tokens_and_no_more():
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    model = build("hf:mistral:causal").model
    window, layers, heads = model.config.sliding_window, 2, model.config.num_key_value_heads
    inputs = {"input_ids": qk.tokens("batch", "seq")}
    report = qk.cost(model, inputs, phase="decode", near={"seq": 40})
    with torch.no_grad():
        cache = model(torch.zeros(2, 40, dtype=torch.long), use_cache=True).past_key_values
    assert report.at(batch=2, seq=40).state_bytes == real_cache(cache)
    assert real_cache(cache) == 2 * layers * 2 * heads * (window - 1) * model.config.head_dim * 4


class Sums(nn.Module):
    """A decoder whose state is one sum: a token costs the same at any position."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 6), nn.Linear(6, 20)

    def empty_state(self, batch=1):
        return torch.zeros(batch, 6)

    def extend(self, ids, state):
        running = self.embed(ids).cumsum(1) + state[:, None]
        return self.out(running), running[:, -1]

    def forward(self, ids):
        return self.extend(ids, self.empty_state(ids.shape[0]))[0]


def test_a_model_with_extend_has_phases():
    model, inputs = Sums(), qk.tokens("batch", "seq")
    prompt = qk.cost(model, inputs, phase="prefill")
    token = qk.cost(model, inputs, phase="decode")
    assert str(prompt.flops.forward) == "240*batch*seq"
    assert str(token.flops.forward) == "240*batch"
    assert str(token.state_bytes) == str(prompt.state_bytes) == "24*batch"
    assert token.at(batch=5).state_bytes == 120
    assert token.settings["phase"] == "decode"
    assert "phase='decode'" in qk.cost(model, inputs).state_bytes


class Attending(Sums):
    """A decoder whose state is all tokens, and whose prompt is read with a causal flag."""

    def empty_state(self, batch=1):
        return torch.zeros(batch, 0, 6)

    def extend(self, ids, state):
        q, keys = self.embed(ids), torch.cat([state, self.embed(ids)], 1)
        prompt = state.shape[1] == 0
        attend = nn.functional.scaled_dot_product_attention
        out = attend(q[:, None], keys[:, None], keys[:, None], is_causal=prompt)
        return self.out(out[:, 0]), keys


def test_a_new_token_sees_the_whole_prompt_though_a_flag_hid_pairs_while_it_was_read():
    inputs = qk.tokens("batch", "seq")
    token = qk.cost(Attending(), inputs, phase="decode").at(batch=3, seq=10).flops
    assert token.forward == 3 * (2 * 6 * 20 + 2 * 11 * 12)
    assert token.visible == token.forward
    prompt = qk.cost(Attending(), inputs, phase="prefill").at(batch=3, seq=10).flops
    assert prompt.forward == 3 * (10 * 2 * 6 * 20 + 2 * 100 * 12)
    assert prompt.visible == 3 * (10 * 2 * 6 * 20 + 2 * 55 * 12)


def test_the_presets_keep_what_their_equations_say():
    decoder = build("gpt").model
    report = qk.cost(decoder, qk.tokens("batch", "seq"), phase="decode", near={"seq": 40})
    state = decoder.extend(torch.zeros(2, 40, dtype=torch.long), decoder.empty_state(2))[1]
    assert state is not None
    assert report.at(batch=2, seq=40).state_bytes == 2 * 2 * 2 * 40 * 64 * 4  # layers, k and v


def test_models_without_phases_are_refused():
    with pytest.raises(qk.CostError, match="the model has no phases of generation"):
        qk.cost(nn.Linear(3, 2), qk.array("n", 3), phase="decode")
    with pytest.raises(qk.CostError, match="phase is one of train, prefill, decode, not `decod`"):
        qk.cost(nn.Linear(3, 2), qk.array("n", 3), phase="decod")
