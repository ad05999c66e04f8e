"""Parallel depth: the results of a course's problems, and chains counted by hand."""

import pytest
import sympy
import torch
from torch import nn

import querykey as qk
from querykey.costs.counting.depths import ceil_log2
from querykey.costs.formulas.order import order_of


class Weights(nn.Module):
    """softmax(q k^T) per head."""

    def forward(self, q, k):
        return (q @ k.mT).softmax(-1)


class Heads(nn.Module):
    """K heads of key size U and value size I over T tokens of J features, put side by side."""

    def forward(self, h, wq, wk, wv):
        h = h.flatten(0, -2)  # two dimensions are one of flattened positions
        q, k, v = (torch.einsum("kuj,tj->ktu", w, h) for w in (wq, wk, wv))
        return ((q @ k.mT).softmax(-1) @ v).movedim(0, 1).flatten(1)


def heads(*positions):
    maps = [qk.array("K", size, "J") for size in "UUI"]
    return qk.cost(Heads(), (qk.array(*positions, "J"), *maps), backward=False)


def test_the_softmax_alone_takes_the_logarithms_of_keys_and_features():
    report = qk.cost(Weights(), (qk.array("K", "T", "U"), qk.array("K", "T", "U")), backward=False)
    # a product and its sum; then max, subtract, exp, sum, divide
    assert str(report.span) == "2*ceil_log2(T) + ceil_log2(U) + 4"
    assert str(report.span_with(["U"])) == "U + 2*ceil_log2(T) + 4"
    assert report.at(K=2, T=100, U=7).span == 2 * 7 + 3 + 4


def test_a_layer_takes_the_logarithms_of_tokens_and_features():
    report = heads("T")
    assert str(report.span) == "ceil_log2(J) + 3*ceil_log2(T) + ceil_log2(U) + 6"
    assert str(report.span_with(["J", "U"])) == "J + U + 3*ceil_log2(T) + 6"
    assert str(report.span_with(["J", "U", "T"])) == "J + 3*T + U + 6"


def test_two_dimensions_take_the_logarithm_of_their_product():
    assert str(heads("X", "Y").span) == "ceil_log2(J) + ceil_log2(U) + 3*ceil_log2(X*Y) + 6"


def test_orders_are_those_that_the_document_gives():
    """Document 002: 1 (a) and (b), and 2 (b); U is less than J there."""
    softmax = qk.cost(Weights(), (qk.array("K", "T", "U"), qk.array("K", "T", "U")), backward=False)
    assert str(softmax.order("span")) == "O(log T + log U)"
    assert softmax.order("span").theta == "Theta(log T + log U)"
    assert str(softmax.order("span", serial=["U"])) == "O(U + log T)"
    assert str(softmax.at(U=64).order("span")) == "O(log T)"
    assert str(softmax.at(U=64, T=5).order("span")) == "O(1)"
    layer, narrow = heads("T"), {"U": "<= J"}
    assert str(layer.order("span")) == "O(log T + log J + log U)"
    assert str(layer.order("span", given=narrow)) == "O(log T + log J) where U <= J"
    serial = layer.order("span", given=narrow, serial=["J", "U"])
    assert str(serial) == "O(J + log T) where U <= J"
    assert str(layer.order("span", serial=["J", "U", "T"])) == "O(U + J + T)"
    grid = heads("X", "Y").order("span", given=narrow)
    assert str(grid) == "O(log(X Y) + log J) where U <= J"


def test_what_outgrows_a_logarithm_is_left_alone():
    n, d = sympy.symbols("n d")
    orders = {
        n + ceil_log2(n * d): "O(n + log d)",
        ceil_log2(n) + ceil_log2(n * d) + 9: "O(log(n d))",
        sympy.Max(4 + ceil_log2(d), ceil_log2(7 * n) + 2): "O(log n + log d)",
        ceil_log2(sympy.ceiling(n / 64) * 3 + 1) + 5: "O(log n)",
    }
    assert {str(order_of(value, ["n", "d"])) for value in orders} == set(orders.values())


CHAINS = {
    "elementwise": (lambda x: (x + 1).exp() * 2, "3"),
    "a sum": (lambda x: x.sum(-1), "ceil_log2(d)"),
    "a mean": (lambda x: x.mean(-1), "ceil_log2(d) + 1"),
    "the longer of two": (lambda x: x.exp().sin().cos() + x.sum(0, keepdim=True), "{4, log}"),
    "views": (lambda x: x.mT.unsqueeze(0).flatten(), "0"),
    "norm": (lambda x: nn.functional.layer_norm(x, x.shape[-1:]), "2*ceil_log2(d) + 7"),
    "log softmax": (lambda x: x.log_softmax(0), "2*ceil_log2(n) + 4"),
    "in place": (lambda x: (x + 1).mul_(2).add_(x).sum(), "ceil_log2(d*n) + 3"),
}


class Chain(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_operations_takes_its_steps(name):
    function, steps = CHAINS[name]
    report = qk.cost(Chain(function), qk.array("n", "d"), backward=False)
    if name == "the longer of two":
        assert set(map(str, report.span.args)) == {"4", "ceil_log2(n) + 1"}
        assert (report.at(n=4, d=3).span, report.at(n=64, d=3).span) == (4, 7)
    else:
        assert str(report.span) == steps


def test_what_has_no_depth_is_refused_by_name():
    model = Chain(lambda x: x @ torch.linalg.inv(x.mT @ x))
    report = qk.cost(model, qk.array("n", 3), backward=False)
    assert "no depth is known for aten.linalg_inv_ex" in report.span
    with pytest.raises(qk.CostError, match="there is no size `m` to sum over"):
        report.span_with(["m"])
