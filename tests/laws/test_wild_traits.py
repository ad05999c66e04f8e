"""Traits of public models that were once accused without a fault, each in a few lines."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from querykey.laws import Subject, check

WORDS, WIDTH = 61, 16


def verdicts(report, *laws):
    return [report.law(name).verdict for name in laws]


class FloatNorm(nn.Module):
    """A norm that asks for float32, as those of most large models do."""

    def forward(self, x):
        wide = x.float()
        return (wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()).type_as(x)


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, WIDTH), FloatNorm()
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = self.qkv(self.norm(x)).unsqueeze(1).chunk(3, -1)
        x = x + functional.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        return self.head(self.norm(x))


def test_a_norm_in_float32_is_no_disagreement_between_ways_of_attention():
    assert verdicts(check(Fused()), "backend.agree") == ["holds"]


class FloatLayer(nn.Linear):
    """A layer that runs in float32 only while its weights are float32."""

    def forward(self, x):
        return super().forward(x.float()).type_as(x)


def test_code_that_asks_for_float32_does_not_fail_because_a_copy_is_wider():
    model = Fused()
    model.head = FloatLayer(WIDTH, WORDS)
    assert verdicts(check(model), "backend.agree") == ["holds"]


class Forecast(nn.Module):
    """A model of one length alone: its layer runs along time."""

    def __init__(self, mixed=False):
        super().__init__()
        self.mixed, self.along = mixed, nn.Linear(16, 4)

    def forward(self, x):
        x = x - x.mean(0, keepdim=True) if self.mixed else x
        return self.along(x.transpose(1, 2)).transpose(1, 2)


def test_an_example_of_the_only_length_is_taken_as_it_is():
    example = torch.randn(2, 16, 5)
    report = check(Forecast(), example=example)
    assert verdicts(report, "batch.alone", "gradient.reaches") == ["holds", "holds"]
    broken = check(Forecast(mixed=True), example=example)
    assert verdicts(broken, "batch.alone") == ["violated"]


class Shorter(nn.Module):
    """Answers at every position but the last, as a decoder that is taught by its targets."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, ids):
        return self.mix(self.embed(ids[:, :-1]))[0]


def test_a_position_without_an_answer_is_no_error():
    report = check(Shorter(), example=torch.randint(0, WORDS, (2, 9)))
    assert [f for f in report.laws if f.verdict in ("violated", "error")] == []
    assert verdicts(report, "batch.alone") == ["holds"]


class Strided(nn.Module):
    """Answers at every fourth frame, as recognisers of speech do."""

    def __init__(self):
        super().__init__()
        self.shrink, self.out = nn.Conv1d(8, WIDTH, 4, stride=4), nn.Linear(WIDTH, 7)

    def forward(self, x):
        return self.out(self.shrink(x.transpose(1, 2)).transpose(1, 2))


def test_frames_that_are_fewer_than_the_inputs_leave_the_rows_to_be_tried():
    report = check(Strided(), example=torch.randn(2, 32, 8))
    assert verdicts(report, "batch.alone", "batch.others") == ["holds", "holds"]


class Remembering(nn.Module):
    """Takes all ids beside its cache, and answers for the new ones."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault, self.embed = fault, nn.Embedding(WORDS, WIDTH)
        self.places, self.head = nn.Embedding(64, WIDTH), nn.Linear(WIDTH, WORDS)
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids, cache=None, return_cache=False):
        x = self.embed(ids) + self.places(torch.arange(ids.size(1)))
        if cache is not None:
            x = x[:, -1:]
        k = self.k(x) if cache is None else torch.cat([cache, self.k(x)], 1)
        old = k.size(1) - x.size(1)
        seen = torch.ones(x.size(1), k.size(1), dtype=torch.bool).tril(old)
        y = functional.scaled_dot_product_attention(self.q(x), k, k, seen)
        kept = k * 2 if self.fault and cache is not None else k
        return (self.head(x + y), kept) if return_cache else self.head(x + y)


def test_a_cache_may_want_all_ids_again():
    report = check(Remembering(), laws=["cache"])
    assert verdicts(report, "cache.step") == ["holds"]
    assert "beside all ids" in check(Remembering(), laws=["cache.step"]).about["cache"]
    broken = check(Remembering("kept keys are changed"), laws=["cache.step"])
    assert verdicts(broken, "cache.step") == ["violated"]


class TwoMemories(nn.Module):
    """Returns one thing that is passed back by another name than the first that fits."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids, past_memories=None, cached_kv=None):
        x = self.embed(ids)
        if past_memories is not None:
            x = x + past_memories.mean(1, keepdim=True)
        keys = x if cached_kv is None else torch.cat([cached_kv, x], 1)
        means = keys.cumsum(1) / torch.arange(1, keys.size(1) + 1)[:, None]
        return self.head(x + means[:, -x.size(1) :]), keys


def test_a_cache_is_not_believed_by_the_name_of_one_of_two_arguments():
    report = check(TwoMemories(), laws=["cache"])
    assert report.about["cache"] == "cached_kv"
    assert verdicts(report, "cache.step", "cache.chunk") == ["holds", "holds"]


class Box:
    """A cache that the caller makes; an empty list in its place is taken for none at all."""

    def __init__(self):
        self.kept = None


class Boxed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids, cache=None):
        x = keys = self.embed(ids)
        if cache:
            keys = x if cache.kept is None else torch.cat([cache.kept, x], 1)
            cache.kept = keys
        means = keys.cumsum(1) / torch.arange(1, keys.size(1) + 1)[:, None]
        return self.head(x + means[:, -x.size(1) :])


def test_an_empty_list_is_not_every_cache():
    assert "violated" not in verdicts(check(Boxed(), laws=["cache"]), "cache.step", "cache.chunk")


class OneSample(nn.Module):
    """Self-attention over (tokens, features), as textbooks begin."""

    def __init__(self):
        super().__init__()
        self.W_query, self.W_key = nn.Parameter(torch.rand(8, 8)), nn.Parameter(torch.rand(8, 8))

    def forward(self, x):
        scores = (x @ self.W_query) @ (x @ self.W_key).T
        return (scores / 8**0.5).softmax(-1) @ x


def test_tokens_without_a_batch_are_no_rows():
    report = check(OneSample())
    assert report.kind == "encoder"
    assert "violated" not in [f.verdict for f in report.laws]
    assert verdicts(report, "batch.alone", "equivariance") == ["holds", "holds"]


class Mixer(nn.Module):
    """Layers over rows of features that are no attention: interacting rows are a fault."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        return self.out(x).softmax(0)


def test_rows_that_interact_without_attention_are_a_fault():
    assert verdicts(check(Mixer(), laws=["batch.others"]), "batch.others") == ["violated"]


class FullAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + functional.scaled_dot_product_attention(self.q(x), x, x)


class LooksBack(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3)

    def forward(self, x):
        return x + self.conv(functional.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)


def test_full_attention_beside_convolutions_that_look_back_is_no_leak():
    model = nn.Sequential(*(part() for _ in range(2) for part in (FullAttention, LooksBack)))
    report = check(Subject(model, example=torch.randn(2, 9, WIDTH)), laws=["causality"])
    assert "violated" not in [f.verdict for f in report.laws]


class Half(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal, self.q = causal, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + functional.scaled_dot_product_attention(self.q(x), x, x, is_causal=self.causal)


class EitherHalf(nn.Module):
    """Called with a source alone it is its encoder, whatever its decoder is."""

    def __init__(self, leak=False):
        super().__init__()
        self.embed, self.encoder, self.decoder = nn.Embedding(WORDS, WIDTH), Half(leak), Half(True)

    def forward(self, src, tgt=None):
        memory = self.encoder(self.embed(src))
        return memory if tgt is None else self.decoder(self.embed(tgt)) + memory.mean(1, True)


def test_a_module_that_did_not_run_says_nothing_about_the_one_that_did():
    report = check(EitherHalf(), laws=["causality"])
    assert report.kind == "encoder"
    assert "violated" not in [f.verdict for f in report.laws]


class Makers(dict):
    """Makes a new layer of the kept class at every reading."""

    def __getitem__(self, key):
        return super().__getitem__(key)()

    def items(self):
        return [(key, self[key]) for key in self]


ACTIVATIONS = Makers(gelu=nn.GELU)


class Choosing(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)

    def forward(self, ids):
        return ACTIVATIONS["gelu"](self.embed(ids))


def test_a_dict_that_makes_its_values_is_left_as_it_is():
    report = check(Choosing(), laws=["determinism", "batch.alone"])
    assert verdicts(report, "determinism", "batch.alone") == ["holds", "holds"]
    assert dict.__getitem__(ACTIVATIONS, "gelu") is nn.GELU


class WithNothing(nn.Linear):
    """Keeps a parameter without a number in it, as a memory of length 0 is."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.memory = nn.Parameter(torch.zeros(1, 0, WIDTH))


@pytest.mark.parametrize("law", ["determinism", "batch.alone"])
def test_an_empty_parameter_is_no_obstacle(law):
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), WithNothing())
    assert verdicts(check(model, laws=[law]), law) == ["holds"]


class Padded(nn.Module):
    """A decoder that hides one id, which is neither the first nor the last, as its padding."""

    def __init__(self):
        super().__init__()
        self.trg_pad_idx, self.embed = 7, nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        real = (ids != self.trg_pad_idx)[:, None] & torch.ones(2 * ids.shape[1:]).tril().bool()
        return self.head(
            functional.scaled_dot_product_attention(x, x, x, real | ~real.any(-1, True))
        )


def test_an_id_that_a_model_takes_for_padding_is_not_drawn_among_the_words():
    report = check(Padded(), laws=["causality", "batch"])
    assert report.kind == "decoder"
    assert "violated" not in [f.verdict for f in report.laws]
    low = int(report.about["input"].rpartition("ids ")[2].split()[0])
    assert low > 7


class LatentLM(nn.Module):
    """A model of masked words: latents read all of them, and every word reads the latents."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.latents = nn.Parameter(torch.randn(5, WIDTH))

    def forward(self, ids):
        x = self.embed(ids)
        kept = (self.latents @ x.mT).softmax(-1) @ x
        return self.head(x + (x @ kept.mT / 4).softmax(-1) @ kept)


def test_a_name_alone_does_not_make_a_model_causal_that_weighs_no_pairs():
    report = check(LatentLM(), laws=["causality"])
    assert [f.verdict for f in report.laws] == ["advice"] * 3
    assert "say kind=decoder" in report.laws[0].note


class Segments(nn.Module):
    """Carries a state from one segment of 16 tokens to the next."""

    def __init__(self, cut=False):
        super().__init__()
        self.cut, self.embed = cut, nn.Embedding(WORDS, WIDTH)
        self.carry, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        state, answers = torch.zeros(len(ids), 1, WIDTH), []
        for segment in self.embed(ids).split(16, 1):
            kept = self.carry(state)
            answers.append(segment.cumsum(1) + (kept.detach() if self.cut else kept))
            state = answers[-1][:, -1:]
        return self.head(torch.cat(answers, 1))


def test_what_only_a_second_segment_reaches_is_no_dead_parameter():
    assert verdicts(check(Segments(), laws=["gradient"]), "gradient.reaches") == ["holds"]
    broken = check(Segments(cut=True), laws=["gradient"])
    assert verdicts(broken, "gradient.reaches") == ["violated"]


class Frames(nn.Module):
    """Cleans a signal in frames of 8 samples, one after the other."""

    def __init__(self, both_ways=False):
        super().__init__()
        self.causal, self.apart = True, nn.Conv1d(1, WIDTH, 8, stride=8)
        self.mix = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=both_ways)
        self.join = nn.ConvTranspose1d(WIDTH * (1 + both_ways), 1, 8, stride=8)

    def forward(self, mix):
        frames = self.apart(functional.pad(mix, (0, -mix.shape[-1] % 8)))
        frames = self.mix(frames.mT)[0].mT
        return self.join(frames)[..., : mix.shape[-1]]


def test_a_model_of_frames_looks_ahead_within_a_frame_and_no_further():
    example = torch.randn(2, 1, 24)
    report = check(Frames(), example=example)
    assert "violated" not in [f.verdict for f in report.laws]
    assert verdicts(report, "gradient.reaches", "causality.perturb") == ["holds", "advice"]
    broken = check(Frames(both_ways=True), example=example, laws=["causality"])
    assert verdicts(broken, "causality.perturb") == ["violated"]


class DropsTokens(nn.Module):
    """In training mode it can leave out whole tokens; the rate is 0."""

    def __init__(self):
        super().__init__()
        self.seq_dropout_prob, self.embed = 0.0, nn.Embedding(WORDS, WIDTH)

    def forward(self, ids, mask=None):
        x = self.embed(ids)
        real = torch.ones_like(ids).bool() if mask is None else mask.bool()
        if self.training and self.seq_dropout_prob > 0:
            scores = torch.randn(ids.shape).masked_fill(~real, -1e9)
            kept = scores.topk(max(1, int(ids.shape[1] * 0.6)), 1).indices
            real = torch.zeros_like(real).scatter(1, kept, True)
        return x + (x * real[..., None]).sum(1, keepdim=True) / real.sum(1)[:, None, None]


def test_a_rate_at_which_tokens_are_left_out_stays_as_it_is():
    report = check(DropsTokens(), laws=["padding.right", "determinism"])
    assert verdicts(report, "padding.right", "determinism") == ["holds", "holds"]


def overridable(x, dropout_p, training):
    """Ask torch who overrides this function, as torch's own do."""
    if torch.overrides.has_torch_function((x,)):
        return torch.overrides.handle_torch_function(overridable, (x,), x, dropout_p, training)
    return functional.dropout(x, dropout_p, training)


class Overridable(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout, self.embed = 0.3, nn.Embedding(WORDS, WIDTH)

    def forward(self, ids, mask=None):
        x = self.embed(ids) if mask is None else self.embed(ids) * mask[..., None]
        return overridable(x, self.dropout, self.training).cumsum(1)


def test_dropout_is_still_in_a_function_that_torch_lets_others_override():
    assert verdicts(check(Overridable(), laws=["padding.right"]), "padding.right") == ["holds"]


class Centred(nn.Module):
    """The bias is taken away again, so its derivative is rounding; computed in float32 alone."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x):
        x = self.first(x.float())
        return self.last((x - x.mean(1, keepdim=True)).pow(3))


UNIT = torch.eye(5)  # stays float32, so that the model refuses anything else


def test_derivatives_that_are_rounding_alone_are_no_breach_in_float32():
    model = Centred()
    subject = Subject(lambda x: model(x @ UNIT), example=torch.randn(2, 9, 5))
    report = check(subject, laws=["accumulation"])
    assert report.about["computed in"] == "float32"
    assert verdicts(report, "accumulation") == ["holds"]


class OwnBlank(nn.Module):
    """It reads a blank of its own before the first word, which no score can name."""

    def __init__(self, before=WORDS):
        super().__init__()
        self.before = before
        self.embed = nn.Embedding(WORDS + 1, WIDTH)
        self.mix, self.head = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        before = functional.pad(ids, (1, 0), value=self.before)[:, :-1]
        x = torch.cat([self.embed(ids), self.embed(before)], -1)
        return self.head(self.mix(x).tanh())


@pytest.mark.parametrize(("before", "verdict"), [(WORDS, "holds"), (0, "advice")])
def test_a_row_of_the_table_that_is_never_scored_is_no_word(before, verdict):
    assert verdicts(check(OwnBlank(before), laws=["vocabulary"]), "vocabulary") == [verdict]


class MaskOfBooleans(nn.Module):
    """It wants a mask of booleans, in which `real` marks a word, and does without none."""

    def __init__(self, real, leaks=False):
        super().__init__()
        self.real, self.leaks = real, leaks
        self.embed, self.weigh = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 1)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids, mask=None):
        x = self.embed(ids)
        hidden = ~mask if self.real else mask
        scores = self.weigh(x)[..., 0].masked_fill(hidden & (not self.leaks), -1e9)
        return self.head(x * (scores.softmax(-1)[..., None] * x).sum(1, keepdim=True))


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("leaks", [True, False])
def test_an_example_shows_what_a_mask_holds_and_what_marks_a_word(real, leaks):
    example = {"ids": torch.arange(14).view(2, 7), "mask": torch.full((2, 7), real)}
    report = check(MaskOfBooleans(real, leaks), example, laws=["padding.right"])
    assert verdicts(report, "padding.right") == ["violated" if leaks else "holds"], str(report)


class CachesLater(nn.Module):
    """It keeps nothing until it is told to, and resetting nothing raises."""

    def __init__(self, remembers=False):
        super().__init__()
        self.remembers, self.last = remembers, None
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def reset_caches(self):
        raise RuntimeError("caches are not set up")

    def forward(self, ids):
        x = self.embed(ids).cumsum(1)
        if self.remembers:
            x, self.last = x + (0 if self.last is None else self.last), x.mean().detach()
        return self.head(x)


@pytest.mark.parametrize(("remembers", "verdict"), [(False, "holds"), (True, "violated")])
def test_a_method_that_raises_resets_nothing(remembers, verdict):
    report = check(CachesLater(remembers), laws=["determinism"])
    assert verdicts(report, "determinism") == [verdict], str(report)


class Replayed(torch.autograd.Function):
    """It computes again what it needs, and only while training keeps what that takes."""

    @staticmethod
    def forward(ctx, x, kept):
        ctx.save_for_backward(x)
        ctx.kept = kept
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        torch.set_rng_state(ctx.kept)
        return gradient * ctx.saved_tensors[0].cos(), None


class TrainedAlone(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids).cumsum(1)
        return self.head(Replayed.apply(x, torch.get_rng_state() if self.training else None))


@pytest.mark.parametrize("law", ["gradient.custom", "paths.autocast", "gradient.reaches"])
def test_a_model_that_refuses_a_derivative_in_evaluation_breaks_no_law(law):
    report = check(TrainedAlone(), laws=[law])
    assert verdicts(report, law) == ["not-applicable"], str(report)


class Spectral(nn.Module):
    """Its filter along time is complex, as in state space models."""

    def __init__(self, mixes_rows=False):
        super().__init__()
        self.mixes_rows = mixes_rows
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.rate = nn.Parameter(torch.randn(WIDTH, dtype=torch.cfloat) / 4)

    def forward(self, ids):
        x = self.embed(ids)
        steps = torch.arange(ids.size(1), device=x.device)[:, None]
        kernel = self.rate.to(torch.complex(x, x).dtype) ** (1 + steps)
        length = 2 * ids.size(1)
        spectrum = torch.fft.rfft(x, length, 1) * torch.fft.rfft(kernel.real, length, 0)
        x = torch.fft.irfft(spectrum, length, 1)[:, : ids.size(1)]
        return self.head(x + x.mean(0) * self.mixes_rows)


@pytest.mark.parametrize("mixes_rows", [False, True])
@pytest.mark.parametrize("law", ["accumulation", "paths.autocast"])
def test_complex_weights_have_gradients_too(law, mixes_rows):
    verdict = "violated" if mixes_rows and law == "accumulation" else "holds"
    assert verdicts(check(Spectral(mixes_rows), laws=[law]), law) == [verdict]


class Doubled(torch.autograd.Function):
    """A function whose inputs' memory is in another order than their axes."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.pow(2)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.factor * ctx.saved_tensors[0] * gradient, None


class Transposed(nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.factor = factor
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        return self.head(Doubled.apply(self.embed(ids).mT, self.factor).mT)


@pytest.mark.parametrize(("factor", "verdict"), [(2.0, "holds"), (1.0, "violated")])
def test_a_derivative_by_hand_may_take_a_transposed_input(factor, verdict):
    report = check(Transposed(factor), laws=["gradient.custom"])
    assert verdicts(report, "gradient.custom") == [verdict], str(report)


class KeepsItsGraph(nn.Module):
    """It keeps a table that was computed from weights, so that no second step can be trained."""

    def __init__(self):
        super().__init__()
        self.kept = None
        self.slopes = nn.Parameter(torch.rand(WIDTH))
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        if self.kept is None:
            self.kept = self.slopes.exp()
        return self.head(self.embed(ids).cumsum(1) * self.kept)


def test_two_passes_of_one_law_share_no_graph():
    assert verdicts(check(KeepsItsGraph(), laws=["paths.autocast"]), "paths.autocast") == ["holds"]


class Codebooks(nn.Module):
    """It reads two ids at every position, one of each codebook."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, codes):
        return self.head(self.mix(self.embed(codes).sum(2))[0])


def test_several_ids_at_a_position_are_no_obstacle():
    report = check(Codebooks(), torch.arange(28).view(2, 7, 2), laws=["causality", "batch.alone"])
    assert [f.verdict for f in report.laws if f.verdict != "holds"] == [], str(report)


class LongCache:
    """A cache that keeps all keys."""

    def keep(self, keys):
        self.kept = torch.cat([self.kept, keys], 1) if hasattr(self, "kept") else keys
        return self.kept


class ShortCache(LongCache):
    """A cache that keeps the last five keys."""

    def keep(self, keys):
        seen = super().keep(keys)
        self.kept = seen[:, -5:]
        return seen


class OwnCache(nn.Module):
    """Without a cache from outside it makes one, by default a short one."""

    def __init__(self, makes=ShortCache):
        super().__init__()
        self.makes = makes
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.query = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids, past_key_values=None, use_cache=None):
        x = self.embed(ids)
        if use_cache and past_key_values is None:
            past_key_values = self.makes()
        keys = past_key_values.keep(x) if past_key_values is not None else x
        seen = torch.ones(x.size(1), keys.size(1), dtype=torch.bool)
        seen = seen.tril(keys.size(1) - x.size(1))
        mixed = functional.scaled_dot_product_attention(self.query(x), keys, keys, seen)
        return {"logits": self.head(x + mixed), "past_key_values": past_key_values}


@pytest.mark.parametrize(("makes", "verdict"), [(ShortCache, "violated"), (LongCache, "holds")])
def test_the_cache_that_a_model_returns_counts_and_not_a_better_one(makes, verdict):
    report = check(OwnCache(makes), laws=["cache.step"])
    assert verdicts(report, "cache.step") == [verdict], str(report)


class SampledExperts(nn.Module):
    """In training its experts are drawn at random, where two of them are near."""

    def __init__(self, sees_padding=False):
        super().__init__()
        self.sees_padding = sees_padding
        self.embed, self.route = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids, attention_mask=None):
        x = self.embed(ids)
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        if self.training and self.sees_padding:
            real = torch.ones_like(ids)
        x = x + (x * real[..., None]).cumsum(1)
        scores = self.route(x).softmax(-1)
        noise = torch.empty_like(scores).exponential_().log() if self.training else 0
        near = (scores[..., :1] - scores[..., 1:]).abs() < 0.3
        chosen = torch.where(near, scores - noise, scores).argmax(-1, keepdim=True)
        return self.head(torch.where(chosen == 0, self.experts[0](x), self.experts[1](x)))


def test_experts_that_are_drawn_at_random_in_training_see_no_padding():
    report = check(SampledExperts(), laws=["padding", "batch", "causality"])
    assert [f.law for f in report.violations] == [], str(report)


def test_what_training_mode_does_to_a_mask_is_told():
    model = SampledExperts(sees_padding=True)
    model.route.requires_grad_(False).weight.zero_()
    model.route.bias.data.copy_(torch.tensor([3.0, -3.0]))
    report = check(model, laws=["padding.left"], weights="own")
    assert verdicts(report, "padding.left") == ["violated"], str(report)


class OwnEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WORDS, WIDTH))

    def forward(self, ids):
        return functional.embedding(ids, self.weight)


class TiedToItsOwn(nn.Module):
    """The output layer has the weight of an embedding that is no nn.Embedding."""

    def __init__(self, tied=True):
        super().__init__()
        self.tie_weights = True
        self.embed, self.types = OwnEmbedding(), nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head((self.embed(ids) + self.types(ids)).cumsum(1))


@pytest.mark.parametrize(("tied", "verdict"), [(True, "holds"), (False, "violated")])
def test_a_weight_that_two_modules_hold_is_tied(tied, verdict):
    assert verdicts(check(TiedToItsOwn(tied), laws=["tying"]), "tying") == [verdict]


class Emptied(torch.autograd.Function):
    """A function that uses up a list which it is given, as reversible layers do."""

    @staticmethod
    def forward(ctx, x, factors):
        return x * factors.pop()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient, None


class UsesUp(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        return self.head(Emptied.apply(self.embed(ids).cumsum(1), [2]))


def test_a_function_that_cannot_be_called_again_is_not_judged():
    finding = check(UsesUp(), laws=["gradient.custom"]).law("gradient.custom")
    assert (finding.verdict, "called again" in finding.note) == ("not-applicable", True)


class Ambiguous:
    """A configuration that answers some questions with an error that is no AttributeError."""

    layer_types = None

    @property
    def sliding_window(self):
        raise RuntimeError("ask every layer for its own window")


def test_a_configuration_that_raises_is_no_error_of_the_law():
    model = Fused()
    model.config = Ambiguous()
    assert verdicts(check(model, laws=["paths.backend"]), "paths.backend") != ["error"]
