"""The sizes at which two models cost the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy

from querykey.costs.inputs import CostError


@dataclass(frozen=True)
class CostComparison:
    """The difference of two costs, and the values of one size at which it is 0."""

    of: str
    size: str
    difference: sympy.Expr
    crossings: tuple[sympy.Expr, ...]

    def __str__(self) -> str:
        if self.difference == 0:
            return f"{self.of}: both cost the same at every size"
        if not self.crossings:
            return f"{self.of}: they do not cross; the first costs {self.difference} more"
        at = ", ".join(f"{self.size} = {root}" for root in self.crossings)
        return f"{self.of}: they cost the same at {at}; the first costs {self.difference} more"


def crossings(first: Any, second: Any, size: str, of: str) -> CostComparison:
    """Solve first = second for one size: positive numbers, or expressions in the other sizes."""
    if isinstance(first, str) or isinstance(second, str):
        raise CostError(f"`{of}`: {first if isinstance(first, str) else second}")
    difference = sympy.factor_terms(sympy.expand(sympy.sympify(first) - second))
    symbol = sympy.Symbol(size)
    positive = sympy.Symbol(size, positive=True)
    free: Any = difference.free_symbols
    others = {s: sympy.Symbol(s.name, positive=True) for s in free}
    solved = sympy.expand(difference).xreplace({**others, symbol: positive})
    if not solved.is_polynomial(positive):
        raise CostError(f"`{of}` is no polynomial in `{size}`, so it is not solved for it")
    back = {new: old for old, new in others.items()}
    roots = _positive_roots(solved, positive, of) if solved.has(positive) else []
    shown = sorted((sympy.simplify(r).xreplace(back) for r in roots), key=_numeric)
    return CostComparison(of, size, difference, tuple(shown))


def deciding_size(first: Any, second: Any, of: str) -> str:
    """Return the size that decides which cost is larger; a factor of the difference does not."""
    if isinstance(first, str) or isinstance(second, str):
        raise CostError(f"`{of}`: {first if isinstance(first, str) else second}")
    difference = sympy.factor_terms(sympy.expand(sympy.sympify(first) - second))
    factors = [factor for factor in sympy.Mul.make_args(difference) if factor.is_Add]
    names = sorted({str(symbol) for factor in factors for symbol in factor.free_symbols})
    if len(names) != 1:
        listed = ", ".join(names) or "no size"
        raise CostError(
            f"`{of}`: {listed} decides which costs more; name one, compare(other, size)"
        )
    return names[0]


def _positive_roots(difference: sympy.Expr, size: sympy.Symbol, of: str) -> list[Any]:
    """Return the roots: numbers where no other size is left, else expressions in the others."""
    coefficients = sympy.Poly(difference, size).all_coeffs()
    while coefficients[-1] == 0:  # a size is never 0
        coefficients.pop()
    reduced = [sympy.cancel(c / coefficients[0]) for c in coefficients]
    polynomial = sympy.Poly(reduced, size)
    if all(c.is_number for c in reduced):
        numbers: dict[Any, None] = (
            dict.fromkeys(polynomial.real_roots()) if polynomial.degree() else {}
        )
        return [_shown(root) for root in numbers if root.is_positive]
    if polynomial.degree() > 2:
        raise CostError(
            f"`{of}` has powers of `{size}` up to {polynomial.degree()} beside other sizes, and is "
            "not solved for it; put the others in, as in compare(other, size, batch=8)"
        )
    solutions: dict[Any, int] = sympy.roots(polynomial)
    return [r for r in solutions if r.is_real is not False and r.is_positive is not False]


def _shown(root: sympy.Expr) -> sympy.Expr:
    """Return a root in closed form where there is one, else as a decimal number."""
    return root.evalf() if root.has(sympy.CRootOf) else root


def _numeric(value: sympy.Expr) -> tuple[int, float, str]:
    if value.is_number:
        return 0, float(value), ""
    return 1, 0.0, str(value)
