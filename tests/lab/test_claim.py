"""Verdicts: a claim is confirmed or corrected where the whole confidence interval says so."""

import math
from dataclasses import replace

import pytest

from querykey.lab import (
    AtLeast,
    AtMost,
    Claim,
    Equal,
    Measurement,
    Near,
    exact,
    judge,
    sampled,
    unmeasured,
)


def verdict(measured, within, value) -> str:
    measurement = Measurement({"x": measured}, {})
    return judge(Claim("B1", "x is {value}", value, "x", within), measurement).verdict


@pytest.mark.parametrize(
    ("measured", "within", "value", "expected"),
    [
        (exact(3), Equal(), 3, "confirmed"),
        (exact(3), Equal(), 4, "corrected"),
        (exact(3), Equal(0.5), 3.5, "confirmed"),
        (exact(3), Equal(0.5), 3.6, "corrected"),
        (exact(10), Near(0.1), 11, "confirmed"),
        (exact(10), Near(0.1), 12, "corrected"),
        (exact(-10), Near(0.1), -11, "confirmed"),
        (exact(3), AtMost(), 3, "confirmed"),
        (exact(3), AtMost(), 2.9, "corrected"),
        (exact(3), AtLeast(), 3, "confirmed"),
        (exact(3), AtLeast(), 3.1, "corrected"),
        (exact(("Wk", "Wq")), Equal(), ("Wk", "Wq"), "confirmed"),
        (exact(("Wk", "Wq")), Equal(), ("Wk",), "corrected"),
        (exact(True), Equal(), True, "confirmed"),
        (exact(float("nan")), Equal(1), 1, "open"),
        (unmeasured("there is no GPU"), Equal(), 3, "open"),
    ],
)
def test_a_verdict_compares_what_was_measured_with_the_number(measured, within, value, expected):
    assert verdict(measured, within, value) == expected


# Mean 1 and standard deviation 0.1 over 4 seeds: half a confidence interval is 3.182 * 0.05.
SAMPLE = (1 - 0.1 * math.sqrt(0.75), 1 + 0.1 * math.sqrt(0.75)) * 2


@pytest.mark.parametrize(
    ("within", "value", "expected"),
    [
        (Equal(0.2), 1, "confirmed"),
        (Equal(0.15), 1, "open"),
        (Equal(0.2), 1.3, "open"),
        (Equal(0.2), 1.4, "corrected"),
        (AtMost(), 1.2, "confirmed"),
        (AtMost(), 1.1, "open"),
        (AtMost(), 0.9, "open"),
        (AtMost(), 0.8, "corrected"),
        (AtLeast(), 0.8, "confirmed"),
        (AtLeast(), 1.2, "corrected"),
    ],
)
def test_an_interval_that_reaches_over_the_border_leaves_a_claim_open(within, value, expected):
    assert sampled(SAMPLE).value == pytest.approx(1)
    assert sampled(SAMPLE).uncertainty == pytest.approx(3.182 * 0.05, rel=1e-3)
    assert verdict(sampled(SAMPLE), within, value) == expected


@pytest.mark.parametrize(("seeds", "student"), [(2, 12.706), (11, 2.228), (12, 2.201), (31, 2.042)])
def test_the_uncertainty_is_that_of_student(seeds, student):
    samples = [0.0] * (seeds - 1) + [1.0]  # whose standard deviation is 1 / sqrt(seeds)
    assert sampled(samples).uncertainty == pytest.approx(student / seeds, rel=1e-3)


def test_a_sample_of_one_has_no_uncertainty_and_is_refused():
    with pytest.raises(ValueError, match="at least 2 seeds"):
        sampled([1.0])


def test_an_open_verdict_names_the_interval_that_leaves_it_open():
    part = judge(
        Claim("B1", "x is {value}", 0.9, "x", AtLeast()),
        Measurement({"x": sampled([0.998, 0.9416, 0.8822])}, {}),
    )
    assert part.reason == (
        "measured 0.9406 ± 0.14 (3 seeds), claimed at least 0.9: "
        "the interval from 0.7967 to 1.084 reaches over that border, so it stays open"
    )


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        ("a node sees {value}", "A node sees 2."),
        ("the loss is {value}", "The loss is 2."),
        ("`attend` returns {value}", "`attend` returns 2."),
        ("nn.MSELoss is off by {value}", "nn.MSELoss is off by 2."),
        ("s = {value}", "s = 2."),
        ("theory: {value}", "Theory: 2."),
        ("sigma_1 > {value}", "sigma_1 > 2."),
        ("Var[s] is {value}", "Var[s] is 2."),
    ],
)
def test_a_claim_is_a_sentence_of_a_page(says, sentence):
    assert Claim("B1", says, 2, "x").sentence == sentence


def test_a_claim_says_its_own_number():
    claim = Claim("B1", "it grows as d^{value}", 2, "x", right="d.")
    measurement = Measurement({"x": exact(1)}, {})
    assert str(claim) == "it grows as d^2"
    assert str(judge(claim, measurement)) == (
        "B1 corrected: it grows as d^2 (measured 1, claimed exactly 2)"
    )
    assert str(replace(claim, value=("Wq", "Wk"))) == "it grows as d^Wq, Wk"
    with pytest.raises(KeyError, match="nothing named `y` was measured"):
        judge(replace(claim, of="y"), measurement)
