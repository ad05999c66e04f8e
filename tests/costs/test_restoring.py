"""A model is left as it is: nothing of a pass stays in its attributes or its gradients."""

from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import querykey as qk


class Remembering(nn.Module):
    """Keeps positions in a plain attribute, and what it has seen in a list and a dict."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(6, 6)
        self.table, self.seen, self.named = None, [], {"lengths": []}

    def forward(self, x):
        length = x.size(1)
        if self.table is None or self.table.size(0) < length:
            self.table = torch.arange(length).float()
        self.seen.append(x)
        self.named["lengths"].append(length)
        return self.map(x + self.table[:length, None])


def test_what_a_model_keeps_in_attributes_is_as_before():
    model, x = Remembering(), torch.randn(2, 5, 6)
    seen, lengths = model.seen, model.named["lengths"]
    for engine in ("auto", "interpolation"):
        report = qk.cost(model, qk.array("n", "t", 6), engine=engine)
        assert str(report.flops.forward) == "72*n*t"
        assert model.table is None
        assert model.seen is seen
        assert model.named["lengths"] is lengths
        assert seen == lengths == []
    assert model(x).shape == (2, 5, 6)
    assert type(model.table) is torch.Tensor


def test_what_one_pass_keeps_does_not_change_the_next():
    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.map, self.first = nn.Linear(6, 6), True

        def forward(self, x):
            x = self.map(x) if self.first else x * self.map.bias
            self.first = False
            return x

    assert str(qk.cost(Once(), qk.array("n", 6)).flops.forward) == "72*n"


class Cache:
    """A plain object, as models keep for decoding."""

    def __init__(self):
        self.keys = None


class Counting(nn.Module):
    """Counts its calls in whatever can hold a number, and keeps keys in an object and a deque."""

    def __init__(self):
        super().__init__()
        self.map, self.cache = nn.Linear(6, 6), Cache()
        self.steps, self.entries = torch.zeros(()), np.zeros(2)
        self.recent, self.nested = deque(maxlen=2), [{"steps": torch.zeros(3)}]

    def forward(self, x):
        self.steps += 1
        self.entries += 1
        self.nested[0]["steps"] += 1
        self.recent.append(x)
        keys = self.cache.keys
        self.cache.keys = x if keys is None else torch.cat([keys, x])
        return self.map(self.cache.keys)


@pytest.mark.parametrize("engine", ["auto", "interpolation"])
def test_what_objects_arrays_and_tensors_hold_is_as_before(engine):
    model = Counting()
    report = qk.cost(model, qk.array("n", 6), engine=engine)
    assert str(report.flops.forward) == "72*n"
    assert model.cache.keys is None
    assert not model.recent
    assert not model.steps.any()
    assert not model.entries.any()
    assert not model.nested[0]["steps"].any()
    model(torch.randn(2, 6))
    assert float(model.steps) == 1


class Recomputed(nn.Module):
    """The old way of checkpointing: the backward pass within runs on its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 10)

    def forward(self, x):
        return self.second(checkpoint(self.first, self.first(x), use_reentrant=True))


def test_reentrant_checkpointing_is_counted_and_leaves_no_gradients():
    model = Recomputed()
    report = qk.cost(model, qk.array("n", 6))
    assert str(report.modules["first"].flops.forward) == "144*n"
    # Twice the weight's gradient, once the input's, and the product that is computed again.
    assert str(report.modules["first"].flops.backward) == "288*n"
    assert all(p.grad is None for p in model.parameters())


def test_gradients_that_were_there_stay():
    class Loose(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 6)
            self.weights = [nn.Parameter(torch.ones(6, 6))]  # in a plain list, unknown to torch

        def forward(self, x):
            return self.inner(x) @ self.weights[0]

    model = Loose()
    model(torch.randn(2, 6)).sum().backward()
    held = (model.inner.weight, model.weights[0])
    before = [(weight.grad, weight.grad.clone()) for weight in held]
    for engine in ("auto", "interpolation"):
        qk.cost(model, qk.array("n", 6), engine=engine)
    for weight, (gradient, values) in zip(held, before, strict=True):
        assert weight.grad is gradient
        assert torch.equal(gradient, values)
