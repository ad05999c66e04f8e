"""The range in which a formula holds, where sizes are halved, rounded or divided."""

import pytest
import sympy
import torch
from torch import nn

import querykey as qk
from querykey.costs.formulas.validity import Validity

H, N = sympy.symbols("h n")


def halved(size):
    return sympy.floor(size / 2 - sympy.Rational(1, 2))


def test_a_range_found_from_floors_within_floors_holds_the_size_it_was_found_at():
    """floor((floor((h - 1) / 2) - 1) / 2) + 1 is 1 from 3 to 6, and never again."""
    valid = Validity.of([sympy.Ne(halved(halved(H)) + 1, 1)], {"h": 7})
    assert str(valid) == "h >= 7"
    deep = halved(halved(halved(H)))
    for least in range(1, 40):
        guard = sympy.Ge(deep, least)
        hint = 8 * (least + 1)
        smallest = next(h for h in range(1, hint) if deep.subs(H, h) >= least)
        assert str(Validity.of([guard], {"h": hint})) == f"h >= {smallest}"


def test_a_condition_that_repeats_stays_one():
    guard = sympy.Ne(sympy.Mod(H, 128), 5)
    for hint in (7, 262, 300):
        assert str(Validity.of([guard], {"h": hint})) == "h % 128 != 5"


def test_a_condition_that_divides_by_0_does_not_hold():
    condition = sympy.Ne(N - N * sympy.floor(H / 4) * sympy.floor(1 / sympy.floor(H / 4)), 0)
    valid = Validity((condition,))
    assert not valid.holds(h=3, n=2)
    assert valid.holds(h=9, n=2)


class Image(nn.Module):
    """Two convolutions and pools over images of any height and width."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1)
        )

    def forward(self, x):
        return self.layers(x).mean((2, 3))


def test_a_convolutional_net_has_a_formula_in_height_and_width():
    report = qk.cost(Image(), qk.images("n", 3, "h", "w"))
    for n, h, w in ((2, 20, 33), (5, 64, 100), (3, 9, 7)):
        first = (h + 1) // 2, (w + 1) // 2
        second = first[0] // 2, first[1] // 2
        flops = 2 * n * (8 * first[0] * first[1] * 27 + 8 * second[0] * second[1] * 72)
        assert report.at(n=n, h=h, w=w).flops.forward == flops


class Share(nn.Module):
    """A map of a rounded share of the tokens, of one at least."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(8, 12)

    def forward(self, x):
        return self.map(x[:, : max(1, round(x.size(1) * 0.3))])


def test_a_rounded_share_is_right_at_every_size_or_refused():
    report = qk.cost(Share(), qk.array("n", "t", 8))
    assert str(report.flops.forward) == "192*n*round(0.3*t)"
    answered = 0
    for t in (*range(1, 12), 50, 101):
        try:
            found = report.at(n=3, t=t).flops.forward
        except qk.CostError:
            continue
        answered += 1
        assert found == 2 * 3 * max(1, round(t * 0.3)) * 8 * 12, t
    assert answered >= 8


@pytest.mark.parametrize("size", [4, 7, 100])
def test_int_of_a_share_has_a_formula_around_any_size(size):
    class Whole(Share):
        def forward(self, x):
            return self.map(x[:, : int(x.size(1) * 0.25) + 1])

    report = qk.cost(Whole(), qk.array("n", "t", 8), near={"t": size})
    for t in (size, 4 * size):
        assert report.at(n=3, t=t).flops.forward == 2 * 3 * (t // 4 + 1) * 8 * 12
    assert Whole()(torch.zeros(3, size, 8)).shape == (3, size // 4 + 1, 12)


class Windows(nn.Module):
    """A map within windows of some tokens."""

    def __init__(self, window):
        super().__init__()
        self.window, self.map = window, nn.Linear(6, 6)

    def forward(self, x):
        return self.map(x.unflatten(1, (x.size(1) // self.window, self.window)))


@pytest.mark.parametrize(("window", "step"), [(2, 2), (4, 4), (14, 14)])
def test_a_model_that_runs_at_multiples_alone_has_a_formula_for_these(window, step):
    report = qk.cost(Windows(window), qk.array("n", "t", 6))
    assert str(report.valid) == f"t % {step} == 0"
    assert any(f"multiples of {step} in `t`" in note for note in report.notes)
    for n in (1, 3):
        assert report.at(n=n, t=5 * step).flops.forward == 2 * n * 5 * step * 36
    with pytest.raises(qk.CostError, match="outside the range"):
        report.at(n=3, t=5 * step + 1)


def test_a_bound_between_multiples_is_none_where_the_next_multiple_costs_the_same():
    class Chunks(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(6, 6)

        def forward(self, x):
            inner = x.unflatten(1, (x.shape[1] // 3, 3))
            return self.map(inner + 1 if x.shape[1] > 11 else inner - 1)

    report = qk.cost(Chunks(), qk.array("n", "t", 6), sizes={"t": 3}, near={"t": 9})
    assert str(report.valid) == "t % 3 == 0"


def test_a_model_that_never_runs_is_refused_as_it_failed_first():
    with pytest.raises(qk.CostError, match=r"the model does not run with n=3, t=5 \("):
        qk.cost(Windows(4), qk.array("n", "t", 5))


def test_what_the_user_says_of_sizes_is_not_replaced():
    with pytest.raises(qk.CostError, match="the model does not run"):
        qk.cost(Windows(4), qk.array("n", "t", 6), sizes={"t": 3})
