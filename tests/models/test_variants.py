"""Folders as the world has them: other names, settings in other places, and what is left over."""

import json
from dataclasses import replace

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tests.models import cases

import querykey as qk
from querykey.cli import run
from querykey.models import Autoencoder, AutoencoderConfig, FolderError, build, preset, presets
from querykey.models.decoding.generate import Choice
from querykey.models.probe import Probe
from querykey.models.text.config import EncoderDecoderConfig, Special
from querykey.nn import NormConfig

KNOWN = cases.DECODERS | cases.ENCODERS | cases.PAIRS


def changed(folder, change):
    """Change the tensors of a folder in place."""
    file = folder / "model.safetensors"
    held = load_file(file)
    change(held)
    save_file(held, file, metadata={"format": "pt"})


def configured(folder, name="config.json", **entries):
    file = folder / name
    held = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(held | entries))


def says(model, ids):
    with torch.no_grad():
        out = model(ids, ids) if hasattr(model, "decoder") else model(ids)
    return getattr(out, "logits", out)


def theirs_says(model, ids):
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(input_ids=ids, **more).logits


@pytest.mark.parametrize("name", ["llama-3", "llama-yarn"])
def test_the_original_length_may_stand_beside_the_rotation(name, tmp_path):
    theirs = cases.made(cases.DECODERS[name])
    theirs.save_pretrained(tmp_path)
    rope = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    length = rope.pop("original_max_position_embeddings")
    configured(tmp_path, rope_parameters=rope, original_max_position_embeddings=length)
    ids = cases.token_ids(length=30)
    torch.testing.assert_close(
        says(qk.models.load(tmp_path), ids), theirs_says(theirs, ids), atol=1e-5, rtol=1e-4
    )


def test_one_of_two_rotations_counts(tmp_path):
    theirs, ids = cases.made(cases.DECODERS["llama-3"]), cases.token_ids(length=30)
    theirs.save_pretrained(tmp_path)
    configured(tmp_path, rope_scaling={"rope_type": "linear", "factor": 4.0})
    wanted = theirs_says(type(theirs).from_pretrained(tmp_path), ids)
    torch.testing.assert_close(says(qk.models.load(tmp_path), ids), wanted, atol=1e-5, rtol=1e-4)
    configured(tmp_path, rope_scaling={"rope_type": "dynamic", "factor": 4.0})
    with pytest.raises(FolderError, match="`rope_scaling` is of the type 'dynamic'"):
        qk.models.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("gpt2", {
            "hidden_size": "n_embd", "max_position_embeddings": "n_positions",
            "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
        }),
        ("t5", {
            "hidden_size": "d_model", "num_attention_heads": "num_heads",
            "num_hidden_layers": "num_layers", "head_dim": "d_kv",
        }),
    ],
)  # fmt: skip
def test_entries_may_have_their_other_names(name, entries, tmp_path):
    theirs, ids = cases.made(KNOWN[name]), cases.token_ids()
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    held = json.loads(file.read_text())
    wanted = qk.models.load(tmp_path).config
    file.write_text(json.dumps(held | {other: held.pop(ours) for other, ours in entries.items()}))
    assert qk.models.load(tmp_path).config == wanted
    # Where both are there, the other name counts.
    configured(tmp_path, **dict.fromkeys(entries.values(), 6))
    assert qk.models.load(tmp_path).config == wanted
    torch.testing.assert_close(
        says(qk.models.load(tmp_path), ids),
        theirs_says(type(theirs).from_pretrained(tmp_path), ids),
        atol=1e-5,
        rtol=1e-4,
    )


OTHER_NAMES = {
    "gpt2": ("transformer.wte.weight", "lm_head.weight"),
    "llama-tied": ("model.embed_tokens.weight", "lm_head.weight"),
    "bert-masked": ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    "roberta-masked": ("lm_head.bias", "lm_head.decoder.bias"),
    "t5": ("shared.weight", "decoder.embed_tokens.weight"),
}


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_tied_tensor_may_have_its_other_name(name, tmp_path):
    theirs = cases.made((cases.DECODERS | cases.ENCODERS | cases.PAIRS)[name])
    theirs.save_pretrained(tmp_path)
    wanted, other = OTHER_NAMES[name]

    def rename(held):
        held[other] = held.pop(wanted)

    changed(tmp_path, rename)
    ids = cases.token_ids()
    torch.testing.assert_close(
        says(qk.models.load(tmp_path), ids), theirs_says(theirs, ids), atol=1e-5, rtol=1e-4
    )


def test_an_untied_head_is_no_other_name(tmp_path):
    cases.made(cases.DECODERS["gpt2-untied"]).save_pretrained(tmp_path)
    changed(tmp_path, lambda held: held.pop("transformer.wte.weight"))
    with pytest.raises(FolderError, match=r"transformer\.wte\.weight` is not in"):
        qk.models.load(tmp_path)


def test_a_table_that_the_first_t5s_never_read(tmp_path):
    cases.made(cases.PAIRS["t5"]).save_pretrained(tmp_path)
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    changed(tmp_path, lambda held: held.update({name: torch.ones(8, 3)}))
    qk.models.load(tmp_path)


def test_a_stored_copy_of_a_t5s_table_is_its_tied_head(tmp_path):
    cases.made(cases.PAIRS["t5"]).save_pretrained(tmp_path)
    changed(tmp_path, lambda held: held.update({"lm_head.weight": held["shared.weight"].clone()}))
    theirs, ours = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path), qk.models.load(tmp_path)
    assert theirs.lm_head.weight is theirs.shared.weight
    assert ours.decoder.head.output.weight is ours.decoder.embed.tokens.weight
    assert ours.config.decoder.head.tied


def test_a_second_table_of_tokens_is_refused(tmp_path):
    cases.made(cases.PAIRS["t5"]).save_pretrained(tmp_path)
    changed(tmp_path, lambda held: held.update({"decoder.embed_tokens.weight": torch.ones(61, 24)}))
    with pytest.raises(FolderError, match=r"decoder\.embed_tokens\.weight` is not `shared"):
        qk.models.load(tmp_path)


@pytest.mark.parametrize("name", ["bert-masked", "roberta-masked"])
def test_a_second_bias_of_a_tied_head_is_refused(name, tmp_path):
    cases.made(cases.ENCODERS[name]).save_pretrained(tmp_path)
    bias, copy = OTHER_NAMES[name]
    changed(tmp_path, lambda held: held.update({copy: held[bias].clone()}))
    qk.models.load(tmp_path)
    changed(tmp_path, lambda held: held.update({copy: held[bias] + 1}))
    with pytest.raises(FolderError, match=f"`{copy}` is not `{bias}`, though"):
        qk.models.load(tmp_path)


@pytest.mark.parametrize("name", ["bert-masked", "roberta-masked", "llama"])
def test_padding_ids_get_their_gradient(name, tmp_path):
    theirs = cases.made((cases.DECODERS | cases.ENCODERS)[name])
    pad = theirs.config.pad_token_id
    if pad is None:
        pad = theirs.config.pad_token_id = 5
        theirs.get_input_embeddings().padding_idx = 5
    theirs.save_pretrained(tmp_path)
    ours, ids = qk.models.load(tmp_path), cases.token_ids()
    ids[0, 7:] = pad
    theirs(input_ids=ids).logits.square().sum().backward()
    ours(ids).square().sum().backward()
    wanted = theirs.get_input_embeddings().weight.grad
    torch.testing.assert_close(ours.embed.tokens.weight.grad, wanted, atol=1e-4, rtol=1e-4)
    if name == "roberta-masked":
        wanted = theirs.roberta.embeddings.position_embeddings.weight.grad
        torch.testing.assert_close(ours.embed.positions.weight.grad, wanted, atol=1e-4, rtol=1e-4)


def test_batch_norm_comes_back(tmp_path):
    config = presets.gpt()
    block = replace(config.block, norm=NormConfig("batch"))
    model = build(replace(config, block=block))
    model(torch.randint(0, 9, (4, 5)))
    qk.models.save(model, tmp_path)
    other = qk.models.load(tmp_path)
    ids = torch.randint(0, 9, (2, 5))
    torch.testing.assert_close(other(ids), model.eval()(ids))
    assert int(other.stack.norm.num_batches_tracked) == 1


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "vit"])
def test_a_whole_number_of_a_norm_is_written_as_theirs(name, tmp_path):
    (KNOWN | cases.IMAGES)[name]().save_pretrained(tmp_path)
    for key in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"):
        configured(tmp_path, **{key: 0})
    qk.models.save(qk.models.load(tmp_path), tmp_path / "out")
    hf.AutoConfig.from_pretrained(tmp_path / "out")


@pytest.mark.parametrize("name", ["gpt", "llama", "mistral", "quadratic"])
@pytest.mark.parametrize("rows", [1, 3])
def test_generation_under_autocast(name, rows):
    torch.manual_seed(0)
    model, ids = build(preset(name)).eval(), torch.randint(0, 128, (rows, 5))
    with torch.autocast("cpu", torch.bfloat16):
        assert qk.generate(model, ids, max_new_tokens=40).shape == (rows, 45)


def test_padding_of_generation_comes_first(tmp_path):
    cases.made(cases.DECODERS["llama"]).save_pretrained(tmp_path)
    configured(tmp_path, pad_token_id=3)
    configured(tmp_path, "generation_config.json", eos_token_id=54, pad_token_id=60)
    assert qk.models.load(tmp_path).config.embedding.special.pad == 60


def test_saving_tells_generation_of_new_special_tokens(tmp_path):
    configured(tmp_path, "generation_config.json", eos_token_id=54, temperature=0.5)
    config = presets.gpt()
    special = Special(eos=(9,), pad=8)
    model = build(replace(config, embedding=replace(config.embedding, special=special)))
    qk.models.save(model, tmp_path)
    assert qk.models.load(tmp_path).config.embedding.special == special
    assert json.loads((tmp_path / "generation_config.json").read_text())["temperature"] == 0.5


@pytest.mark.parametrize("name", ["bert-masked", "roberta-masked", "llama"])
def test_padding_may_be_no_row_of_the_table(name, tmp_path):
    theirs, ids = cases.made(KNOWN[name]), cases.token_ids()
    theirs.save_pretrained(tmp_path)
    configured(tmp_path, pad_token_id=-1)
    wanted = theirs_says(type(theirs).from_pretrained(tmp_path), ids)
    torch.testing.assert_close(says(qk.models.load(tmp_path), ids), wanted, atol=1e-5, rtol=1e-4)


def test_a_roberta_without_padding_is_refused(tmp_path):
    cases.ENCODERS["roberta"]().save_pretrained(tmp_path)
    configured(tmp_path, pad_token_id=None)
    with pytest.raises(FolderError, match="`pad_token_id` is null, and RoBERTa's positions"):
        qk.models.load(tmp_path)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"layer_types": ["chunked_attention"] * 2}, "has 'chunked_attention', which we do not"),
        ({"layer_types": ["sliding_attention"] * 2}, "`use_sliding_window` is false"),
        ({"rope_parameters": cases.LINEAR | {"factor": 0}}, "`factor` .* is above 0; got 0"),
        ({"rope_parameters": cases.LLAMA3 | {"low_freq_factor": 4.0}}, "are both 4.0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -1.0}}, "`rope_theta`"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(entries, words, tmp_path):
    cases.made(cases.DECODERS["qwen2"]).save_pretrained(tmp_path)
    configured(tmp_path, **entries)
    with pytest.raises(FolderError, match=words):
        qk.models.load(tmp_path)


@pytest.mark.parametrize("name", ["bert", "roberta", "vit", "t5-encoder", "t5"])
def test_encoders_that_do_not_see_the_future_are_refused(name, tmp_path):
    (KNOWN | cases.IMAGES)[name]().save_pretrained(tmp_path)
    configured(tmp_path, is_causal=True)
    with pytest.raises(FolderError, match="`is_causal` is True; the tokens of our encoders see"):
        qk.models.load(tmp_path)
    for value in (False, None):
        configured(tmp_path, is_causal=value)
        if name == "t5":
            with pytest.raises(FolderError, match=f"`is_causal` is {value} for the decoder too"):
                qk.models.load(tmp_path)
        else:
            qk.models.load(tmp_path)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen2"])
def test_decoders_that_see_the_future_are_refused(name, tmp_path):
    KNOWN[name]().save_pretrained(tmp_path)
    # Their masks take null for false too, but for one way of computing without padding.
    for value in (False, None):
        configured(tmp_path, is_causal=value)
        with pytest.raises(FolderError, match=f"`is_causal` is {value}; we have only True"):
            qk.models.load(tmp_path)
    configured(tmp_path, is_causal=True)
    qk.models.load(tmp_path)


@pytest.mark.parametrize("entry", [{"dense_act_fn": "gelu_new"}, {"is_gated_act": True}])
def test_an_activation_that_is_said_twice_is_one(entry, tmp_path):
    cases.PAIRS["t5"]().save_pretrained(tmp_path)
    configured(tmp_path, **entry)
    ((name, _),) = entry.items()
    with pytest.raises(FolderError, match=f"`{name}` is .* by `feed_forward_proj`"):
        qk.models.load(tmp_path)


def test_padding_and_truncation_of_a_tokenizer_are_left_alone(tmp_path, capsys):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizer.json takes its package")
    torch.manual_seed(0)
    qk.models.save(build(presets.gpt(vocabulary=256)), tmp_path)
    words = {"a": 0, "b": 1, "c": 2, "[PAD]": 3, "[UNK]": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    said = []
    for change in (
        lambda: None,
        lambda: made.enable_padding(length=9),
        lambda: made.enable_truncation(2),
    ):
        change()
        made.save(str(tmp_path / "tokenizer.json"))
        assert run(["generate", str(tmp_path), "--prompt", "a b c", "--tokens", "9"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == said[2]
    assert run(["generate", str(tmp_path), "--prompt", "\udcff"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "words", [["--seed", str(2**70)], ["--temperature", "1e-40"], ["--temperature", "1e-50"]]
)
def test_numbers_beyond_all_bounds(words, tmp_path, capsys):
    qk.models.save(build(presets.gpt(vocabulary=256)), tmp_path)
    code = run(["generate", str(tmp_path), "--prompt", "Hi", "--tokens", "2", *words])
    assert code == (2 if "--seed" in words else 0)
    assert "Traceback" not in capsys.readouterr().err


def test_weights_that_are_not_numbers_say_nothing(tmp_path, capsys):
    model = build(presets.gpt(vocabulary=256))
    torch.nn.init.constant_(model.embed.tokens.weight, torch.nan)
    qk.models.save(model, tmp_path)
    with pytest.warns(UserWarning, match="1 tensor holds NaN or infinity"):
        assert run(["generate", str(tmp_path), "--prompt", "Hi"]) == 2
    assert "NaN" in capsys.readouterr().err


@pytest.mark.parametrize("temperature", [None, 1.0])
def test_a_head_that_is_not_numbers_says_nothing(temperature):
    """Its row would be the largest score of all, token after token."""
    model = build(presets.llama())
    torch.nn.init.constant_(model.head.output.weight[5], torch.nan)
    with pytest.raises(ValueError, match="answer to this prompt is NaN"):
        qk.generate(model, torch.tensor([[1, 2]]), temperature=temperature)


def test_scores_that_stop_being_numbers_are_told_when_a_token_is_drawn():
    """Positions beyond the prompt's are not numbers: the prompt is answered, and nothing else."""
    model = build(presets.gpt(vocabulary=256))
    torch.nn.init.constant_(model.embed.positions.weight[2:], torch.nan)
    with pytest.raises(
        ValueError, match="scores became NaN or infinite, so no token can be chosen"
    ):
        qk.generate(model, torch.tensor([[1, 2]]), temperature=1.0)


def test_a_name_that_is_too_long(capsys):
    assert run(["generate", "x" * 5000, "--prompt", "Hi"]) == 2
    assert "too long" in capsys.readouterr().err


def test_all_of_the_probability_leaves_nothing_out():
    scores = 2 * torch.randn(4, 50257, generator=torch.Generator().manual_seed(0))
    wanted = Choice(1.0).probabilities(scores)
    assert torch.equal(Choice(1.0, top_p=1.0).probabilities(scores), wanted)


def test_tiny_temperatures_take_the_largest():
    scores = torch.tensor([[1.0, 3.0, 2.0]])
    for temperature in (1e-30, 1e-40, 1e-60):
        assert Choice(temperature)(scores, None).tolist() == [1]


def test_probes_of_other_models():
    pytest.importorskip("sklearn", reason="probe fits its classifier with scikit-learn")
    theirs = cases.made(cases.ENCODERS["bert"])
    ids = cases.token_ids(batch=24)
    labels = torch.arange(24) % 2
    assert len(qk.probe(theirs, (ids, labels), seeds=2).scores) == 2
    with pytest.raises(TypeError, match="returns vectors; got str"):
        qk.probe(Silent(), (torch.randn(24, 3), labels))


class Silent(torch.nn.Module):
    def forward(self, x):
        return "nothing"


def test_the_interval_is_students():
    stats = pytest.importorskip("scipy.stats", reason="scikit-learn brings it along")
    scores = tuple(0.5 + 0.01 * i for i in range(20))
    low, high = Probe(scores, 0.5).interval
    wanted = stats.t.interval(0.95, 19, sum(scores) / 20, stats.sem(scores))
    assert (low, high) == pytest.approx(wanted)


def test_the_loss_of_an_autoencoder_in_half_precision():
    model = Autoencoder(AutoencoderConfig(100, 3)).half()
    assert model.loss(torch.randn(3000, 100).half()).isfinite()


def test_one_sentence_for_what_does_not_fit():
    model, ids = build(preset("gpt")), torch.randint(0, 9, (3, 5))
    with pytest.raises(ValueError, match=r"real is \(3, 4\), and the tokens are \(3, 5\)"):
        model(ids, torch.ones(3, 4))
    with pytest.raises(ValueError, match="segment types, from 0 on"):
        build(presets.bert())(ids, None, torch.full_like(ids, 7))
    pair = preset("transformer")
    wide = replace(pair.decoder, block=replace(pair.decoder.block, width=128))
    with pytest.raises(ValueError, match="one width for both sides"):
        EncoderDecoderConfig(pair.encoder, wide)
