"""Exact interpolation: the polynomial, few points, and a refusal where there is none."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querykey.costs.formulas.polynomial import Fitter, NotPolynomialError, solve

POWERS = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 1))


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(POWERS, st.integers(-9, 99).filter(bool), min_size=1, max_size=6))
def test_any_polynomial_is_found_from_values_alone(terms):
    def evaluate(at):
        x, y, z = at["x"], at["y"], at["z"]
        return {"all": sum(c * x**a * y**b * z**e for (a, b, e), c in terms.items())}

    fit = Fitter(evaluate, "xyz", {name: range(2, 12) for name in "xyz"}).fit()
    assert fit.coefficients["all"] == terms
    assert fit.held_out >= 2


def test_a_size_below_the_line():
    values = {"d": [24, 48, 72, 96, 120], "h": [1, 2, 3, 4, 6, 8]}
    fit = Fitter(lambda at: {"k": 3 * at["d"] // at["h"] + at["h"]}, "dh", values).fit()
    assert fit.coefficients["k"] == {(1, -1): 3, (0, 1): 1}


@pytest.mark.parametrize("count", [lambda t: min(t, 6), lambda t: -(-t // 8), lambda t: 2**t])
def test_what_is_no_polynomial_is_refused(count):
    with pytest.raises(NotPolynomialError, match="in `t` over 3 to 14"):
        Fitter(lambda at: {"cost": count(at["t"])}, "t", {"t": range(3, 15)}).fit()


def test_few_points_where_few_monomials_occur():
    def evaluate(at):
        b, t, d, n = (at[name] for name in "btdn")
        return {"cost": n * (4 * b * t * t * d + 24 * b * t * d * d)}

    fit = Fitter(evaluate, "btdn", {name: range(2, 12) for name in "btdn"}).fit()
    assert fit.evaluated <= 30  # a full grid would be 2 * 3 * 3 * 2 = 36, and then some to hold out


def test_solving_is_exact():
    third = Fraction(1, 3)
    assert solve([[third, Fraction(2)], [Fraction(1), Fraction(7)]], [[third, Fraction(2)]]) == [
        [Fraction(-5), Fraction(1)]
    ]
