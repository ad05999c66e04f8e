"""Sizes put into the formulas of a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import sympy

from querykey.costs.formulas.formula_set import listed
from querykey.costs.inputs import CostError
from querykey.costs.timing.bytes_moved import BytesMoved
from querykey.costs.values import Flops, ModuleCost, NotComputed


class Substitution:
    """Puts sizes into formulas; equal formulas, as equal layers have them, are computed once."""

    def __init__(self, sizes: Mapping[Any, Any]):
        self.sizes = sizes
        self.values: dict[Any, Any] = {}

    def into(self, cost: ModuleCost) -> ModuleCost:
        """Return the cost of a module with the sizes put in."""
        flops = Flops(*(self.value(getattr(cost.flops, f.name)) for f in fields(Flops)))
        return ModuleCost(flops, self.value(cost.params), self.value(cost.saved_bytes), cost.kind)

    def value(self, formula: Any) -> Any:
        """Return a formula with the sizes put in, as an int where no size is left free."""
        if formula not in self.values:
            value = sympy.sympify(formula).subs(self.sizes)
            if value.is_Rational and not value.is_Integer:
                at = listed({str(symbol): size for symbol, size in self.sizes.items()})
                raise CostError(f"{at} is no size of this model: its cost would be {value}")
            self.values[formula] = int(value) if value.is_Integer else value
        return self.values[formula]


def moved_by(traffic: BytesMoved | None, path: str, sizes: Mapping[str, int]) -> Callable[[], Any]:
    """Return a function that returns the bytes one module moves at some sizes, if any."""

    def value() -> Any:
        if traffic is None:
            return NotComputed("the bytes moved are not known here")
        try:
            return traffic.value(path, sizes)
        except CostError as error:
            return NotComputed(str(error))

    return value
