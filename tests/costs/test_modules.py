"""Costs per module: the backward pass goes to the module whose forward made it necessary."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import querykey as qk


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 3)


class ByKeyword(Pair):
    def forward(self, x):
        return self.second(input=self.first(input=x))


class Through(nn.Module):
    """A module in between, which is called with keyword arguments only."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(10, 10)

    def forward(self, *, value, scale):
        return self.inner(input=value) * scale


class Deep(Pair):
    def __init__(self):
        super().__init__()
        self.between = Through()

    def forward(self, x):
        return self.second(self.between(value=self.first(x), scale=2.0))


def test_backward_is_right_where_modules_are_called_with_keyword_arguments():
    report = qk.cost(ByKeyword(), qk.array("n", 6)).at(n=5)
    assert report.modules["first"].flops.backward == 2 * 5 * 60
    assert report.modules["second"].flops.backward == 2 * 2 * 5 * 30
    report = qk.cost(Deep(), qk.array("n", 6)).at(n=5)
    assert report.modules["between"].flops.backward == 2 * 2 * 5 * 100
    assert report.modules["between.inner"].flops.backward == 2 * 2 * 5 * 100
    assert report.modules["first"].flops.backward == 2 * 5 * 60
    parts = ("first", "between", "second")
    assert sum(report.modules[p].flops.backward for p in parts) == report.flops.backward


def test_a_module_that_runs_twice_costs_twice_and_has_its_parameters_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(6, 6)
            self.tied = self.map

        def forward(self, x):
            return self.tied(self.map(x))

    report = qk.cost(Twice(), qk.array("n", 6)).at(n=5)
    assert report.flops.forward == 2 * 2 * 5 * 36
    assert report.modules["map"].flops.forward == report.flops.forward
    assert report.params == 6 * 6 + 6


def test_shared_weights_are_counted_once():
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11, bias=False))
    model[1].weight = model[0].weight
    report = qk.cost(model, qk.tokens("n", "t"))
    assert report.params == 66
    assert report.modules["1"].params == 66


def test_what_checkpointing_computes_again_belongs_to_the_backward_pass():
    class Saver(Pair):
        def forward(self, x):
            hidden = checkpoint(lambda x: torch.relu(self.first(x)), x, use_reentrant=False)
            return self.second(hidden)

    report = qk.cost(Saver(), qk.array("n", 6)).at(n=5)
    # The gradient of its weight, and its forward once more.
    assert report.modules["first"].flops.backward == 2 * 2 * 5 * 60


def test_the_model_is_left_as_it_is():
    model = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    qk.cost(model, qk.array("n", 6))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.training
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("engine", ["auto", "interpolation"])
@pytest.mark.parametrize(
    ("training", "forward", "backward"), [(True, "48*n", "66*n"), (False, "24*n", "42*n")]
)
def test_a_batch_norm_is_cheaper_with_fixed_statistics(engine, training, forward, backward):
    norm = nn.BatchNorm1d(6).train(training)
    flops = qk.cost(norm, qk.array("n", 6), engine=engine).flops
    assert (str(flops.pointwise), str(flops.pointwise_backward)) == (forward, backward)
