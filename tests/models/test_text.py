"""Models over tokens: who sees whom, any split equals the whole, padding changes nothing."""

from dataclasses import replace

import pytest
import torch

import querykey as qk
from querykey.attention.positions import Rotary
from querykey.models import (
    ClassHead,
    Decoder,
    DecoderConfig,
    Distances,
    EmbeddingConfig,
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    Learned,
    Sinusoidal,
    TokenHead,
    presets,
)
from querykey.nn import AttentionConfig, BlockConfig

VOCABULARY, LENGTH, COUNTS = 53, 11, (11, 4, 7)
MECHANISMS = {
    "softmax": qk.Softmax(),
    "softcap": qk.Softmax(softcap=3.0),
    "argmax": qk.Argmax(),
    "elu": qk.Kernel(qk.EluPlusOne()),
    "quadratic": qk.Kernel(qk.Quadratic(), scale=0.3),
    "decay": qk.Kernel(qk.Quadratic(), scale=0.3),  # with gates
    "similarity": qk.Similarity(lambda q, k: (q @ k.mT / 4).exp()),
}
POSITIONS = {
    "none": None,
    "learned": Learned(29),
    "sinusoids": Sinusoidal(),
    "rotary": Rotary(),
    "alibi": qk.ALiBi(3),
    "distances": Distances(8, 11),
}


def decoder(mechanism="softmax", positions="learned", windows=None, **more):
    attention = AttentionConfig(3, mechanism=MECHANISMS[mechanism], decay=mechanism == "decay")
    block = replace(BlockConfig.preset("pre-norm", 12, 3, 20), attention=attention, **more)
    config = DecoderConfig(
        EmbeddingConfig(VOCABULARY), block, 2, POSITIONS[positions], windows=windows
    )
    return loud(Decoder(config))


def loud(model):
    """Weights large enough that a mistake shows, in float64."""
    torch.manual_seed(0)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * 1.2 / parameter.shape[-1] ** 0.5)
    return model


def ids(batch=3, length=LENGTH, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (batch, length), generator=generator)


def real_tokens(side, length=LENGTH, counts=COUNTS):
    place, counts = torch.arange(length), torch.tensor(counts)[:, None]
    return place >= length - counts if side == "left" else place < counts


def alone(x, real, row):
    return x[row : row + 1, real[row]]


COMBINATIONS = [
    *((name, "rotary", None) for name in MECHANISMS),
    *(("softmax", name, None) for name in POSITIONS),
    ("softmax", "rotary", (None, 3)),
    ("elu", "sinusoids", 4),
    ("softmax", "distances", 3),
]


@pytest.mark.parametrize(("mechanism", "positions", "windows"), COMBINATIONS)
@pytest.mark.parametrize("gradients", [True, False])
def test_any_split_equals_the_whole(mechanism, positions, windows, gradients):
    model, x = decoder(mechanism, positions, windows), ids()
    with torch.set_grad_enabled(gradients):
        whole = model(x)
        state, outs = model.empty_state(3), []
        for piece in x.split([3, 1, 1, 5, 1], 1):
            out, state = model.extend(piece, state)
            outs.append(out)
    assert (torch.cat(outs, 1) - whole).abs().max() < 1e-9
    assert state.lengths.tolist() == [LENGTH] * 3


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (lambda: presets.llama(width=20), "features turn in pairs, so their number is even"),
        (lambda: replace(presets.t5().encoder, positions=Distances(3)), "take at least 4 buckets"),
        (lambda: replace(presets.gpt(), positions=Distances(1)), "take at least 2 buckets"),
        (lambda: replace(presets.gpt(), positions=Distances(8, 4)), "distances below 4 have a"),
        (lambda: replace(presets.gpt(), positions=qk.ALiBi(3)), "does not fit 4 heads"),
    ],
)
def test_positions_that_no_token_could_have_are_not_built(config, words):
    with pytest.raises(ValueError, match=words):
        qk.models.build(config())


def test_positions_of_a_decoder_skip_nothing():
    """A state knows how many tokens there were, not which of them were that one."""
    with pytest.raises(ValueError, match=r"a decoder counts every real token, so .* skip=1\)"):
        replace(presets.gpt(), positions=Learned(29, 2, skip=1))


@pytest.mark.parametrize(("mechanism", "positions", "windows"), COMBINATIONS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(mechanism, positions, windows, side):
    model, x, real = decoder(mechanism, positions, windows), ids(), real_tokens(side)
    with torch.no_grad():
        out = model(x, real)
        half, state = model.extend(x[:, :5], model.empty_state(3), real[:, :5])
        rest, state = model.extend(x[:, 5:], state, real[:, 5:])
        for row in range(3):
            wanted = model(alone(x, real, row))
            assert (alone(out, real, row) - wanted).abs().max() < 1e-9
            assert (alone(torch.cat([half, rest], 1), real, row) - wanted).abs().max() < 1e-9
    assert state.lengths.tolist() == list(COUNTS)


@pytest.mark.parametrize(("mechanism", "positions", "windows"), COMBINATIONS)
def test_a_decoder_does_not_see_the_future(mechanism, positions, windows):
    model, x = decoder(mechanism, positions, windows), ids()
    other = x.clone()
    other[:, 6:] = (other[:, 6:] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = model(x), model(other)
    assert (before - after)[:, :6].abs().max() < 1e-12
    assert (before - after)[:, 6:].abs().max() > 1e-3


def test_a_window_limits_what_one_layer_sees():
    model, x = decoder(positions="rotary", windows=4), ids()
    model.stack.blocks = model.stack.blocks[:1]
    other = x.clone()
    other[:, 2] = (other[:, 2] + 1) % VOCABULARY
    with torch.no_grad():
        gap = (model(x) - model(other)).abs().amax((0, 2))
    assert (gap > 1e-6).tolist() == [place in (2, 3, 4, 5) for place in range(LENGTH)]


def encoder(**more):
    block = BlockConfig.preset("post-norm", 12, 3, 20)
    embedding = EmbeddingConfig(VOCABULARY, types=2, norm=True)
    return loud(Encoder(EncoderConfig(embedding, block, 2, Learned(29), **more)))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("head", [None, TokenHead(), ClassHead(5, "tanh")], ids=repr)
def test_an_encoder_sees_all_that_is_real(side, head):
    model, x, real = encoder(head=head), ids(), real_tokens(side)
    with torch.no_grad():
        out = model(x, real)
        for row in range(3):
            wanted = model(alone(x, real, row))
            got = out[row : row + 1] if out.ndim == 2 else alone(out, real, row)
            assert (got - wanted).abs().max() < 1e-10
        other = x.clone()
        other[:, -1] = (other[:, -1] + 1) % VOCABULARY
        assert (model(x) - model(other))[:, 0].abs().max() > 1e-3


@pytest.mark.parametrize("config", [presets.original, presets.t5])
def test_a_pair_hides_the_sources_padding_and_the_targets_future(config):
    model = loud(EncoderDecoder(config(12, 2, 3, VOCABULARY)))
    source, target = ids(), ids(length=6, seed=1)
    real, target_real = real_tokens("left"), real_tokens("right", 6, (6, 2, 5))
    with torch.no_grad():
        out = model(source, target, real, target_real)
        state, steps = model.empty_state(source, real), []
        for piece in range(6):
            step, state = model.extend(target[:, piece : piece + 1], state)
            steps.append(step)
        for row in range(3):
            wanted = model(alone(source, real, row), alone(target, target_real, row))
            assert (alone(out, target_real, row) - wanted).abs().max() < 1e-10
            stepped = alone(torch.cat(steps, 1), target_real, row)
            assert (stepped - wanted).abs().max() < 1e-10
        changed = target.clone()
        changed[:, 3:] = 0
        gap = (model(source, changed, real) - model(source, target, real)).abs().amax((0, 2))
    assert (gap[:3] < 1e-12).all()
    assert (gap[3:] > 1e-4).all()


@torch.no_grad()
def test_positions_are_counted_from_the_offset_of_their_table():
    plain = decoder()
    model = Decoder(replace(plain.config, positions=Learned(29, offset=2))).double().eval()
    weights, name = plain.state_dict(), "embed.positions.weight"
    weights[name] = torch.cat([torch.full_like(weights[name][:2], torch.nan), weights[name]])
    model.load_state_dict(weights)
    assert torch.equal(model(ids()), plain(ids()))


def test_an_old_state_stays_valid_and_rows_can_be_chosen():
    model, x = decoder(), ids()
    with torch.no_grad():
        _, prompt = model.extend(x[:, :5], model.empty_state(3, capacity=16))
        first, _ = model.extend(x[:, 5:6], prompt)
        other, _ = model.extend(x[:, 6:7], prompt)
        again, _ = model.extend(x[:, 5:6], prompt)
        chosen, _ = model.extend(x[[2, 0], 5:6], prompt.select([2, 0]))
    assert torch.equal(first, again)
    assert (first - other).abs().max() > 1e-3
    assert (chosen - first[[2, 0]]).abs().max() < 1e-12


def test_a_kernel_decoders_memory_does_not_grow():
    model = decoder("quadratic", "rotary")
    with torch.no_grad():
        _, early = model.extend(ids(length=3), model.empty_state(3))
        _, late = model.extend(ids(length=50), early)
    assert early.nbytes == late.nbytes
    assert late.lengths.tolist() == [53] * 3


def test_gradients_flow_through_a_state():
    model, x = decoder(), ids()
    model(x).square().mean().backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    first, state = model.extend(x[:, :6], model.empty_state(3))
    second, _ = model.extend(x[:, 6:], state)
    torch.cat([first, second], 1).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad - wanted[name]).abs().max() < 1e-10, name


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m: m(torch.tensor([[1, 53]])), ValueError, "token id 53 is not in the vocabulary"),
        (lambda m: m(ids(length=30)), ValueError, "learned 29 positions; .* position 29 is beyond"),
        (lambda m: m(torch.ones(1, 2)), TypeError, "token ids are whole numbers"),
        (lambda m: m.extend(ids(2), m.empty_state(3)), ValueError, "a state of 3 rows meets"),
        (
            lambda m: m.extend(ids(3), decoder("quadratic").empty_state(1)),
            ValueError,
            "a state of 1 rows",
        ),
        (
            lambda m: m.extend(
                ids(2), Decoder(replace(m.config, layers=3)).double().empty_state(2)
            ),
            ValueError,
            "a state of 3 layers meets a model of 2",
        ),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call(decoder())


def test_tied_means_one_tensor():
    model = Decoder(presets.gpt())
    assert model.head.output.weight is model.embed.tokens.weight
    untied = Decoder(presets.llama())
    assert untied.head.output.weight is not untied.embed.tokens.weight
    pair = EncoderDecoder(presets.t5())
    assert pair.encoder.embed.tokens.weight is pair.decoder.head.output.weight


def test_a_printed_model_reads_like_its_diagram():
    lines = [line.strip() for line in str(Decoder(presets.llama())).splitlines()]
    found = [line.split(":")[0] for line in lines if line.startswith("(") and ":" in line]
    assert found == [
        "(embed)", "(tokens)", "(stack)", "(blocks)", "(0-1)", "(attention_norm)", "(attention)",
        "(q)", "(k)", "(v)", "(o)", "(mlp_norm)", "(mlp)", "(gate)", "(up)", "(down)", "(norm)",
        "(head)", "(output)",
    ]  # fmt: skip
    assert "(0-1): 2 x Block(" in lines
    assert any("mask=Causal()" in line and "2 key heads" in line for line in lines)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # in torch's kernel
@pytest.mark.parametrize("mechanism", ["softmax", "argmax", "quadratic", "decay"])
def test_gradients_of_each_sample_by_vmap_are_those_of_a_loop(mechanism):
    model, rows = decoder(mechanism), ids()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights, row):
        return torch.func.functional_call(model, weights, (row[None],)).square().sum()

    together = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, rows)
    for number, row in enumerate(rows):
        for name, gradient in torch.func.grad(loss)(weights, row).items():
            torch.testing.assert_close(together[name][number], gradient)
    assert together["embed.tokens.weight"].any()
