"""The interpolating engine: a polynomial through counts at concrete sizes, solved exactly."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import sympy

from querykey.costs.counting.passes import PassOptions
from querykey.costs.formulas.concrete import ConcreteCounter
from querykey.costs.formulas.formula_set import Derivation, FormulaSet, RefusedError
from querykey.costs.formulas.polynomial import Fitter, NotPolynomialError
from querykey.costs.measured_model import MeasuredModel
from querykey.costs.sums import Key, Sum


def interpolated(measured: MeasuredModel, options: PassOptions) -> FormulaSet:
    """Return the polynomials through the counts, tested at points that were held out."""
    counter = ConcreteCounter(measured, options)
    try:
        fit = Fitter(counter, measured.names, measured.values).fit()
    except NotPolynomialError as error:
        raise RefusedError(f"{error}; say where with near={{'{error.name}': SIZE}}") from error
    symbols = tuple(sympy.Symbol(name) for name in measured.names)
    own: dict[Key, Sum] = {}
    params: dict[str, Sum] = {}
    for key, coefficients in fit.coefficients.items():
        path, metric = key  # type: ignore[misc]
        total = {monomial(symbols, powers): number(c) for powers, c in coefficients.items()}
        if metric == "params":
            params[path] = total
        else:
            own[path, metric] = total
    notes = []
    if measured.names:
        ranges = ", ".join(f"{n} {min(v)} to {max(v)}" for n, v in measured.values.items())
        counts = f"{fit.evaluated} counts at sizes {ranges}"
        notes.append(f"fitted to {counts}, {fit.held_out} of which only check the fit")
    if counter.ran:
        notes.append("counted by running it: what it does depends on values")
    derivation = Derivation("interpolation", ran=counter.ran, loops=len(counter.operations) > 1)
    return FormulaSet(own, params, counter.unknown, derivation, notes=notes)


@cache
def monomial(symbols: tuple[sympy.Symbol, ...], powers: tuple[int, ...]) -> sympy.Expr:
    """Return the product of the symbols, each to its power."""
    return sympy.Mul(*[s**p for s, p in zip(symbols, powers, strict=True)])


def number(value: Fraction) -> Any:
    """Return a fraction as an int where it is whole, or as a rational number of sympy."""
    return int(value) if value.denominator == 1 else sympy.Rational(*value.as_integer_ratio())
