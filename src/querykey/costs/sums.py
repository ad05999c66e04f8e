"""Sums of monomials: the form in which costs are counted, added and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy

Sum = dict[Any, Any]  # from a monomial (a sympy expression, or 1) to its coefficient
Key = tuple[str, str]  # a module's path, and what is counted, such as "forward"


def as_sum(formula: Any) -> Sum:
    """Return an int or a sympy expression as a sum of monomials."""
    if isinstance(formula, int):
        return {sympy.S.One: formula} if formula else {}
    expanded = sympy.expand(formula)
    return {m: c for m, c in expanded.as_coefficients_dict().items() if c != 0}


def expression(total: Mapping[Any, Any], fixed: Mapping[str, int] | None = None) -> sympy.Expr:
    """Return a sum as one expression, with the `fixed` sizes replaced by numbers."""
    formula = sympy.Add(*(monomial * factor for monomial, factor in total.items()))
    if fixed:
        formula = sympy.expand(formula.subs({sympy.Symbol(n): size for n, size in fixed.items()}))
    return formula


def add_sum(into: Sum, more: Mapping[Any, Any], times: int = 1) -> None:
    """Add `times` the sum `more` to the sum `into`, in place."""
    for monomial, factor in more.items():
        into[monomial] = into.get(monomial, 0) + factor * times


def fold_sums(own: Mapping[Key, Sum], fold: Callable[[str], str]) -> dict[Key, Sum]:
    """Return the sums with every module's path replaced by `fold(path)`."""
    folded: dict[Key, Sum] = {}
    for (path, metric), total in own.items():
        add_sum(folded.setdefault((fold(path), metric), {}), total)
    return folded


def sums_at(sums: Mapping[Key, Sum], sizes: Mapping[str, int]) -> dict[Key, Any]:
    """Return every sum as a number at these sizes, without those that are 0."""
    values = {sympy.Symbol(name): sympy.Integer(size) for name, size in sizes.items()}
    monomials: dict[Any, Any] = {}

    def value(monomial: Any) -> Any:
        if monomial not in monomials:
            monomials[monomial] = sympy.sympify(monomial).xreplace(values)
        return monomials[monomial]

    totals = {key: sum(c * value(m) for m, c in total.items()) for key, total in sums.items()}
    return {key: total for key, total in totals.items() if total != 0}
