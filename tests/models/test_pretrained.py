"""Folders of `transformers` in, the same numbers out; and the other way round."""

import json

import pytest
import torch
import transformers as hf
from tests.models import cases

import querykey as qk

FLOATS = {"float32": (torch.float32, 1e-5), "float64": (torch.float64, 1e-10)}
TEXT = cases.DECODERS | cases.BASES | cases.ENCODERS
LENGTH, COUNTS = 11, (11, 6, 9)


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


def compare(ours, theirs, real=None, within=1e-5):
    gap = (ours - theirs).abs()
    if real is not None and gap.ndim == 3:
        gap = gap[real]
    assert gap.max() < within, gap.max().item()
    assert theirs.abs().max() > 0.05


@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize("name", TEXT)
def test_outputs_are_theirs(name, floats, tmp_path):
    dtype, within = FLOATS[floats]
    ids = cases.token_ids()
    with cases.lifted(floats == "float64"), torch.no_grad():
        theirs = cases.made(TEXT[name])
        ours = through_a_folder(theirs, tmp_path)
        assert next(ours.parameters()).dtype == dtype
        compare(ours(ids), say(theirs, ids), within=within)
        for side in ("right", "left"):
            real = cases.padded(LENGTH, COUNTS, side)
            wanted = say(theirs, ids, real)
            if side == "left" and wanted.ndim == 2:
                continue  # theirs reads the class from the first place, be it padding
            compare(ours(ids, real), wanted, real, within)


@pytest.mark.parametrize("name", TEXT)
def test_float64_without_a_lift(name, tmp_path):
    """Their norms and rotations stay in float32 then: stock weights keep what that adds small."""
    torch.manual_seed(0)
    theirs, ids = TEXT[name]().eval(), cases.token_ids()
    ours = through_a_folder(theirs, tmp_path, dtype=torch.float64)
    with torch.no_grad():
        assert (ours(ids) - say(theirs.double(), ids)).abs().max() < 1e-6


@pytest.mark.parametrize("name", TEXT)
def test_gradients_are_theirs(name, tmp_path):
    with cases.lifted():
        theirs, ids = cases.made(TEXT[name]), cases.token_ids()
        ours = through_a_folder(theirs, tmp_path / "in")
        real = cases.padded(LENGTH, COUNTS, "right")
        for model, out in ((theirs, say(theirs, ids, real)), (ours, ours(ids, real))):
            judged = out[real] if out.ndim == 3 else out
            (judged * torch.linspace(-1, 1, judged.numel()).view_as(judged)).sum().backward()
            del model
        # Put the gradients where the weights are, and let the same table bring them over.
        with torch.no_grad():
            for parameter in ours.parameters():
                parameter.copy_(0 if parameter.grad is None else parameter.grad)
        qk.models.save(ours, tmp_path / "out")
        found = type(theirs).from_pretrained(tmp_path / "out", **unpooled(name))
        for (key, mine), (_, other) in zip(
            found.named_parameters(), theirs.named_parameters(), strict=True
        ):
            wanted = torch.zeros_like(mine) if other.grad is None else other.grad
            assert (mine - wanted).abs().max() < 1e-9 * (1 + wanted.abs().max()), key


@pytest.mark.parametrize("name", cases.DECODERS)
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_decoding_with_a_state_is_theirs(name, side, tmp_path):
    ids = cases.token_ids()
    real = None if side is None else cases.padded(LENGTH, COUNTS, side)
    with cases.lifted(), torch.no_grad():
        theirs = cases.made(cases.DECODERS[name])
        ours = through_a_folder(theirs, tmp_path)
        wanted = say(theirs, ids, real)
        state, outs, first = ours.empty_state(len(ids)), [], 0
        for size in (4, 1, 1, 5):
            piece = slice(first, first + size)
            part = None if real is None else real[:, piece]
            out, state = ours.extend(ids[:, piece], state, part)
            outs.append(out)
            first += size
        compare(torch.cat(outs, 1), wanted, real, 1e-10)
        assert state.lengths.tolist() == list(COUNTS if side else (LENGTH,) * 3)


@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize("name", cases.PAIRS)
def test_pairs_are_theirs(name, floats, tmp_path):
    _, within = FLOATS[floats]
    source, target = cases.token_ids(), cases.token_ids(length=7, seed=1)
    with cases.lifted(floats == "float64"), torch.no_grad():
        theirs = cases.made(cases.PAIRS[name])
        ours = through_a_folder(theirs, tmp_path)
        compare(ours(source, target), say(theirs, source, decoder_input_ids=target), within=within)
        for side in ("right", "left"):
            real = cases.padded(LENGTH, COUNTS, side)
            target_real = cases.padded(7, (7, 3, 5), side)
            wanted = theirs(
                input_ids=source, attention_mask=real, decoder_input_ids=target,
                decoder_attention_mask=target_real,
            ).logits  # fmt: skip
            compare(ours(source, target, real, target_real), wanted, target_real, within)
            state, outs = ours.empty_state(source, real), []
            for piece in torch.arange(7).split([3, 1, 3]):
                out, state = ours.extend(target[:, piece], state, target_real[:, piece])
                outs.append(out)
            compare(torch.cat(outs, 1), wanted, target_real, within)


@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize("name", cases.IMAGES)
def test_images_are_theirs(name, floats, tmp_path):
    _, within = FLOATS[floats]
    with cases.lifted(floats == "float64"), torch.no_grad():
        theirs = cases.made(cases.IMAGES[name])
        ours = through_a_folder(theirs, tmp_path)
        images = torch.randn(2, 3, *ours.config.image)
        out = theirs(images)
        compare(ours(images), main_output(out), within=within)
        if getattr(out, "pooler_output", None) is not None:
            compare(ours.pooled(ours.hidden(images)), out.pooler_output, within=within)


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
        compare(hidden, out.last_hidden_state, within=1e-10)
        compare(ours.pooled(hidden), out.pooler_output, within=1e-10)


def test_robertas_padding_ids_are_not_counted(tmp_path):
    theirs, ids = cases.made(cases.ENCODERS["roberta"]), cases.token_ids()
    ids[0, 3] = ids[1, 0] = ids[1, 7] = 1
    with torch.no_grad():
        ours = through_a_folder(theirs, tmp_path)
        compare(ours(ids), say(theirs, ids))


EVERY = TEXT | cases.PAIRS | cases.IMAGES


@pytest.mark.parametrize("name", EVERY)
def test_what_we_save_they_load(name, tmp_path):
    theirs = cases.made(EVERY[name])
    ours = through_a_folder(theirs, tmp_path / "in")
    qk.models.save(ours, tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    kind = hf.LlamaForCausalLM if name == "mistral-full" else type(theirs)  # one and the same
    assert settings["architectures"] == [kind.__name__]
    again, report = kind.from_pretrained(
        tmp_path / "out",
        output_loading_info=True,
        **unpooled(name),
    )
    unread = {"cls.predictions.bias"} if name == "bert-untied" else set()
    assert set(report["missing_keys"]) == unread
    assert not report["unexpected_keys"]
    state = again.state_dict()
    for key, tensor in theirs.state_dict().items():
        assert key in unread or torch.equal(state[key], tensor), key
    second = qk.models.load(tmp_path / "out")
    assert second.config == ours.config or name.startswith("llama-yarn")
    if name in TEXT:
        with torch.no_grad():
            ids = cases.token_ids()
            compare(ours(ids), say(again.eval(), ids))


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
