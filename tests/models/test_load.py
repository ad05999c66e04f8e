"""Folders of `transformers` in, the same numbers out; and the other way round."""

import json

import pytest
import torch
import transformers as hf
from tests.models import cases

import querykey as qk

# In float64 without a lift, `transformers` keeps norms and rotations in float32: what that adds
# grows with the weights, up to 5e-6 at the gain of the other two.
FLOATS = {"float32": (1e-5, 1.2), "float64": (1e-10, 1.2), "float64-unlifted": (1e-6, 0.4)}
TEXT = cases.DECODERS | cases.BASES | cases.ENCODERS
EVERY = TEXT | cases.PAIRS | cases.IMAGES
LENGTH, COUNTS = 11, (11, 6, 9)
TARGET, TARGET_COUNTS = 7, (7, 3, 5)


def through_a_folder(theirs, folder, **options):
    theirs.save_pretrained(folder)
    return qk.models.load(folder, **options)


def unpooled(name):
    return {"add_pooling_layer": False} if name in ("bert-unpooled", "vit-oblong") else {}


def main_output(out):
    for name in ("logits", "last_hidden_state"):
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    raise AssertionError(out)


def say(theirs, ids, real=None, **more):
    """Run a model of theirs; positions count real tokens, as their `generate` has them."""
    if real is None:
        return main_output(theirs(input_ids=ids, **more))
    if theirs.config.model_type in ("gpt2", "llama", "mistral", "qwen2", "bert"):
        more["position_ids"] = (real.long().cumsum(1) - 1).clamp(min=0)
    if theirs.config.model_type == "roberta":
        more["position_ids"] = real.long().cumsum(1) * real + 1
    return main_output(theirs(input_ids=ids, attention_mask=real.long(), **more))


def inputs(name, side):
    """Arguments of our model, padded at that side: (ids, real), or those of a pair, or images."""
    if name in cases.IMAGES:
        size = (12, 8) if name == "vit-oblong" else (12, 12)
        return (torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0)),)
    real = None if side is None else cases.padded(LENGTH, COUNTS, side)
    if name not in cases.PAIRS:
        return cases.token_ids(), real
    target_real = None if side is None else cases.padded(TARGET, TARGET_COUNTS, side)
    return cases.token_ids(), cases.token_ids(length=TARGET, seed=1), real, target_real


def asked(theirs, name, given):
    if name in cases.IMAGES:
        return main_output(theirs(*given))
    if name not in cases.PAIRS:
        return say(theirs, *given)
    source, target, real, target_real = given
    return say(theirs, source, real, decoder_input_ids=target, decoder_attention_mask=target_real)


def in_pieces(ours, name, given):
    """The same through a state, in pieces of several tokens and of one; None without a state."""
    if name in cases.DECODERS:
        (ids, real), state = given, ours.empty_state(len(given[0]))
    elif name in cases.PAIRS:
        source, ids, source_real, real = given
        state = ours.empty_state(source, source_real)
    else:
        return None
    outs = []
    for piece in torch.arange(ids.shape[1]).split([4, 1, 1, ids.shape[1] - 6]):
        out, state = ours.extend(ids[:, piece], state, None if real is None else real[:, piece])
        outs.append(out)
    counts = torch.full((len(ids),), ids.shape[1]) if real is None else real.sum(1)
    assert torch.equal(state.lengths, counts)
    return torch.cat(outs, 1)


def judged(out, given):
    """What counts of an output: that of real tokens."""
    real = given[-1]
    return out if out.ndim == 2 or len(given) == 1 or real is None else out[real]


def sides(name):
    if name in cases.IMAGES:
        return (None,)
    # Theirs reads the class from the first place, be it padding.
    return (None, "right") if name.endswith("classes") else (None, "right", "left")


def compare(ours, theirs, within=1e-5):
    gap = (ours - theirs).abs()
    assert gap.max() < within, gap.max().item()
    assert theirs.abs().max() > 0.05


@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize("name", EVERY)
@torch.no_grad()
def test_outputs_are_theirs(name, floats, tmp_path):
    within, gain = FLOATS[floats]
    with cases.lifted(floats == "float64"):
        theirs = cases.made(EVERY[name], gain)
        dtype = torch.float32 if floats == "float32" else torch.float64
        ours = through_a_folder(theirs, tmp_path, dtype=dtype)
        theirs = theirs.to(dtype)
        for side in sides(name):
            given = inputs(name, side)
            given = (given[0].to(dtype),) if name in cases.IMAGES else given
            wanted = judged(asked(theirs, name, given), given)
            compare(judged(ours(*given), given), wanted, within)
            stepped = in_pieces(ours, name, given)
            if stepped is not None:
                compare(judged(stepped, given), wanted, within)


# An untied head adds the bias of its own matrix; this one is kept in folders and read by nothing.
UNREAD = ("bert-untied", "cls.predictions.bias")


@pytest.mark.parametrize("name", EVERY)
def test_gradients_are_theirs(name, tmp_path):
    with cases.lifted():
        theirs = cases.made(EVERY[name])
        for side in sides(name):
            ours, given = through_a_folder(theirs, tmp_path / "in"), inputs(name, side)
            given = (given[0].double(),) if name in cases.IMAGES else given
            theirs.zero_grad()
            for out in (asked(theirs, name, given), ours(*given)):
                part = judged(out, given)
                (part * torch.linspace(-1, 1, part.numel()).view_as(part)).sum().backward()
            # Put the gradients where the weights are, and let the same table bring them over.
            with torch.no_grad():
                for parameter in ours.parameters():
                    parameter.copy_(0 if parameter.grad is None else parameter.grad)
            qk.models.save(ours, tmp_path / "out")
            found = type(theirs).from_pretrained(tmp_path / "out", **unpooled(name))
            for (key, mine), (_, other) in zip(
                found.named_parameters(), theirs.named_parameters(), strict=True
            ):
                if (name, key) == UNREAD:
                    continue
                wanted = torch.zeros_like(mine) if other.grad is None else other.grad
                assert (mine - wanted).abs().max() < 1e-9 * (1 + wanted.abs().max()), key


def test_poolers_of_images_are_theirs(tmp_path):
    with cases.lifted(), torch.no_grad():
        theirs = cases.made(cases.IMAGES["vit"])
        ours, (images,) = through_a_folder(theirs, tmp_path), inputs("vit", None)
        images = images.double()
        compare(ours.pooled(ours.hidden(images)), theirs(images).pooler_output, 1e-10)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_the_pooler_and_segment_types_are_theirs(name, tmp_path):
    types = torch.arange(LENGTH).expand(3, -1) % 2
    if name == "roberta":
        types = torch.zeros_like(types)
    with cases.lifted(), torch.no_grad():
        theirs, ids = cases.made(cases.ENCODERS[name]), cases.token_ids()
        ours = through_a_folder(theirs, tmp_path)
        out = theirs(ids, token_type_ids=types)
        hidden = ours.hidden(ids, types=types)
        compare(hidden, out.last_hidden_state, 1e-10)
        compare(ours.pooled(hidden), out.pooler_output, 1e-10)


def test_robertas_padding_ids_are_not_counted(tmp_path):
    theirs, ids = cases.made(cases.ENCODERS["roberta"]), cases.token_ids()
    ids[0, 3] = ids[1, 0] = ids[1, 7] = 1
    with torch.no_grad():
        ours = through_a_folder(theirs, tmp_path)
        compare(ours(ids), say(theirs, ids))


@pytest.mark.parametrize("name", EVERY)
def test_what_we_save_they_load(name, tmp_path):
    theirs = cases.made(EVERY[name])
    ours = through_a_folder(theirs, tmp_path / "in")
    qk.models.save(ours, tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    kind = type(theirs)
    assert settings["architectures"] == [kind.__name__]
    again, report = kind.from_pretrained(
        tmp_path / "out",
        output_loading_info=True,
        **unpooled(name),
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    state = again.state_dict()
    for key, tensor in theirs.state_dict().items():
        assert (name, key) == UNREAD or torch.equal(state[key], tensor), key
    second = qk.models.load(tmp_path / "out")
    assert second.config == ours.config or name.startswith("llama-yarn")
    for side in sides(name):
        given = inputs(name, side)
        with torch.no_grad():
            wanted = judged(asked(again.eval(), name, given), given)
            compare(judged(ours(*given), given), wanted)
            compare(judged(second(*given), given), wanted)


def test_an_untied_head_of_a_t5_goes_both_ways(tmp_path):
    """T5 1.1 and what came after it: config.json does not say so, the tensors differ."""
    theirs = cases.made(cases.PAIRS["t5-gated"])
    theirs.lm_head.weight = torch.nn.Parameter(torch.randn(61, 24) / 5)
    ours = through_a_folder(theirs, tmp_path / "in")
    qk.models.save(ours, tmp_path / "out")
    again = type(theirs).from_pretrained(tmp_path / "out")
    assert torch.equal(again.lm_head.weight, theirs.lm_head.weight)
    assert torch.equal(again.shared.weight, theirs.shared.weight)
    given = inputs("t5", None)
    with torch.no_grad():
        compare(ours(*given), asked(theirs, "t5", given))
        compare(qk.models.load(tmp_path / "out")(*given), asked(again, "t5", given))


def test_special_tokens_are_kept(tmp_path):
    theirs = cases.made(cases.DECODERS["llama"])
    theirs.generation_config.eos_token_id = [5, 7]
    theirs.generation_config.pad_token_id = theirs.config.pad_token_id = 3
    ours = through_a_folder(theirs, tmp_path / "in")
    assert ours.config.embedding.special == qk.models.Special(bos=0, eos=(5, 7), pad=3)
    qk.models.save(ours, tmp_path / "out")
    again = hf.LlamaForCausalLM.from_pretrained(tmp_path / "out")
    said = again.generation_config
    assert (said.bos_token_id, said.eos_token_id, said.pad_token_id) == (0, [5, 7], 3)
    roberta = through_a_folder(cases.made(cases.ENCODERS["roberta"]), tmp_path / "roberta")
    assert roberta.config.embedding.special == qk.models.Special(bos=0, eos=(2,), pad=1)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_generation_stops_where_theirs_does(name, tmp_path):
    theirs, ids = cases.made((cases.DECODERS | cases.PAIRS)[name]), cases.token_ids()
    # Their cache wants as many layers in both stacks.
    options = {"max_new_tokens": 9, "do_sample": False, "use_cache": name != "t5"}
    free = theirs.generate(ids, eos_token_id=99, **options)
    theirs.generation_config.eos_token_id = [int(free[0, -6]), int(free[1, -3])]
    theirs.generation_config.pad_token_id = 4
    theirs.config.pad_token_id = 4
    ours = through_a_folder(theirs, tmp_path)
    wanted = theirs.generate(ids, **options)
    assert (wanted == 4).any()
    assert torch.equal(qk.generate(ours, ids, max_new_tokens=9), wanted)
    assert torch.equal(qk.generate(ours, ids, max_new_tokens=9, stop=()), free)


SAID = {
    "nothing": lambda stop: {},
    "null": lambda stop: {"eos_token_id": None},
    "another": lambda stop: {"eos_token_id": stop},
}


@pytest.mark.parametrize("said", SAID)
def test_where_generation_has_a_file_config_json_ends_and_fills_nothing(said, tmp_path):
    theirs, ids = cases.made(cases.DECODERS["llama"]), cases.token_ids()
    theirs.save_pretrained(tmp_path)
    options = {"max_new_tokens": 9, "do_sample": False}
    free = theirs.generate(ids, eos_token_id=99, **options)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings |= {"eos_token_id": int(free[0, 13]), "pad_token_id": 3}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "generation_config.json").write_text(json.dumps(SAID[said](int(free[0, 15]))))
    wanted = type(theirs).from_pretrained(tmp_path).generate(ids, **options)
    assert torch.equal(wanted, free) == (said != "another")
    assert torch.equal(qk.generate(qk.models.load(tmp_path), ids, max_new_tokens=9), wanted)


def test_dropout_is_kept(tmp_path):
    ours = through_a_folder(cases.made(cases.DECODERS["gpt2"]), tmp_path / "in")
    assert (ours.config.block.dropout, ours.config.block.attention.dropout) == (0.1, 0.1)
    qk.models.save(ours, tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (settings["resid_pdrop"], settings["attn_pdrop"]) == (0.1, 0.1)


def test_shards_are_read_and_written(tmp_path):
    theirs = cases.made(cases.DECODERS["llama"])
    theirs.save_pretrained(tmp_path / "in", max_shard_size="8KB")
    assert len(list((tmp_path / "in").glob("*.safetensors"))) > 2
    ours = qk.models.load(tmp_path / "in")
    qk.models.save(ours, tmp_path / "out", shard_bytes=9000)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    again = hf.LlamaForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = cases.token_ids()
    with torch.no_grad():
        compare(ours(ids), theirs(ids).logits)
        assert torch.equal(again(ids).logits, theirs(ids).logits)


def test_half_precision_stays_and_can_be_asked_for(tmp_path):
    theirs = cases.made(cases.DECODERS["gpt2"]).to(torch.bfloat16)
    ours = through_a_folder(theirs, tmp_path)
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    wide = qk.models.load(tmp_path, dtype=torch.float64)
    assert {p.dtype for p in wide.parameters()} == {torch.float64}
    assert ours.head.output.weight is ours.embed.tokens.weight


def test_names_of_the_first_berts(tmp_path):
    from safetensors.torch import load_file, save_file

    theirs = cases.made(cases.ENCODERS["bert"])
    ours = through_a_folder(theirs, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for key, tensor in stored.items()
    }
    save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = qk.models.load(tmp_path)
    ids = cases.token_ids()
    with torch.no_grad():
        assert torch.equal(again(ids), ours(ids))
