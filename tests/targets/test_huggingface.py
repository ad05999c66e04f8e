"""Architectures of `transformers`, without a download; the whole zoo is counted once."""

import json
import statistics
import time

import pytest
import torch

import querykey
from querykey.targets import TargetError, build, pairs
from querykey.targets.folders import OURS

transformers = pytest.importorskip("transformers", reason="the extra `hf` is not installed")
VERSION = transformers.__version__


def refusal(name):
    with pytest.raises(TargetError) as caught:
        build(str(name))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "model_class", "takes"),
    [
        ("hf:gpt2", "GPT2LMHeadModel", ["input_ids", "attention_mask"]),
        ("hf:bert", "BertForMaskedLM", ["input_ids", "attention_mask"]),
        ("hf:bert:causal", "BertLMHeadModel", ["input_ids", "attention_mask"]),
        (
            "hf:t5",
            "T5ForConditionalGeneration",
            ["input_ids", "attention_mask", "decoder_input_ids"],
        ),
        ("hf:vit", "ViTForImageClassification", ["pixel_values"]),
        ("hf:mamba2", "Mamba2ForCausalLM", ["input_ids", "attention_mask"]),
    ],
)  # fmt: skip
def test_the_head_people_use_and_what_it_takes(name, model_class, takes):
    target = build(name)
    assert type(target.model).__name__ == model_class
    assert [each.name for each in target.inputs] == takes
    assert target.run(target.example(batch=2, length=9))[0].shape[0] == 2


def test_random_weights_are_the_same_every_time_and_leave_the_generator_alone():
    torch.manual_seed(5)
    first = build("hf:llama").model.state_dict()
    after = torch.rand(1)
    second = build("hf:llama").model.state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))


def test_shrinking_keeps_each_kind_of_layer_and_of_head():
    gemma = build("hf:gemma2").model.config
    assert sorted(set(gemma.layer_types)) == ["full_attention", "sliding_attention"]
    assert gemma.sliding_window == 8
    jamba = build("hf:jamba").model
    assert {type(layer).__name__ for layer in jamba.model.layers} == {
        "JambaAttentionDecoderLayer", "JambaMambaDecoderLayer"
    }  # fmt: skip
    heads = {
        name: (config.num_attention_heads, config.num_key_value_heads)
        for name in ("llama", "mistral", "gemma")
        for config in [build(f"hf:{name}").model.config]
    }
    assert heads == {"llama": (4, 4), "mistral": (4, 2), "gemma": (4, 4)}


def test_an_encoder_with_a_causal_head_cannot_see_the_future():
    target = build("hf:bert:causal")
    ids = target.example(batch=1, length=6)["input_ids"]
    changed = ids.clone()
    changed[:, -1] = ids[:, 0]
    assert ids[0, -1] != ids[0, 0]
    first, second = (target.run({"input_ids": each}).logits for each in (ids, changed))
    assert torch.equal(first[:, :-1], second[:, :-1])


def test_example_ids_keep_clear_of_special_tokens():
    target = build("hf:roberta")
    config, ids = target.model.config, target.inputs[0]
    special = {config.pad_token_id, config.bos_token_id, config.eos_token_id}
    assert not special & set(range(ids.low, ids.high))


def test_refusals():
    assert refusal("hf:gtp2") == (
        f"`hf:gtp2`: transformers {VERSION} has no architecture `gtp2`; did you mean `gpt2`?"
    )
    assert refusal("hf:") == f"`hf:`: transformers {VERSION} has no architecture ``"
    assert refusal("hf:gpt2:masked") == (
        f"`hf:gpt2:masked`: `gpt2` has no masked head in transformers {VERSION}; it has causal"
    )
    assert refusal("hf:vit:causal") == (
        f"`hf:vit:causal`: `vit` has no causal head in transformers {VERSION}; write `hf:vit`"
    )
    assert refusal("hf:gpt2:casual") == (
        "`hf:gpt2:casual`: a head is one of causal, masked, seq2seq, not `casual`; "
        "did you mean `causal`?"
    )
    assert refusal("hf:meta-llama/Llama-3.1-8B") == (
        "`hf:meta-llama/Llama-3.1-8B`: no weights are downloaded; name the architecture by its "
        "model_type (hf:llama), or give a local folder with config.json and safetensors"
    )


def test_a_model_that_text_alone_does_not_run_says_why():
    assert refusal("hf:voxtral_realtime:seq2seq") == (
        "`hf:voxtral_realtime:seq2seq` does not run when shrunk: ValueError: You must specify "
        "exactly one of input_features or encoder_inputs_embeds"
    )


def test_a_saved_folder_gives_the_same_numbers(tmp_path, capfd):
    saved = build("hf:gpt2")
    saved.model.save_pretrained(tmp_path)
    capfd.readouterr()
    loaded = build(str(tmp_path))
    assert capfd.readouterr() == ("", "")  # no progress bar
    assert (loaded.kind, type(loaded.model)) == ("folder", type(saved.model))
    example = saved.example(batch=2, length=5)
    assert torch.equal(loaded.run(example).logits, saved.run(example).logits)


def test_a_folder_that_only_our_models_read(tmp_path):
    saved = build("elu")
    querykey.models.save(saved.model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == OURS
    loaded = build(str(tmp_path))
    assert (loaded.kind, loaded.note) == ("folder", "weights from the folder")
    example = saved.example()
    saved.model.eval()
    assert torch.equal(loaded.run(example), saved.run(example))
    (tmp_path / "config.json").write_text('{"model_type": "querykey"}')
    assert refusal(tmp_path).startswith(f"folder `{tmp_path}` does not load: FolderError: ")


def test_broken_folders_say_what_is_broken(tmp_path):
    build("hf:gpt2").model.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert refusal(tmp_path).startswith(f"folder `{tmp_path}` does not load: SafetensorError: ")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "gtp2"}))
    assert refusal(tmp_path) == (
        f"`{config}`: transformers {VERSION} has no architecture `gtp2`; did you mean `gpt2`?"
    )


@pytest.mark.slow
def test_at_least_240_architectures_with_heads_build_quickly():
    seconds, reasons = [], {}
    for model_type, head in pairs():
        name = f"hf:{model_type}:{head}"
        began = time.perf_counter()
        try:
            build(name)
        except TargetError as error:
            reasons[name] = str(error)
        else:
            seconds.append(time.perf_counter() - began)
    assert len(seconds) >= 240
    assert statistics.median(seconds) < 0.3
    assert all(reason.startswith(f"`{name}` does not run") for name, reason in reasons.items())
