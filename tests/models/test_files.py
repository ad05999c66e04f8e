"""Whatever is wrong with a folder is one sentence that names the file, and the tensor."""

import json
import math
import shutil
import warnings
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models import cases

import querykey as qk
from querykey.models import PRESETS, ClassHead, FolderError, Learned, build, preset
from querykey.models.folders.families.rope import LinearScaling
from querykey.nn import NormConfig


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    cases.made(cases.DECODERS["gpt2"]).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(gpt2, tmp_path):
    return shutil.copytree(gpt2, tmp_path / "copy")


def settings(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def tensors(folder, change):
    file = folder / "model.safetensors"
    held = load_file(file)
    change(held)
    save_file(held, file, metadata={"format": "pt"})


def cut(folder, keep):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])


def shards(folder):
    model = qk.models.load(folder)
    qk.models.save(model, folder, shard_bytes=9000)
    return sorted(folder.glob("model-*.safetensors"))


def lose_a_shard(folder):
    shards(folder)[1].unlink()


def lie_in_the_index(folder):
    shards(folder)
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    first = index["weight_map"]["transformer.wte.weight"]
    index["weight_map"]["transformer.ln_f.weight"] = first
    file.write_text(json.dumps(index))


def reach_out(folder):
    shutil.copy(folder / "model.safetensors", folder.parent)
    shards(folder)
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"]["transformer.wte.weight"] = "../model.safetensors"
    file.write_text(json.dumps(index))


def become_a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("")


def empty_the_index(folder):
    shards(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')


WTE, FC = "transformer.wte.weight", "transformer.h.1.mlp.c_fc.weight"
BROKEN = {
    "no folder": (lambda f: shutil.rmtree(f), r"copy: there is no such folder"),
    "a file": (become_a_file, r"copy: this is a file; weights are loaded from a folder"),
    "no config": (lambda f: (f / "config.json").unlink(), r"config.json: there is no such file"),
    "no JSON": (lambda f: (f / "config.json").write_text("{"), r"config.json: this is no JSON"),
    "deep JSON": (
        lambda f: (f / "config.json").write_text("[" * 10**5),
        r"config.json: this is no JSON \(maximum recursion",
    ),
    "no JSON for generation": (
        lambda f: (f / "generation_config.json").write_text("{"),
        r"generation_config.json: this is no JSON",
    ),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        r"model.safetensors: there is no such file",
    ),
    "only a pickle": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        r"model.safetensors: .* pytorch_model.bin, and pickles are not opened",
    ),
    "truncated": (
        lambda f: cut(f, 0.9),
        r"model.safetensors: the file ends within tensor `transformer\.\S+`; \d+ bytes are missing",
    ),
    "a shred": (lambda f: cut(f, 0.01), r"model.safetensors: this is no safetensors file"),
    "another file": (
        lambda f: (f / "model.safetensors").write_bytes(b"PK" * 400),
        r"model.safetensors: this is no safetensors file",
    ),
    "missing shard": (
        lose_a_shard,
        r"model-00002-of-\d+.safetensors: this shard is missing; tensor `\S+` should be in it",
    ),
    "wrong index": (
        lie_in_the_index,
        r"model-\S+: tensor `transformer.ln_f.weight` is missing, which model\S+ says is here",
    ),
    "index that reaches out": (
        reach_out,
        r"is outside the folder; a shard is named by its file alone",
    ),
    "index of nothing": (empty_the_index, r"index.json: there are no tensors in it"),
    "file of nothing": (
        lambda f: save_file({}, f / "model.safetensors"),
        r"model.safetensors: there are no tensors in it",
    ),
    "unknown architecture": (
        lambda f: settings(f, model_type="mamba"),
        r"config.json: we have no model of the type 'mamba' \(gpt2, llama",
    ),
    "unknown head": (
        lambda f: settings(f, architectures=["GPT2ForTokenClassification"]),
        r"config.json: the architecture 'GPT2ForTokenClassification' is not one that we have",
    ),
    "unknown option": (
        lambda f: settings(f, scale_attn_by_inverse_layer_idx=True),
        r"config.json: `scale_attn_by_inverse_layer_idx` is True; we have only False",
    ),
    "quantized": (
        lambda f: settings(f, quantization_config={"bits": 4}),
        r"config.json: its weights are quantized \(`quantization_config`\)",
    ),
    "unknown activation": (
        lambda f: settings(f, activation_function="laplace"),
        r"config.json: `activation_function` is 'laplace'",
    ),
    "vocabulary too small": (
        lambda f: settings(f, vocab_size=60),
        r"model.safetensors: tensor `transformer.wte.weight` is \(61, 24\), and by config.json it "
        r"is \(60, 24\)",
    ),
    "too many layers": (
        lambda f: settings(f, n_layer=3),
        r"tensor `transformer.h.2.ln_1.weight` is not in model.safetensors",
    ),
    "too few layers": (
        lambda f: settings(f, n_layer=1),
        r"model.safetensors: tensor `transformer.h.1.\S+` has no place in the model",
    ),
    "other heads": (lambda f: settings(f, n_head=5), r"config.json: 24 features do not split"),
    "other width": (
        lambda f: settings(f, n_inner=50),
        r"tensor `transformer.h.0.mlp.c_fc.weight` is \(24, 96\), and by config.json it is \(24",
    ),
    "a tensor is gone": (
        lambda f: tensors(f, lambda held: held.pop(FC)),
        rf"copy: tensor `{FC}` is not in model.safetensors",
    ),
    "a tensor too many": (
        lambda f: tensors(f, lambda held: held.update(extra=torch.ones(2))),
        r"model.safetensors: tensor `extra` has no place",
    ),
    "whole numbers": (
        lambda f: tensors(f, lambda held: held.update({WTE: held[WTE].to(torch.int8)})),
        r"tensor `transformer.wte.weight` is torch.int8; weights are floats of 16 bits or more",
    ),
    "eight bits": (
        lambda f: tensors(f, lambda held: held.update({WTE: held[WTE].to(torch.float8_e5m2)})),
        r"tensor `transformer.wte.weight` is torch.float8_e5m2; weights are floats of 16 bits",
    ),
    "untied": (
        lambda f: tensors(f, lambda held: held.update({"lm_head.weight": held[WTE] + 1})),
        r"model.safetensors: tensor `lm_head.weight` is not `transformer.wte.weight`, though",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_said(name, folder):
    change, words = BROKEN[name]
    change(folder)
    with pytest.raises(FolderError, match=words) as found:
        qk.models.load(folder)
    assert "\n" not in str(found.value)
    assert str(found.value).count(str(folder)) == 1


ROPES = {
    "rope_parameters": {"rope_type": "dynamic", "factor": 2.0},
    "rope_scaling": {"type": "longrope", "factor": 2.0},
}


@pytest.mark.parametrize("field", ROPES)
def test_unknown_rotations_are_refused(field, tmp_path):
    cases.made(cases.DECODERS["llama"]).save_pretrained(tmp_path)
    settings(tmp_path, **{"rope_parameters": None, field: ROPES[field]})
    words = rf"config.json: `{field}` is of the type '(dynamic|longrope)', which is not one that we"
    with pytest.raises(FolderError, match=words):
        qk.models.load(tmp_path)
    settings(tmp_path, **{field: {"rope_type": "linear"}})
    with pytest.raises(FolderError, match=rf"`{field}` of the type 'linear' lacks `factor`"):
        qk.models.load(tmp_path)


def test_every_feature_turns(tmp_path):
    """`transformers` does not read a share of them in Llama's config, so we write and take none."""
    model = build(qk.models.presets.llama())
    config = replace(model.config, positions=replace(model.config.positions, width=4))
    qk.models.save(build(config), tmp_path / "half")
    assert json.loads((tmp_path / "half/config.json").read_text())["model_type"] == "querykey"
    assert qk.models.load(tmp_path / "half").config == config
    qk.models.save(model, tmp_path / "whole")
    settings(tmp_path / "whole", partial_rotary_factor=0.5)
    with pytest.raises(FolderError, match=r"`partial_rotary_factor` is 0\.5; these models turn"):
        qk.models.load(tmp_path / "whole")


# What stands in a config.json must not get past loading, whatever it is.
ENTRIES = {
    "gpt2": ("n_embd", "n_layer", "n_head", "n_positions", "vocab_size", "layer_norm_epsilon"),
    "llama": ("hidden_size", "intermediate_size", "rms_norm_eps", "attention_dropout"),
    "bert": ("type_vocab_size", "layer_norm_eps", "hidden_act", "architectures"),
    "t5": ("feed_forward_proj", "relative_attention_max_distance", "eos_token_id"),
    "vit": ("image_size", "patch_size", "num_channels"),
}
KNOWN = cases.DECODERS | cases.ENCODERS | cases.PAIRS | cases.IMAGES


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_of_the_wrong_kind_is_refused(name, tmp_path):
    KNOWN[name]().save_pretrained(tmp_path)
    before = (tmp_path / "config.json").read_text()
    for entry in ENTRIES[name]:
        for wrong in ("x", -1, [[]], {"a": 1}):
            if (entry, wrong) == ("eos_token_id", -1):
                continue
            settings(tmp_path, **{entry: wrong})
            with pytest.raises(FolderError, match=r"^[^:]*config.json: [^\n]*$"):
                qk.models.load(tmp_path)
            (tmp_path / "config.json").write_text(before)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"eos_token_id": "x"}, "the id of a special token is a whole number; got 'x'"),
        ({"decoder_start_token_id": 61}, "a target begins with a token, and there is no token 61"),
    ],
)
def test_generation_is_told_in_its_own_file(entry, words, tmp_path):
    cases.PAIRS["t5"]().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(entry))
    with pytest.raises(FolderError, match=rf"^[^:]*/generation_config.json: {words}$"):
        qk.models.load(tmp_path)


def test_one_file_counts_before_shards(folder):
    shutil.copy(folder / "model.safetensors", folder.parent)
    first = shards(folder)[0]
    shutil.move(folder.parent / "model.safetensors", folder)
    first.unlink()
    qk.models.load(folder)


def test_a_stored_copy_of_a_tied_head_is_fine(folder):
    tensors(folder, lambda held: held.update({"lm_head.weight": held[WTE].clone()}))
    model = qk.models.load(folder)
    assert model.head.output.weight is model.embed.tokens.weight


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_comes_back(name, tmp_path):
    torch.manual_seed(0)
    model = build(preset(name)).eval()
    qk.models.save(model, tmp_path)
    again = qk.models.load(tmp_path)
    assert type(again) is type(model)
    held = again.state_dict()
    assert all(torch.equal(held[key], tensor) for key, tensor in model.state_dict().items())


BERT = qk.models.presets.bert()
OF_NO_FAMILY = {
    "norm before": replace(BERT, block=replace(BERT.block, norm=NormConfig())),
    "another pooler": replace(BERT, head=None, pooler="gelu"),
    "a plain head": replace(BERT, head=ClassHead(3)),
    "positions from 2 on": replace(BERT, positions=Learned(30, 2)),
    "no segments": replace(BERT, embedding=replace(BERT.embedding, types=0)),  # theirs has no sum
}


@pytest.mark.parametrize("name", OF_NO_FAMILY)
def test_an_encoder_of_no_family_is_saved_as_ours(name, tmp_path):
    torch.manual_seed(0)
    model, ids = build(OF_NO_FAMILY[name]).eval(), torch.randint(0, 128, (2, 7))
    qk.models.save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "querykey"
    again = qk.models.load(tmp_path)
    assert again.config == model.config
    assert torch.equal(again(ids), model(ids))


def test_a_config_that_cannot_be_written_is_refused(tmp_path):
    config = qk.models.presets.mechanism(qk.Similarity(lambda q, k: (q @ k.mT).exp()))
    with pytest.raises(FolderError, match="cannot be written down"):
        qk.models.save(build(config), tmp_path)


def test_our_own_format_refuses_what_it_does_not_know(tmp_path):
    qk.models.save(build(preset("quadratic")), tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["model_type"] == "querykey"
    record["config"]["block"]["attention"]["mechanism"]["is"] = "Popen"
    (tmp_path / "config.json").write_text(json.dumps(record))
    with pytest.raises(FolderError, match="there is no 'Popen'"):
        qk.models.load(tmp_path)


def test_the_name_of_a_stretched_rotation_in_config_json_stays(tmp_path):
    """Folders that were saved before the class had its present name are still read."""
    config = qk.models.presets.mechanism(qk.Kernel(qk.EluPlusOne()))
    config = replace(config, positions=replace(config.positions, scaling=LinearScaling(3.0)))
    qk.models.save(build(config), tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())["config"]
    assert record["positions"]["scaling"] == {"is": "Linear", "factor": 3.0}
    assert qk.models.load(tmp_path).config == config


def test_a_compiled_model_is_saved_as_itself(tmp_path):
    model = build(preset("gpt"))
    qk.models.save(torch.compile(model, backend="eager"), tmp_path)
    held = qk.models.load(tmp_path).state_dict()
    assert all(torch.equal(held[key], tensor) for key, tensor in model.state_dict().items())


def adapt(model):
    """Put a layer around another, as adapters do."""
    block = model.stack.blocks[1].attention
    block.q = torch.nn.Sequential(block.q)


def widen(model):
    model.embed.tokens = torch.nn.Embedding(200, 64)
    model.tie()


def untie(model):
    model.head.output.weight = torch.nn.Parameter(model.head.output.weight + 1)


def add(model):
    model.more = torch.nn.Linear(3, 2)


ALTERED = {
    "other parts": (adapt, r"`stack\.blocks\.1\.attention\.q\.weight` is missing"),
    "more parts": (add, r"`more\.bias` is none of them"),
    "other sizes": (widen, r"`embed\.tokens\.weight` is \(200, 64\), not \(128, 64\)"),
    "another head": (untie, r"`head\.output\.weight` is not `embed\.tokens\.weight`, with which"),
}


@pytest.mark.parametrize("preset_name", ["gpt", "elu"])  # a family's, and one of our own
@pytest.mark.parametrize("name", ALTERED)
def test_a_model_that_its_config_does_not_describe_is_not_saved(name, preset_name, tmp_path):
    (change, words), model = ALTERED[name], build(preset(preset_name))
    qk.models.save(model, tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    change(model)
    with pytest.raises(ValueError, match=f"^save wants the tensors of the model's config; {words}"):
        qk.models.save(model, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_tie_that_came_undone_is_saved_while_both_are_equal(tmp_path):
    model = build(preset("gpt"))
    model.load_state_dict({k: t.clone() for k, t in model.state_dict().items()}, assign=True)
    assert model.head.output.weight is not model.embed.tokens.weight
    qk.models.save(model, tmp_path)
    again = qk.models.load(tmp_path)
    assert torch.equal(again.head.output.weight, model.head.output.weight)
    assert again.head.output.weight is again.embed.tokens.weight


def test_what_is_no_model_of_ours_is_not_saved(tmp_path):
    with pytest.raises(TypeError, match=r"save wants a model of querykey\.models; got Linear"):
        qk.models.save(torch.nn.Linear(2, 2), tmp_path)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(FolderError, match="file: this is a file"):
        qk.models.save(build(preset("gpt")), file)


def test_weights_that_are_not_finite_are_told_of(tmp_path):
    model = qk.models.build(qk.models.preset("gpt"))
    with torch.no_grad():
        model.embed.tokens.weight[3, 1] = 1e6
    qk.models.save(model, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qk.models.load(tmp_path)
    with pytest.warns(UserWarning, match="1 tensor holds numbers beyond float16"):
        qk.models.load(tmp_path, dtype=torch.float16)
    with torch.no_grad():
        model.embed.tokens.weight[3, 1] = math.nan
    qk.models.save(model, tmp_path)
    with pytest.warns(
        UserWarning, match="1 tensor holds NaN or infinity, `embed.tokens.weight` am"
    ):
        qk.models.load(tmp_path)
