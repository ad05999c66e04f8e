"""Models with something odd about them that is lawful, each beside one that is not."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from querykey.costs import array
from querykey.laws import check
from querykey.targets import Input

WORDS, WIDTH, ROOM = 31, 8, 64


class Adapted(nn.Linear):
    """A layer that folds its adapter into its weight at the first call in evaluation mode."""

    def __init__(self, again):
        super().__init__(WIDTH, WIDTH)
        self.again, self.merged = again, False
        self.down = nn.Parameter(torch.randn(2, WIDTH))
        self.up = nn.Parameter(torch.randn(WIDTH, 2))

    def forward(self, input):
        if self.training:
            return super().forward(input) + input @ self.down.mT @ self.up.mT
        if self.again or not self.merged:
            self.weight.data += self.up @ self.down
            self.merged = True
        return super().forward(input)


@pytest.mark.parametrize("again", [False, True])
def test_weights_that_are_merged_once_are_put_back_with_the_switch_that_says_so(again):
    adapted = Adapted(again)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), adapted, nn.Linear(WIDTH, WORDS))
    before = adapted.weight.clone()
    report = check(model, laws=["causality.perturb", "batch.alone", "determinism", "vocabulary"])
    broken = {f.law for f in report.violations}
    assert ("determinism" in broken) if again else not broken
    assert torch.equal(adapted.weight, before)


class Graph(nn.Module):
    """Attention between the nodes of a graph; the fault adds up each node's row instead."""

    def __init__(self, faulty):
        super().__init__()
        self.faulty, self.score, self.head = faulty, nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, nodes, edges):
        scores = self.score(nodes) @ nodes.mT + edges
        if self.faulty:
            scores = scores + edges[:, :1]
        return self.head(scores.softmax(-1) @ nodes)


@pytest.mark.parametrize(("faulty", "verdict"), [(False, "holds"), (True, "advice")])
def test_nodes_are_shuffled_with_both_axes_of_their_edges(faulty, verdict):
    nodes = Input("nodes", "features", ("batch", "seq", 5))
    edges = Input("edges", "features", ("batch", "seq", "seq"))
    example = {"nodes": nodes, "edges": edges}
    found = check(Graph(faulty), example, laws=["equivariance"]).law("equivariance")
    assert found.verdict == verdict


class Served(nn.Module):
    """A model that is only to be served; the fault keeps its first layer from learning."""

    def __init__(self, faulty):
        super().__init__()
        self.faulty = faulty
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        if self.training:
            raise RuntimeError("call .eval() first")
        x = self.embed(ids)
        return self.head(x.detach() if self.faulty else x)


@pytest.mark.parametrize(("faulty", "verdict"), [(False, "advice"), (True, "violated")])
def test_gradients_of_a_model_that_refuses_training_mode_are_those_of_evaluation(faulty, verdict):
    found = check(Served(faulty).eval(), laws=["gradient.reaches"]).law("gradient.reaches")
    assert found.verdict == verdict
    assert ("evaluation mode alone" in found.note) is not faulty


class Tied(nn.Module):
    """A model whose table of positions has, by chance, the shape of a layer inside."""

    def __init__(self, tie):
        super().__init__()
        self.config = SimpleNamespace(tie_weights=True)
        self.word, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(4 * WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        if tie:
            self.out.weight = self.word.weight

    def forward(self, ids):
        x = self.word(ids) + self.place.weight[: ids.size(1)]
        return self.out(x + self.down(self.up(x).relu()))


@pytest.mark.parametrize(("tie", "guilty"), [(False, "out"), (True, None)])
def test_the_layer_that_gives_scores_is_the_one_that_is_not_tied(tie, guilty):
    assert check(Tied(tie), laws=["tying"]).law("tying").module == guilty


@pytest.mark.parametrize("hides", [False, True])
def test_what_a_mask_is_taken_to_mean_is_told(hides):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mix = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, ids, mask=None):
            x = self.embed(ids)
            scores = x @ self.mix(x).mT
            if mask is not None:
                hidden = mask.bool() if hides else ~mask.bool()
                scores = scores.masked_fill(hidden[:, None], -1e9)
            return scores.softmax(-1) @ x

    told = check(Masked(), laws=["padding.right"]).about["padding mask"]
    assert told.startswith("mask (")
    assert told.endswith("padding)" if hides else "a real token)")


@pytest.mark.parametrize("example", [3, "ids", array("batch", 5), {3, 4}])
def test_an_example_that_is_none_is_refused_in_one_sentence(example):
    report = check(nn.Linear(5, 5), example, laws=["purity"])
    assert report.law("purity").note.startswith("an example is a tensor, or a tuple or a dict of")


@pytest.mark.parametrize("faulty", [False, True])
@pytest.mark.parametrize("name", ["feat_lengths", "ilens", "n_len"])
def test_required_lengths_of_rows_are_known_by_the_end_of_their_name(name, faulty):
    class Speech(nn.Module):
        def __init__(self):
            super().__init__()
            self.take, self.mix = nn.Linear(5, WIDTH), nn.Conv1d(WIDTH, 4, 3, padding=1)

        def hear(self, feats, lengths):
            x = self.take(feats)
            real = torch.arange(x.size(1)) < lengths[:, None]
            return self.mix((x if faulty else x * real[..., None]).mT).mT

    space = {}
    exec(f"def forward(self, feats, {name}):\n    return self.hear(feats, {name})", space)
    Speech.forward = space["forward"]
    found = check(Speech(), laws=["padding.right"]).law("padding.right")
    assert found.verdict == ("violated" if faulty else "holds")


class Placed(nn.Module):
    """A decoder that keeps keys in a cache set up before, and writes them where it is told to."""

    def __init__(self, ahead):
        super().__init__()
        self.embed, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(ROOM, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WORDS)
        self.register_buffer("seen", torch.ones(ROOM, ROOM, dtype=torch.bool).tril(ahead))
        self.setup_caches(max_batch=8)

    def setup_caches(self, max_batch):
        self.register_buffer("kv_cache", torch.zeros(max_batch, ROOM, 2 * WIDTH))

    def forward(self, idx, input_pos):
        x = self.embed(idx) + self.places(input_pos)
        q, kv = self.qkv(x).split([WIDTH, 2 * WIDTH], -1)
        self.kv_cache = self.kv_cache.to(kv).detach().clone()
        self.kv_cache[: len(idx), input_pos] = kv
        k, v = self.kv_cache[: len(idx)].chunk(2, -1)
        scores = (q @ k.mT / WIDTH**0.5).masked_fill(~self.seen[input_pos], float("-inf"))
        return self.out(x + scores.softmax(-1) @ v)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("given", [False, True])
def test_positions_that_every_call_must_give_are_counted(ahead, given):
    example = (torch.randint(0, WORDS, (2, 7)), torch.arange(7)) if given else None
    report = check(Placed(ahead), example, laws=["causality", "cache.step"])
    assert report.about["cache"] == "setup_caches(), then input_pos in every call"
    names = ["causality.perturb", "causality.gradient", "causality.prefix", "cache.step"]
    assert [finding.law for finding in report.violations] == names * ahead
    verdicts = {report.law(name).verdict for name in names}
    assert verdicts == {"violated" if ahead else "holds"}
    assert ahead or not any(report.law(name).note for name in names)  # no trial was left out
