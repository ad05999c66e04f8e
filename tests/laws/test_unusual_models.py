"""Models unlike those of textbooks: graphs, spans, pairs of rows, quantisers, taggers."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from querykey.laws import check
from querykey.targets import find_inputs

WORDS, WIDTH = 37, 8


class Graph(nn.Module):
    """Attention along edges; a node without any keeps what it has, or is NaN where faulty."""

    def __init__(self, faulty):
        super().__init__()
        self.faulty, self.enter = faulty, nn.Linear(5, WIDTH)
        self.map, self.leave = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x, adj):
        x = self.enter(x)
        q, k, v = self.map(x).chunk(3, -1)
        low = float("-inf") if self.faulty else -1e9
        return self.leave(x + (q @ k.mT).masked_fill(adj == 0, low).softmax(-1) @ v)


@pytest.mark.parametrize("faulty", [False, True])
def test_a_node_without_edges_makes_nothing_infinite(faulty):
    finding = check(Graph(faulty), laws=["masked-row"]).law("masked-row")
    assert finding.verdict == ("violated" if faulty else "holds")
    if faulty:
        assert "as `adj` says" in finding.note


class Query(nn.Module):
    """Queries that look at padded features; an image of padding alone is NaN in torch's layer."""

    def __init__(self):
        super().__init__()
        self.enter, self.queries = nn.Linear(5, WIDTH), nn.Parameter(torch.randn(3, WIDTH))
        self.look, self.leave = nn.MultiheadAttention(WIDTH, 2, batch_first=True), nn.Linear(8, 4)

    def forward(self, x, mask):
        x, queries = self.enter(x), self.queries.expand(len(x), -1, -1)
        return self.leave(self.look(queries, x, x, key_padding_mask=mask)[0])


def test_the_gradient_of_a_row_that_torch_makes_nan_is_its_limitation():
    finding = check(Query(), laws=["masked-row"]).law("masked-row")
    assert (finding.verdict, finding.module) == ("limitation", "look")


class Span(nn.Module):
    """One score per token, without an axis of its own, or one per row."""

    def __init__(self, pooled, faulty=False):
        super().__init__()
        self.pooled, self.faulty = pooled, faulty
        self.embed, self.map = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.begin = nn.Linear(WIDTH, 1)

    def forward(self, ids, attention_mask=None):
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        q, k, v = self.map(self.embed(ids)).chunk(3, -1)
        seen = torch.ones_like(real) if self.faulty else real
        x = v + (q @ k.mT).masked_fill(seen[:, None] == 0, -1e9).softmax(-1) @ v
        scores = self.begin(x).squeeze(-1)
        return (scores * real).sum(1) if self.pooled else scores


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("faulty", [False, True])
def test_answers_that_are_one_number_are_judged(pooled, faulty):
    report = check(Span(pooled, faulty))
    assert {f.law for f in report.violations} == (
        {"padding.right", "padding.gradient"} if faulty else set()
    )
    assert not [f for f in report.laws if f.verdict == "error"]


class Quantised(nn.Module):
    """The nearest rows of a codebook; the derivative passes by them, or stops where faulty."""

    def __init__(self, faulty):
        super().__init__()
        self.faulty, self.embed = faulty, nn.Embedding(WORDS, WIDTH)
        self.encode, self.book = nn.Linear(WIDTH, WIDTH), nn.Embedding(6, WIDTH)
        self.score = nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.encode(self.embed(ids))
        near = self.book(torch.cdist(x, self.book.weight).argmin(-1))
        loss = F.mse_loss(near, x.detach()) + F.mse_loss(x, near.detach())
        return self.score(near if self.faulty else x + (near - x).detach()), loss


@pytest.mark.parametrize("faulty", [False, True])
def test_a_codebook_learns_by_its_loss_and_what_is_before_it_by_the_answer(faulty):
    finding = check(Quantised(faulty), laws=["gradient.reaches"]).law("gradient.reaches")
    assert finding.verdict == ("violated" if faulty else "holds")
    if faulty:
        assert finding.note.startswith("encode.weight is used but gets no gradient")


class Tagger(nn.Module):
    """Fewer labels than words; each token is compared with its own, or the next one's."""

    def __init__(self, tags, shift, skipped=True):
        super().__init__()
        self.shift, self.skipped = shift, skipped
        self.embed, self.score = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, tags)

    def forward(self, ids, labels=None):
        x = self.embed(ids)
        scores = self.score(x + x.mean(1, keepdim=True))
        if labels is None:
            return scores
        kept, labels = scores[:, : scores.shape[1] - self.shift], labels[:, self.shift :]
        losses = F.cross_entropy(kept.mT, labels.clamp(min=-100), reduction="none")
        count = (labels != -100).sum() if self.skipped else labels.numel()
        return losses.sum() / count, scores


@pytest.mark.parametrize("tags", [2, 9, 30])
def test_labels_that_are_no_words_are_compared_with_their_own_tokens(tags):
    for shift, skipped, broken in ((0, True, []), (1, True, ["shift"]), (0, False, ["padding"])):
        report = check(Tagger(tags, shift, skipped), laws=["loss"], weights="random")
        assert [f.law for f in report.violations] == [f"loss.{name}" for name in broken]


class Packed(nn.Module):
    """Causal attention within segments, or from any to the ones before it where faulty."""

    def __init__(self, seen):
        super().__init__()
        self.seen, self.embed = seen, nn.Embedding(WORDS, WIDTH)
        self.map, self.score = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, *, ids, segment_ids=None):
        q, k, v = self.map(self.embed(ids)).chunk(3, -1)
        seen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        if segment_ids is not None:
            seen = seen & self.seen(segment_ids[:, :, None], segment_ids[:, None])
        return self.score((q @ k.mT).masked_fill(~seen, -1e9).softmax(-1) @ v)


@pytest.mark.parametrize("compare", ["eq", "ge"])
def test_segments_that_are_compared_with_each_other_are_documents(compare):
    finding = check(Packed(getattr(torch, compare)), laws=["documents"]).law("documents")
    assert finding.verdict == ("holds" if compare == "eq" else "violated")


class Kinds(Packed):
    """Segments that are kinds of tokens, as BERT's are."""

    def forward(self, *, ids, segment_ids=None):
        kind = 0 if segment_ids is None else segment_ids[..., None] / 8
        q, k, v = self.map(self.embed(ids) + kind).chunk(3, -1)
        seen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        return self.score((q @ k.mT).masked_fill(~seen, -1e9).softmax(-1) @ v)


def test_segments_that_are_kinds_of_tokens_are_no_documents():
    assert check(Kinds(None), laws=["documents"]).law("documents").verdict == "not-applicable"


class Distances(Packed):
    """Scores fall with the distance between positions, which may be given."""

    def forward(self, *, ids, pos=None):
        pos = torch.arange(ids.shape[1])[None] if pos is None else pos
        q, k, v = self.map(self.embed(ids)).chunk(3, -1)
        scores = q @ k.mT - (pos[:, :, None] - pos[:, None]).abs() / 4
        seen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        return self.score(scores.masked_fill(~seen, -1e9).softmax(-1) @ v)


def test_positions_that_are_compared_with_each_other_are_no_documents():
    finding = check(Distances(None), laws=["documents"]).law("documents")
    assert (finding.verdict, finding.note) == (
        "not-applicable",
        "restarting positions, or segments, do not keep documents apart in it",
    )


class Turned(nn.Module):
    """A module of complex numbers after the embedding, which treats the first word apart."""

    def __init__(self, apart):
        super().__init__()
        self.apart, self.embed = apart, nn.Embedding(WORDS, WIDTH)
        self.turn, self.score = nn.Linear(WIDTH, WIDTH, dtype=torch.cfloat), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        if self.apart:
            x = torch.where((ids == 0)[..., None], 0.0, x)
        x = self.turn(torch.complex(x, x).to(self.turn.weight.dtype))
        return self.score(x.real.to(self.score.weight.dtype))


@pytest.mark.parametrize("apart", [False, True])
def test_words_are_renamed_in_a_model_of_complex_numbers_too(apart):
    finding = check(Turned(apart), laws=["vocabulary"], weights="random").law("vocabulary")
    assert finding.verdict == ("advice" if apart else "holds"), finding.note


class Towers(nn.Module):
    """An image and its caption, each through layers of its own."""

    def __init__(self):
        super().__init__()
        self.patches, self.words = nn.Conv2d(3, WIDTH, 8, 8), nn.Embedding(WORDS, WIDTH)

    def forward(self, image, text):
        return self.patches(image).mean((2, 3)), self.words(text).mean(1)


def test_arguments_of_several_kinds_are_found_by_name_and_layer():
    inputs, why = find_inputs(Towers())
    assert [(one.name, one.kind) for one in inputs] == [("image", "image"), ("text", "tokens")], why


class Table(nn.Module):
    """Two matrices of parameters, of which the smaller one is the table of words."""

    def __init__(self):
        super().__init__()
        self.down, self.words = nn.Parameter(torch.randn(400, 8)), nn.Parameter(torch.randn(399, 8))

    def forward(self, ids):
        return self.words[ids] @ self.down.mT


def test_the_highest_id_is_tried_before_a_table_is_believed():
    [ids], _ = find_inputs(Table())
    assert ids.high == 399


class Slots(nn.Module):
    """Starts from noise that a seed of its own draws: new numbers, or filled in."""

    def __init__(self, filled):
        super().__init__()
        self.filled, self.map, self.size = filled, nn.Linear(5, WIDTH), nn.Parameter(torch.ones(8))

    def forward(self, x):
        generator = torch.Generator().manual_seed(3)
        if self.filled == "in place":
            noise = torch.empty(4, WIDTH).normal_(generator=generator)
        elif self.filled:
            noise = nn.init.uniform_(torch.empty(4, WIDTH), generator=generator)
        else:
            noise = torch.randn(4, WIDTH, generator=generator)
        keys = self.map(x)
        return (noise.to(x) * self.size @ keys.mT).softmax(1) @ keys


@pytest.mark.parametrize("filled", ["", "in place", "by torch.nn.init"])
def test_noise_of_a_seed_is_the_same_in_every_precision(filled):
    report = check(Slots(filled), laws=["dtype.agree", "paths.autocast", "determinism"])
    assert [f.verdict for f in report.laws] == ["holds"] * 3


class Steps(nn.Module):
    """Features of steps beside their numbers, one of which looks ahead where faulty."""

    def __init__(self, faulty):
        super().__init__()
        self.faulty, self.enter, self.place = faulty, nn.Linear(5, WIDTH), nn.Embedding(20, WIDTH)

    def forward(self, states, steps):
        x = self.enter(states) + self.place(steps)
        return x.cumsum(1) + (x.roll(-1, 1) if self.faulty else 0)


@pytest.mark.parametrize("faulty", [False, True])
def test_features_beside_numbers_of_steps_are_differentiated_by(faulty):
    example = (torch.randn(2, 7, 5), torch.randint(20, (2, 7)))
    report = check(Steps(faulty), example, kind="decoder", laws=["causality.gradient"])
    assert report.law("causality.gradient").verdict == ("violated" if faulty else "holds")


class Chain(nn.Module):
    """Scores of transitions from tag to tag, which the loss alone reads, or nothing if faulty."""

    def __init__(self, faulty):
        super().__init__()
        self.faulty, self.steps = faulty, nn.Parameter(torch.randn(5, 5))
        self.embed, self.score = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, ids, tags=None):
        scores = self.score(self.embed(ids))
        if tags is None:
            return scores
        loss = F.cross_entropy(scores.mT, tags)
        return scores, loss if self.faulty else loss - self.steps[tags[:, :-1], tags[:, 1:]].mean()


@pytest.mark.parametrize("faulty", [False, True])
def test_what_the_loss_alone_reads_is_no_weight_that_never_learns(faulty):
    finding = check(Chain(faulty), laws=["gradient.reaches"]).law("gradient.reaches")
    assert finding.verdict == ("advice" if faulty else "holds")


class Scaled(nn.Module):
    """Rounds to steps of a scale; the derivative passes by the rounding unless it is faulty."""

    def __init__(self, faulty):
        super().__init__()
        self.faulty = faulty

    def forward(self, x):
        scale = x.abs().amax(-1, keepdim=True) / 127
        steps = x / scale
        return (steps.round() if self.faulty else steps + (steps.round() - steps).detach()) * scale


@pytest.mark.parametrize("faulty", [False, True])
def test_a_derivative_that_only_a_scale_passes_on_is_told(faulty):
    layers = nn.Embedding(WORDS, WIDTH), nn.Linear(8, 8), Scaled(faulty), nn.Linear(8, WORDS)
    finding = check(nn.Sequential(*layers), laws=["gradient.reaches"]).law("gradient.reaches")
    assert finding.verdict == ("advice" if faulty else "holds")
    assert finding.module == ("2" if faulty else None)
