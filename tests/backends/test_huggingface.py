"""Our mechanisms inside `transformers` models: the same numbers as theirs, and lawful new ones."""

import pytest
import torch

from querykey.attention.features import Quadratic
from querykey.attention.mechanisms import Argmax, Kernel, Softmax
from querykey.backends.huggingface import register
from querykey.targets import build

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
register("querykey-softmax", Softmax())
register("querykey-quadratic", Kernel(Quadratic(), scale=0.2))
register("querykey-argmax", Argmax())

MODELS = ["gpt2", "llama", "mistral", "gemma2", "qwen3", "bert", "bart", "t5", "vit"]


def logits(model, **inputs):
    with torch.no_grad():
        return model(**inputs)[0]


def padded(target, side):
    example = target.example(batch=2, length=11)
    name = target.inputs[0].name
    if name != "input_ids" or side is None:
        return example
    real = torch.ones(2, 11, dtype=torch.long)
    real[1, :4] = 0
    if side == "right":
        real = real.flip(1)
    return example | {"attention_mask": real}


@pytest.mark.parametrize("side", [None, "right", "left"])
@pytest.mark.parametrize("name", MODELS)
def test_softmax_gives_their_numbers(name, side):
    target = build(f"hf:{name}")
    model, inputs = target.model, padded(target, side)
    model.set_attn_implementation("eager")
    theirs = logits(model, **inputs)
    model.set_attn_implementation("querykey-softmax")
    ours = logits(model, **inputs)
    if side is not None and not model.config.is_encoder_decoder and "attention_mask" in inputs:
        real = inputs["attention_mask"].bool()
        theirs, ours = theirs[real], ours[real]  # outputs of padding mean nothing
    assert (ours - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma2"])
def test_decoding_with_their_cache_gives_their_tokens(name):
    target = build(f"hf:{name}")
    ids = target.example(batch=2, length=5)["input_ids"]
    found = []
    for implementation in ("eager", "querykey-softmax"):
        target.model.set_attn_implementation(implementation)
        options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
        found.append(target.model.generate(ids, pad_token_id=0, **options))
    assert torch.equal(*found)


@pytest.mark.parametrize("implementation", ["querykey-quadratic", "querykey-argmax"])
def test_other_mechanisms_run_and_keep_the_models_mask(implementation):
    target = build("hf:llama")
    target.model.set_attn_implementation(implementation)
    ids = target.example(batch=2, length=9)["input_ids"]
    changed = ids.clone()
    changed[:, -1] = ids[:, 0]
    first, second = (logits(target.model, input_ids=each) for each in (ids, changed))
    assert torch.isfinite(first).all()
    assert torch.equal(first[:, :-1], second[:, :-1])
    assert not torch.equal(first[:, -1], second[:, -1])
    target.model.set_attn_implementation("eager")
    assert not torch.allclose(first, logits(target.model, input_ids=ids))


def test_dropout_is_refused():
    target = build("hf:gpt2")
    target.model.set_attn_implementation("querykey-softmax")
    target.model.train()
    with pytest.raises(ValueError, match="has no attention dropout"):
        target.model(**target.example())
