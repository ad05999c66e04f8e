"""What a cost is spent on: each module's own share, at sizes or as one size grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from querykey.costs.inputs import CostError
from querykey.costs.sums import as_sum, expression


@dataclass(frozen=True)
class Share:
    """The share of one module, without its children; equal ones of numbered modules together."""

    module: str
    share: Any  # a Fraction-like number from 0 to 1, or a formula in the other sizes

    def __str__(self) -> str:
        share = f"{float(self.share):.1%}" if self.share.is_number else str(self.share)
        return f"{self.module or '(the model itself)'}: {share}"


def shares(costs: Mapping[str, Any], growing: str | None = None) -> tuple[Share, ...]:
    """Return the shares of the total, the largest first; the limit of each as one size grows."""
    own = {name: sympy.sympify(cost) for name, cost in _own(costs).items()}
    if growing is not None:
        own = _leading(own, sympy.Symbol(growing))
    total = sympy.Add(*own.values())
    if total == 0:
        raise CostError("this cost is 0, so nothing is spent on it")
    parts = [Share(name, sympy.cancel(cost / total)) for name, cost in own.items() if cost != 0]
    return tuple(sorted(parts, key=lambda part: (-_rough(part.share), part.module)))


def _own(costs: Mapping[str, Any]) -> dict[str, Any]:
    """Return every module's cost without its children's, numbered siblings summed under `*`."""
    own: dict[str, Any] = dict(costs)
    for path, cost in costs.items():
        if path:
            parent = path.rpartition(".")[0]
            while parent and parent not in costs:
                parent = parent.rpartition(".")[0]
            own[parent] = own[parent] - cost
    folded: dict[str, Any] = {}
    for path, cost in own.items():
        name = ".".join("*" if part.isdigit() else part for part in path.split("."))
        folded[name] = folded.get(name, 0) + cost
    return {name: expression(as_sum(sympy.sympify(cost))) for name, cost in folded.items()}


def _leading(own: Mapping[str, sympy.Expr], symbol: sympy.Symbol) -> dict[str, sympy.Expr]:
    """Return the coefficients of the highest power of one size that any of the costs has."""
    for cost in own.values():
        if not cost.is_polynomial(symbol):
            raise CostError(f"a cost is no polynomial in `{symbol}`, so its growth is not solved")
    polynomials = {name: sympy.Poly(cost, symbol) for name, cost in own.items()}
    degree = max(p.degree() for p in polynomials.values() if not p.is_zero)
    return {name: p.coeff_monomial(symbol**degree) for name, p in polynomials.items()}


def _rough(share: Any) -> float:
    """Return a share as a number, with 1000 for every size that is free."""
    return float(share.subs(dict.fromkeys(share.free_symbols, 1000)))
