"""Shares of a size, such as `int(tokens * 0.25)`, stay in the formulas as Python computes them."""

import pytest
import sympy
import torch
from torch import nn

import querykey as qk
from querykey.costs.counting.whole_numbers import SymbolicInt
from querykey.costs.formulas.validity import Validity

H, N = sympy.symbols("h n")
SIZES = (*range(1, 130), 1000, 4099)


class Share(nn.Module):
    """A map of the first tokens, how many of them a function says."""

    def __init__(self, number):
        super().__init__()
        self.map, self.number = nn.Linear(8, 12), number

    def forward(self, x):
        return self.map(x[:, : self.number(x.size(1))])


@pytest.mark.parametrize(
    ("number", "least"),
    [
        (lambda t: int(t * 0.25) + 1, 4),
        (lambda t: int(0.29 * t) + 1, 4),  # 0.29 * 100 is 28.999999999999996
        (lambda t: int(t**0.5), 4),
        (lambda t: int(t / 3), 6),
        (lambda t: max(1, int(t * 0.1)), 20),
        (lambda t: int(int(t) * 0.75) - int(t) // 2, 7),
    ],
)
def test_a_share_has_one_formula_for_all_sizes_but_the_smallest(number, least):
    report = qk.cost(Share(number), qk.array("n", "t", 8))
    assert report.engine == "symbolic"
    refused = []
    for t in SIZES:
        try:
            flops = report.at(n=3, t=t).flops.forward
        except qk.CostError:
            refused.append(t)
        else:
            assert flops == 2 * 3 * number(t) * 8 * 12, t
    assert all(t < least for t in refused), refused


def test_the_names_of_a_models_file_are_as_before():
    before = dict(globals())
    qk.cost(Share(lambda t: int(t * 0.5)), qk.array("n", "t", 8))
    assert dict(globals()) == before
    assert int(torch.tensor(2.5)) == 2


class OfInt(Share):
    """A share of the tokens, in a file in which `int` is also a dtype."""

    def forward(self, x):
        return super().forward(x) * torch.ones(12, dtype=int)


def test_a_model_that_needs_the_type_int_itself_keeps_a_formula_of_one_piece():
    report = qk.cost(OfInt(lambda t: int(t * 0.5)), qk.array("n", "t", 8), near={"t": 20})
    assert report.at(n=3, t=20).flops.forward == 2 * 3 * 10 * 8 * 12
    with pytest.raises(qk.CostError, match="outside the range"):
        report.at(n=3, t=40)


def test_what_stands_in_for_int_is_int_for_all_else():
    assert SymbolicInt("12") == 12
    assert SymbolicInt("1f", base=16) == 31
    assert SymbolicInt(2.9) == 2
    assert isinstance(3, SymbolicInt)
    assert not isinstance(3.0, SymbolicInt)
    assert issubclass(bool, SymbolicInt)
    assert SymbolicInt.from_bytes(b"\1\0", "big") == 256
    assert {int: "whole"}[SymbolicInt] == "whole"


@pytest.mark.parametrize("t", [60, 300])
def test_peak_bytes_moved_and_depth_are_those_of_the_share(t):
    report = qk.cost(Share(lambda t: int(t * 0.1) + 1), qk.array("n", "t", 8))
    fixed = qk.cost(Share(lambda _: t // 10 + 1), qk.array("n", "t", 8), near={"t": t})
    assert report.at(n=4, t=t).bytes_moved == fixed.at(n=4, t=t).bytes_moved
    assert report.peak(n=4, t=t).bytes == fixed.peak(n=4, t=t).bytes
    assert report.span == fixed.span


@pytest.mark.parametrize(
    ("guards", "range_"),
    [
        ([sympy.Ne(16 * N, 32)], "n != 2"),
        ([sympy.Ne(16 * N, 32), sympy.Ge(sympy.floor(N / 4), 1)], "n >= 4"),
        ([sympy.Ne(H * (sympy.floor(N / 4) + 1), H)], "n >= 4"),
        ([sympy.Eq(N - 2 * sympy.floor(N / 2), 0)], "n % 2 == 0"),
        ([sympy.Eq(sympy.floor(sympy.sqrt(N)), 10)], "n >= 100, n <= 120"),
        ([sympy.Ge(sympy.floor(0.3 * N), 6)], "n >= 20"),
        ([sympy.Ge(sympy.floor(N / 4), 1), sympy.Ne(H, N)], "n >= 4, h != n"),
        ([sympy.Ge(sympy.floor(N / 4), 2), sympy.Ge(H * N, 16)], "n >= 8"),
        ([sympy.Eq(sympy.Max(1, sympy.floor(N / 4)), sympy.floor(N / 4))], "n >= 4"),
        ([sympy.Eq(N % 8, 0), sympy.Eq(8 * sympy.floor(N / 8), N)], "n % 8 == 0"),
        ([sympy.Ne(sympy.floor(0.3 * N), 10**6)], "floor(0.3*n) != 1000000"),
    ],
)
def test_a_range_is_written_without_common_factors_and_what_follows_from_the_rest(guards, range_):
    valid = Validity.of(guards, {"n": 104, "h": 33})
    assert str(valid) == range_
    for n in (2, 3, 4, 5, 8, 19, 20, 33, 99, 100, 103, 104, 121, 5000):
        held = all(guard.subs({N: n, H: 33}) for guard in guards)
        assert valid.holds(n=n, h=33) == held, n


def test_a_rounded_share_may_have_a_range_too():
    report = qk.cost(Share(lambda t: round(t * 0.3)), qk.array("n", "t", 8))
    assert str(report.valid) == "t >= 5"
    assert report.at(n=2, t=15).flops.forward == 2 * 2 * round(4.5) * 8 * 12
