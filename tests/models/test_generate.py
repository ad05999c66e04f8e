"""Generation against the full forward, token by token."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.models import test_text as text
from torch import nn

import querykey as qk
from querykey.models import Encoder, EncoderDecoder, Special, build, preset, presets, stream
from querykey.models.decoding.generate import PAYS, Choice


def argmax_of_the_full_forward(model, row, count):
    """What greedy decoding is: the whole sequence again for every token."""
    row = row[None]
    with torch.no_grad():
        for _ in range(count):
            row = torch.cat([row, model(row)[:, -1:].argmax(-1)], 1)
    return row[0].tolist()


@pytest.mark.parametrize(("mechanism", "positions", "windows"), text.COMBINATIONS)
def test_greedy_is_argmax_of_the_full_forward(mechanism, positions, windows):
    model, x = text.decoder(mechanism, positions, windows), text.ids(length=5)
    out = qk.generate(model, x, max_new_tokens=9)
    assert out.shape == (3, 14)
    for row in range(3):
        assert out[row].tolist() == argmax_of_the_full_forward(model, x[row], 9)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("mechanism", "positions", "windows"), text.COMBINATIONS)
def test_padded_prompts_continue_as_they_would_alone(mechanism, positions, windows, side):
    model, x = text.decoder(mechanism, positions, windows), text.ids()
    real = text.real_tokens(side)
    out = qk.generate(model, x, real=real, max_new_tokens=6)
    assert torch.equal(out[:, : text.LENGTH], x)
    for row in range(3):
        wanted = argmax_of_the_full_forward(model, x[row, real[row]], 6)[-6:]
        assert out[row, text.LENGTH :].tolist() == wanted


def test_an_encoder_decoder_says_from_its_start_token():
    model = text.loud(EncoderDecoder(presets.t5(12, 2, 3, text.VOCABULARY)))
    source, real = text.ids(), text.real_tokens("right")
    out = qk.generate(model, source, real=real, max_new_tokens=7)
    for row in range(3):
        said = torch.tensor([[0]])
        with torch.no_grad():
            for _ in range(7):
                scores = model(text.alone(source, real, row), said)
                said = torch.cat([said, scores[:, -1:].argmax(-1)], 1)
        assert out[row].tolist() == said[0].tolist()


def test_a_row_ends_with_its_stop_token():
    model, x = text.decoder(), text.ids(length=5)
    free = qk.generate(model, x, max_new_tokens=12)[:, 5:]
    stop = free[0, 2].item()
    out = qk.generate(model, x, max_new_tokens=12, stop=[stop])[:, 5:]
    for row in range(3):
        said = free[row].tolist()
        end = said.index(stop) + 1 if stop in said else 12
        assert out[row, :end].tolist() == said[:end]
        assert set(out[row, end:].tolist()) <= {stop}
    alone = qk.generate(model, x[:1], max_new_tokens=12, stop=stop)
    assert alone.shape[1] == 5 + free[0].tolist().index(stop) + 1


@pytest.mark.parametrize("several", [list, np.array, torch.tensor, set])
def test_stop_tokens_of_any_kind(several):
    model, x = text.decoder(), text.ids(length=5)
    stop = int(qk.generate(model, x, max_new_tokens=3)[0, -1])
    wanted = qk.generate(model, x, max_new_tokens=12, stop=(stop, 50))
    assert torch.equal(qk.generate(model, x, max_new_tokens=12, stop=several([stop, 50])), wanted)
    wanted = qk.generate(model, x, max_new_tokens=12, stop=stop)
    for one in (np.int64(stop), np.array(stop), torch.tensor(stop), several([stop])):
        assert torch.equal(qk.generate(model, x, max_new_tokens=12, stop=one), wanted)


def test_ids_and_real_tokens_of_other_kinds():
    model, x, real = text.decoder(), text.ids(), text.real_tokens("left")
    wanted = qk.generate(model, x, real=real, max_new_tokens=np.int64(4))
    for given in (real.tolist(), real.numpy(), real.int()):
        assert torch.equal(qk.generate(model, x, real=given, max_new_tokens=4), wanted)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        out = qk.generate(model, x.to(dtype), real=real, max_new_tokens=4)
        assert out.dtype == torch.long
        assert torch.equal(out, wanted)


def test_a_config_says_what_ends_and_fills_a_row():
    model, x = text.decoder(), text.ids(length=5)
    free = qk.generate(model, x, max_new_tokens=12)[:, 5:].tolist()
    stop = free[0][2]
    special = Special(eos=(stop,), pad=51)
    model.config = replace(model.config, embedding=replace(model.config.embedding, special=special))
    out = qk.generate(model, x, max_new_tokens=12)[:, 5:].tolist()
    for said, whole in zip(out, free, strict=True):
        end = whole.index(stop) + 1 if stop in whole else len(said)
        assert said == whole[:end] + [51] * (len(said) - end)
    assert qk.generate(model, x, max_new_tokens=12, stop=())[:, 5:].tolist() == free


def test_padding_need_not_be_a_known_id():
    """Some configs fill with -1: a row that has ended is not fed with it."""
    model, x = text.decoder(), text.ids(length=5)
    free = qk.generate(model, x, max_new_tokens=12)[:, 5:].tolist()
    stop = free[0][2]
    special = Special(eos=(stop,), pad=-1)
    model.config = replace(model.config, embedding=replace(model.config.embedding, special=special))
    out = qk.generate(model, x, max_new_tokens=12)[:, 5:].tolist()
    assert any(-1 in said for said in out)
    for said, whole in zip(out, free, strict=True):
        end = whole.index(stop) + 1 if stop in whole else len(said)
        assert said == whole[:end] + [-1] * (len(said) - end)


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_long_answers_of_several_rows_are_those_of_each_alone(name):
    """Products are prepared then; the tokens stay those of the full forward."""
    torch.manual_seed(0)
    model = build(preset(name)).eval()
    x = torch.randint(0, 128, (3, 4))
    out = qk.generate(model, x, max_new_tokens=PAYS)
    for row in range(3):
        alone = qk.generate(model, x[row : row + 1], max_new_tokens=PAYS)
        assert out[row].tolist() == alone[0].tolist()
        assert alone[0].tolist() == argmax_of_the_full_forward(model, x[row], PAYS)


@pytest.mark.parametrize("name", ["gpt", "llama", "elu", "t5"])
def test_no_prompts_give_no_rows(name):
    model, none = build(preset(name)).eval(), torch.zeros(0, 4, dtype=torch.long)
    assert qk.generate(model, none, max_new_tokens=3).shape == (0, 4 if name == "t5" else 7)


def test_a_stream_is_the_same_tokens_one_at_a_time():
    model, x = text.decoder(), text.ids(length=5)
    pieces = list(stream(model, x, max_new_tokens=4, temperature=0.9, seed=3))
    out = qk.generate(model, x, max_new_tokens=4, temperature=0.9, seed=3)
    assert torch.equal(torch.stack(pieces, 1), out[:, 5:])
    assert torch.is_grad_enabled()


def test_seeds():
    model, x = text.decoder(), text.ids(length=5)
    options = {"max_new_tokens": 16, "temperature": 2.0}
    first, again, other = (qk.generate(model, x, seed=seed, **options) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(
        qk.generate(model, x, max_new_tokens=8, top_k=1, seed=0),
        qk.generate(model, x, max_new_tokens=8),
    )


SCORES = torch.tensor([[0.0, 3.0, 1.0, 2.0, -1.0]], dtype=torch.float64)


def shares(*kept):
    weights = torch.where(torch.isin(torch.arange(5), torch.tensor(kept)), SCORES.exp(), 0)
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        (Choice(1.0), (0, 1, 2, 3, 4)),
        (Choice(1.0, top_k=2), (1, 3)),
        (Choice(1.0, top_k=99), (0, 1, 2, 3, 4)),
        (Choice(1.0, top_p=0.6), (1,)),  # 0.636 alone
        (Choice(1.0, top_p=0.65), (1, 3)),
        (Choice(1.0, top_p=0.9), (1, 2, 3)),
        (Choice(1.0, top_p=1.0), (0, 1, 2, 3, 4)),
        (Choice(1.0, top_k=2, top_p=0.95), (1, 3)),
    ],
)
def test_probabilities_of_drawing(choice, kept):
    assert (choice.probabilities(SCORES) - shares(*kept)).abs().max() < 1e-12


def test_temperature_divides_the_scores():
    wanted = (SCORES / 0.5).softmax(-1)
    assert (Choice(0.5).probabilities(SCORES) - wanted).abs().max() < 1e-12
    draws = Choice(1.0, top_k=3)(SCORES.expand(4000, -1), torch.Generator().manual_seed(0))
    found = torch.bincount(draws, minlength=5) / 4000
    assert (found - shares(1, 2, 3)[0]).abs().max() < 0.03


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m: qk.generate(Encoder(presets.bert()), text.ids()), TypeError, "Encoder has no"),
        (lambda m: qk.generate(m, text.ids(), temperature=-1), ValueError, "temperature is at"),
        (lambda m: qk.generate(m, text.ids(), top_p=0), ValueError, "top_p is a probability"),
        (lambda m: qk.generate(m, text.ids(), top_k=0), ValueError, "top_k is at least 1"),
        (lambda m: qk.generate(m, text.ids()[:, :0]), ValueError, "at least one token"),
        (lambda m: qk.generate(m, [[1, 2]]), TypeError, "a prompt is a tensor of ids"),
        (lambda m: qk.generate(m, text.ids().float()), TypeError, "are whole numbers; got torch.f"),
        (lambda m: qk.generate(m, text.ids(), stop="x"), TypeError, "stop is a token id"),
        (lambda m: qk.generate(m, text.ids(), stop=2.5), TypeError, "stop is a token id"),
        (
            lambda m: qk.generate(m, text.ids(), max_new_tokens=None),
            TypeError,
            "max_new_tokens is a whole number; got None",
        ),
        (
            lambda m: qk.generate(m, text.ids(), max_new_tokens=2.5),
            TypeError,
            "max_new_tokens is a whole number; got 2.5",
        ),
        (lambda m: qk.generate(m, text.ids(), top_k=2.5), TypeError, "top_k is a whole number"),
        (lambda m: qk.generate(m, text.ids(), seed=1.5), TypeError, "seed is a whole number"),
        (lambda m: qk.generate(m, text.ids(), max_new_tokens=-1), ValueError, "is at least 0"),
        (lambda m: qk.generate(nn.Linear(2, 2), text.ids()), TypeError, "Linear has no state"),
        (
            lambda m: qk.generate(m, text.ids(), real=torch.ones(3, 4).bool()),
            ValueError,
            r"real is \(3, 4\), and the prompt is \(3, 11\)",
        ),
        (
            lambda m: qk.generate(m, text.ids(), real=torch.zeros(3, 11).bool()),
            ValueError,
            "at least one real token",
        ),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call(text.decoder())


def test_a_row_that_has_ended_may_stand_at_the_end_of_the_positions():
    torch.manual_seed(0)
    model = text.loud(build(presets.gpt(12, 2, 3, text.VOCABULARY, 16))).eval()
    x = torch.randint(0, text.VOCABULARY, (2, 14))
    real = torch.arange(14) < torch.tensor([[14], [4]])
    stop = int(qk.generate(model, x[:1], max_new_tokens=1)[0, -1])
    alone = qk.generate(model, x[1:, :4], max_new_tokens=10, stop=stop)[0, 4:].tolist()
    assert stop not in alone
    out = qk.generate(model, x, real=real, max_new_tokens=10, stop=stop)
    assert out[0, 14:].tolist() == [stop] * 10
    assert out[1, 14:].tolist() == alone
    with pytest.raises(ValueError, match="this model has learned 16 positions; a token at posi"):
        qk.generate(model, x, real=real, max_new_tokens=14, stop=stop)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 0}])
def test_scores_that_become_nan_end_generation(options):
    model, x = text.decoder(), text.ids(length=5)
    said = int(qk.generate(model, x[:1], max_new_tokens=3, **options)[0, -1])
    with torch.no_grad():
        model.embed.tokens.weight[said] = torch.nan
    with pytest.raises(ValueError, match=r"became NaN or infinite|answer to this prompt is NaN"):
        qk.generate(model, x[:1], max_new_tokens=9, **options)
