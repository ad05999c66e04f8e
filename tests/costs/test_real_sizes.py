"""Targets at their own size: published numbers of parameters, and FLOPs derived by hand."""

import json

import pytest
import torch

import querykey as qk
from querykey.costs import cost_of_target
from querykey.targets import TargetError, count_parameters, outline, parse_fields

pytest.importorskip("transformers", reason="the extra `hf` is not installed")

LLAMA = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
LARGE = {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64}
LARGE |= {"num_key_value_heads": 8, "intermediate_size": 28672}
# Each with the parameters that its authors' files hold.
PUBLISHED = {
    "gpt2": ("hf:gpt2", {}, 124_439_808),
    "gpt2-xl": ("hf:gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}, 1_557_611_200),
    "bert-base-uncased": ("hf:bert:masked", {}, 109_514_298),
    "distilbert": ("hf:distilbert:masked", {}, 66_985_530),
    "llama-7b": ("hf:llama", {}, 6_738_415_616),
    "llama-2-70b": ("hf:llama", LARGE, 68_976_648_192),
    "llama-3-70b": ("hf:llama", {**LARGE, "vocab_size": 128256}, 70_553_706_496),
    "mistral-7b": ("hf:mistral", {}, 7_241_732_096),
    "opt-125m": ("hf:opt", {}, 125_239_296),
    "t5-small": ("hf:t5", {}, 60_506_624),
    "gpt-neox-20b": ("hf:gpt_neox", {}, 20_554_567_680),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_at_its_own_size_has_the_published_parameters(name):
    target, fields, parameters = PUBLISHED[name]
    made = outline(target, fields)
    assert count_parameters(made.model) == parameters
    assert {p.device.type for p in made.model.parameters()} == {"meta"}


def by_hand(batch, seq, width, keys, hidden, maps, layers, vocabulary):
    """FLOPs of a decoder: two per weight and token, and two products of scores per layer."""
    weights = layers * (2 * width * width + 2 * width * keys + maps * width * hidden)
    weights += width * vocabulary
    return 2 * batch * seq * weights + layers * 4 * batch * seq * seq * width


@pytest.mark.slow
def test_gpt2_costs_what_its_layers_cost_by_hand():
    report = cost_of_target("hf:gpt2", at="batch=8,seq=1024", attention="math")
    assert report.params == 124_439_808
    forward = by_hand(8, 1024, 768, 768, 3072, 2, 12, 50257)
    assert report.flops.forward == forward
    assert report.flops.backward == 2 * forward
    assert report.settings["target"] == "hf:gpt2"
    assert "default configuration" in report.settings["built"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("llama-7b", (4096, 4096, 11008, 3, 32, 32000)),
        ("llama-3-70b", (8192, 1024, 28672, 3, 80, 128256)),
        ("mistral-7b", (4096, 1024, 14336, 3, 32, 32000)),
        ("gpt-neox-20b", (6144, 6144, 24576, 2, 44, 50432)),
        ("opt-125m", (768, 768, 3072, 2, 12, 50272)),
        ("gpt2-xl", (1600, 1600, 6400, 2, 48, 50257)),
    ],
)
def test_large_decoders_cost_what_their_layers_cost_by_hand(name, sizes):
    target, fields, _ = PUBLISHED[name]
    words = [f"{field}={value}" for field, value in fields.items()]
    report = cost_of_target(target, words, at="batch=3,seq=100", attention="math")
    forward = by_hand(3, 100, *sizes)
    assert (report.flops.forward, report.flops.backward) == (forward, 2 * forward)


CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 48}
CONFIG |= {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIG |= {"intermediate_size": 80, "vocab_size": 101, "dtype": "bfloat16"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_a_bare_configuration_is_a_target_without_weights(folder):
    layer = 2 * 48 * 48 + 2 * 48 * 24 + 3 * 48 * 80 + 2 * 48
    for name in (folder, folder / "config.json"):
        made = outline(str(name))
        assert count_parameters(made.model) == 3 * layer + 2 * 101 * 48 + 48
        assert {p.dtype for p in made.model.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() is torch.float32
    wider = outline(str(folder), {"num_hidden_layers": 5})
    assert count_parameters(wider.model) == 5 * layer + 2 * 101 * 48 + 48
    report = cost_of_target(str(folder / "config.json"), ["num_hidden_layers=1"])
    assert report.params == layer + 2 * 101 * 48 + 48


def test_fields_go_to_presets_and_to_the_arguments_of_a_factory(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(
        "from torch import nn\n"
        "def make(width, layers=2):\n"
        "    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))\n"
    )
    assert count_parameters(outline(f"{file}:make", {"width": 6}).model) == 2 * 42
    assert count_parameters(outline(f"{file}:make", {"width": 6, "layers": 3}).model) == 3 * 42
    assert outline("gpt", {"layers": 5}).model.config.layers == 5


def test_fields_are_read_as_python_reads_them():
    words = ["a=3", "b=0.5", "c=true", "d=none", "e=[1, 2]", "f.g=x", "h=None"]
    fields = {"a": 3, "b": 0.5, "c": True, "d": "none", "e": [1, 2], "f.g": "x", "h": None}
    assert parse_fields(words) == fields


@pytest.mark.parametrize(
    ("target", "words", "said"),
    [
        ("hf:gpt2", ["hidden_sice=3"], "its configuration has no field `hidden_sice`; did you"),
        ("hf:gpt2", ["n_embd"], "`n_embd` sets no field; write FIELD=VALUE"),
        ("hf:gpt2", ["n_layer=1", "n_layer=2"], "`n_layer` is set twice"),
        ("hf:llama", ["num_attention_heads=60"], "is not a multiple of the number of attention"),
        ("hf:llava", ["hidden_size=8"], "_config.hidden_size`?"),
        ("hf:gpt2", ["n_embd.x=3"], "the field `n_embd` has no fields of its own"),
        ("gpt", ["wide=3"], "has no size 'wide'"),
        ("decoder", ["width=3"], "the preset `decoder` has no size that can be set"),
        ("hf:nothing", ["width=3"], "has no architecture `nothing`"),
    ],
)  # fmt: skip
def test_wrong_fields_are_refused_in_one_sentence(target, words, said):
    with pytest.raises(TargetError) as caught:
        cost_of_target(target, words)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_configuration_is_refused(tmp_path):
    file = tmp_path / "config.json"
    for text, said in (
        ("{", "is no JSON"),
        ("{}", "names no model_type"),
        ('{"model_type": "x"}', "no architecture"),
    ):
        file.write_text(text)
        with pytest.raises(TargetError, match=said):
            outline(str(file))


def test_a_part_of_a_composite_configuration_is_set_by_its_path():
    fields = {"text_config.num_hidden_layers": 1, "vision_config.num_hidden_layers": 1}
    config = outline("hf:llava", fields).model.config
    assert config.text_config.num_hidden_layers == 1
    assert config.vision_config.num_hidden_layers == 1
    assert config.text_config.hidden_size == 4096


def test_symbols_of_a_large_model_need_no_memory():
    report = qk.cost(outline("hf:llama", {"num_hidden_layers": 1}).model, qk.tokens("b", "t"))
    assert str(report.flops.forward) == "16384*b*t**2 + 666894336*b*t"
