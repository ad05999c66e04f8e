"""Where two costs cross as one size grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy

from querykey.costs.inputs import CostError


@dataclass(frozen=True)
class Comparison:
    """`first` minus `second`, and the sizes at which it changes its sign."""

    of: str
    size: str
    difference: sympy.Expr
    crossings: tuple[sympy.Expr, ...]

    def __str__(self) -> str:
        if self.difference == 0:
            return f"{self.of}: both cost the same at every size"
        if not self.crossings:
            return f"{self.of}: they do not cross; the first costs {self.difference} more"
        at = ", ".join(f"{self.size} = {each}" for each in self.crossings)
        return f"{self.of}: they cost the same at {at}; the first costs {self.difference} more"


def crossings(first: Any, second: Any, size: str, of: str) -> Comparison:
    """Solve first = second for one size, as positive numbers or as expressions in the others."""
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
    found = _positive_roots(solved, positive, of) if solved.has(positive) else []
    shown = sorted((sympy.simplify(r).xreplace(back) for r in found), key=_numeric)
    return Comparison(of, size, difference, tuple(shown))


def _positive_roots(difference: sympy.Expr, size: sympy.Symbol, of: str) -> list[Any]:
    """Where it is 0: as numbers where only numbers are left, else in the other sizes."""
    coefficients = sympy.Poly(difference, size).all_coeffs()
    while coefficients[-1] == 0:  # 0 itself is no size
        coefficients.pop()
    reduced = [sympy.cancel(each / coefficients[0]) for each in coefficients]
    whole = sympy.Poly(reduced, size)
    if all(each.is_number for each in reduced):
        roots: dict[Any, None] = dict.fromkeys(whole.real_roots()) if whole.degree() else {}
        return [_shown(root) for root in roots if root.is_positive]
    if whole.degree() > 2:
        raise CostError(
            f"`{of}` has powers of `{size}` up to {whole.degree()} beside other sizes, and is not "
            "solved for it; put the others in, as in compare(other, size, batch=8)"
        )
    found: dict[Any, int] = sympy.roots(whole)
    return [r for r in found if r.is_real is not False and r.is_positive is not False]


def _shown(root: sympy.Expr) -> sympy.Expr:
    """A root as it is where it can be written, else as a decimal number."""
    return root.evalf() if root.has(sympy.CRootOf) else root


def _numeric(value: sympy.Expr) -> tuple[int, float, str]:
    if value.is_number:
        return 0, float(value), ""
    return 1, 0.0, str(value)
