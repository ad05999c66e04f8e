"""Large models are tried by their first layers and words, where the others are alike."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from querykey.laws import check
from querykey.laws.understanding import shrinking

WORDS, WIDTH = 47, 8


class Layer(nn.Module):
    def __init__(self, number, causal=True):
        super().__init__()
        self.layer_idx, self.looks_back_only = number, causal
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + functional.scaled_dot_product_attention(q, k, v, is_causal=self.looks_back_only)


class Stack(nn.Module):
    def __init__(self, layers, scale=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight
        self.layers, self.scale = nn.ModuleList(layers), scale

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x / self.head.weight.norm() if self.scale else x)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(shrinking, "LARGE", 1000)
    monkeypatch.setattr(shrinking, "WORDS", 11)


def test_a_tower_of_like_layers_is_tried_by_two_of_them_and_some_of_its_words():
    model = Stack([Layer(i) for i in range(8)])
    before = {name: (p, p.detach().clone()) for name, p in model.named_parameters()}
    report = check(model, laws=["causality", "batch", "gradient"])
    assert report.violations == []
    assert report.about["tried on"] == "its first 2 of 8 layers and 11 of 47 words"
    assert report.about["input"].endswith("token ids 0 to 10")
    after = dict(model.named_parameters())
    assert all(after[name] is p and torch.equal(p, kept) for name, (p, kept) in before.items())
    assert len(model.layers) == 8


@pytest.mark.parametrize(("late", "kept"), [(3, 4), (6, 8)])
def test_a_layer_of_another_kind_is_kept_and_told(late, kept):
    model = Stack([Layer(i, causal=i != late) for i in range(8)])
    report = check(model, laws=["causality.perturb"])
    assert [f.module for f in report.violations] == [f"layers.{late}"]
    layers = f"its first {kept} of 8 layers and " if kept < 8 else "its first "
    assert report.about["tried on"] == f"{layers}11 of 47 words"


def test_words_stay_where_the_scores_of_some_depend_on_the_others():
    model = Stack([Layer(i) for i in range(8)], scale=True)
    report = check(model, laws=["causality.perturb"])
    assert report.about["tried on"] == "its first 2 of 8 layers"
    assert report.about["input"].endswith("token ids 0 to 46")


def test_a_tied_weight_stays_one_tensor():
    small, _ = shrinking.shrunk(Stack([Layer(i) for i in range(8)]), words=True)
    assert small.head.weight is small.embed.weight
    assert small.embed.weight.shape == (11, WIDTH)


def test_small_models_are_tried_whole(monkeypatch):
    monkeypatch.setattr(shrinking, "LARGE", 1_000_000)
    model = Stack([Layer(i) for i in range(8)])
    assert shrinking.shrunk(model, words=True) == (model, "")


class Nested(Layer):
    def __init__(self, number):
        super().__init__(number)
        self.mlp = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def forward(self, x):
        return self.mlp(super().forward(x))


def test_a_stack_inside_of_a_layer_stays_whole():
    small, kept = shrinking.shrunk(Stack([Nested(i) for i in range(6)]), words=False)
    assert kept == "its first 2 of 6 layers"
    assert [len(layer.mlp) for layer in small.layers] == [4, 4]


class NeedsAll(Stack):
    def forward(self, ids):
        if len(self.layers) != 8:
            raise ValueError("one cache per layer")
        return super().forward(ids)


def test_a_model_that_does_not_run_with_fewer_layers_is_tried_whole():
    report = check(NeedsAll([Layer(i) for i in range(8)]), laws=["causality.perturb"])
    assert "tried on" not in report.about
    assert report.law("causality.perturb").verdict == "holds"
