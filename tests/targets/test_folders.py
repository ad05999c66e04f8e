"""Folders whose weights are not those of the model are refused, before memory is taken."""

import json
import math

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import querykey as qk
from querykey import models
from querykey.models.folders.files import read_settings
from querykey.targets import TargetError, build, outline

MODELS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=31, n_positions=16, n_embd=12, n_layer=2, n_head=2)
    ),
    "bert": lambda: transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=31, hidden_size=12, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=20, max_position_embeddings=16,
        )
    ),
}  # fmt: skip
LAYERS = {"gpt2": "n_layer", "bert": "num_hidden_layers"}
EPSILON = {"gpt2": "layer_norm_epsilon", "bert": "layer_norm_eps"}


@pytest.fixture(params=MODELS)
def folder(request, tmp_path):
    MODELS[request.param]().save_pretrained(str(tmp_path))
    return tmp_path


def weights(folder, change):
    """Rewrite the tensors of a folder through a function of a dict."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def config(folder, **entries):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def a_weight(tensors):
    return next(name for name in sorted(tensors) if tensors[name].ndim == 2)


def rename(tensors):
    tensors["other"] = tensors.pop(a_weight(tensors))


def cut(tensors):
    tensors[a_weight(tensors)] = tensors[a_weight(tensors)][:-1].clone()


def whole(tensors):
    tensors[a_weight(tensors)] = tensors[a_weight(tensors)].to(torch.int64)


def eight_bits(tensors):
    tensors[a_weight(tensors)] = tensors[a_weight(tensors)].to(torch.float8_e4m3fn)


CHANGES = {
    "missing": (lambda t: t.pop(a_weight(t)), "lacks 1 of the"),
    "unexpected": (lambda t: t.update(new=torch.ones(2)), "without a place in its .*: 1, such as"),
    "renamed": (rename, "lacks 1 of the"),
    "cut": (cut, r"tensor `.*` is \(.*\), and by config.json it is \(.*\)$"),
    "integer": (whole, "holds I64 in the file; weights are floats of 16 bits or more"),
    "8 bits": (eight_bits, "holds F8_E4M3 in the file; weights are floats of 16 bits or more"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tensors_that_are_not_the_models_are_refused(folder, change):
    build(str(folder))
    act, text = CHANGES[change]
    weights(folder, act)
    with pytest.raises(TargetError, match=text):
        build(str(folder))


ENTRIES = {
    "type": ({"model_type": "nosuch"}, "has no architecture `nosuch`"),
    "no text": ({"model_type": 5}, "names no model_type$"),
    "a list": ({"model_type": []}, "names no model_type$"),
    "no list": ({"architectures": 5}, "`architectures` is a list of names$"),
    "class": ({"architectures": ["Evil"]}, "has no model class `Evil`"),
    "no model": ({"architectures": ["AutoConfig"]}, "has no model class `AutoConfig`"),
    "another": ({"architectures": ["T5ForConditionalGeneration"]}, "of the type `t5`, not"),
    "number": ({"architectures": [5]}, "has no model class `5`"),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_entries_that_name_nothing_are_refused(folder, entry):
    entries, text = ENTRIES[entry]
    config(folder, **entries)
    with pytest.raises(TargetError, match=text):
        build(str(folder))
    with pytest.raises(TargetError, match=text):
        outline(str(folder / "config.json"))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is no JSON: JSONDecodeError: "),
        ("{}".encode("utf-16"), "is no JSON: UnicodeDecodeError: "),
        (b"[" * 99999, "is no JSON: RecursionError: "),
        (b"[1]", "holds no JSON object$"),
        (b"{}", "names no model_type$"),
    ],
)
def test_a_config_that_is_none_is_called_that(folder, content, text):
    (folder / "config.json").write_bytes(content)
    for read in (lambda: build(str(folder)), lambda: outline(str(folder / "config.json"))):
        with pytest.raises(TargetError, match=text):
            read()


def test_hostile_numbers_are_refused_before_memory_is_taken(folder):
    kind = read_settings(folder)["model_type"]
    for key, value, text in (
        (LAYERS[kind], 10**12, r"is 1000000000000, and more than"),
        ("vocab_size", 10**15, r"a size is at most"),
        (EPSILON[kind], float("nan"), r"is nan, which is no number"),
        (EPSILON[kind], float("inf"), r"is inf, which is no number"),
        (EPSILON[kind], -1.0, r"is -1.0, which is no number"),
    ):
        before = (folder / "config.json").read_text()
        config(folder, **{key: value})
        with pytest.raises(TargetError, match=text):
            build(str(folder))
        with pytest.raises(TargetError, match=r"is 1000|a size is|is no number|made"):
            outline(str(folder / "config.json"))
        with pytest.raises(models.FolderError):
            models.load(folder)
        (folder / "config.json").write_text(before)
    config(folder, **{EPSILON[kind]: 0.0})  # which is a number to add
    build(str(folder))


def test_a_shard_outside_the_folder_is_called_that(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "../secret.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    words = r"'\.\./secret\.safetensors' is outside the folder"
    with pytest.raises(models.FolderError, match=words):
        models.load(folder)
    with pytest.raises(TargetError, match=words):
        build(str(folder))
    index["weight_map"] = dict.fromkeys(tensors, "gone.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(TargetError, match=r"its shard `gone\.safetensors` is missing$"):
        build(str(folder))
    (folder / "model.safetensors.index.json").write_text("[1]")
    with pytest.raises(TargetError, match=r"index\.json is no index of shards$"):
        build(str(folder))


@pytest.mark.parametrize("factor", [0.0, -2.0, math.inf])
def test_positions_that_nothing_can_be_divided_by_are_refused(factor, tmp_path):
    models.save(models.build(models.preset("llama")), tmp_path / "model")
    file = tmp_path / "model/config.json"
    rope = {"rope_type": "linear", "factor": factor, "rope_theta": 1e4}
    config = json.loads(file.read_text()) | {"rope_parameters": rope}
    file.write_text(json.dumps(config))
    with pytest.raises(
        TargetError, match=r"`rope_parameters\.factor` is .*, which is no number to"
    ):
        build(str(tmp_path / "model"))


def test_a_head_of_no_features_is_not_the_default(tmp_path):
    """An earlier version took 0 as if nothing stood there."""
    models.save(models.build(models.preset("llama")), tmp_path / "model")
    file = tmp_path / "model/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"head_dim": 0}))
    with pytest.raises(qk.QuerykeyError, match=r"config\.json: key_dim is at least 1; got 0"):
        models.load(tmp_path / "model")
