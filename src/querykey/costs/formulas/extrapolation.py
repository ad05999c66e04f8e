"""How far an interpolated formula holds.

A polynomial that fits small sizes may be one piece of several, so the model is counted again at
sizes far away, one size at a time and all together. Where a count differs from the formula, or the
model no longer runs, the furthest size that agreed ends the range. Otherwise a note says how far
the formula was confirmed, which is not far where a loop over tokens is long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from querykey.costs.counting.passes import PassOptions
from querykey.costs.formulas.concrete import ConcreteCounter
from querykey.costs.formulas.formula_set import FormulaSet, listed
from querykey.costs.formulas.validity import Validity
from querykey.costs.inputs import CostError
from querykey.costs.measured_model import FINE, MeasuredModel
from querykey.costs.private import symbolic_shapes

FAR = (61, 290)  # sizes at which the formula is tried again
DOWN = 8  # so many sizes below those of the fit are tried
BETWEEN = (1, 2, 8)  # these distances from a multiple are tried
ENOUGH = 4000  # operations in one pass, which take some seconds


class Extrapolation:
    """The furthest size of every name at which counts agree, and the sizes that differed."""

    def __init__(self, measured: MeasuredModel, options: PassOptions, formulas: FormulaSet):
        self.measured, self.formulas = measured, formulas
        self.furthest = {name: max(measured.values[name]) for name in measured.names}
        self.differing: dict[str, int] = {}
        self._ends: set[str] = set()  # names whose furthest size ends the range
        self._base = measured.base()
        self._counter = ConcreteCounter(measured, options)
        self._counter(self._base)
        self._operations = self._most = self._counter.last
        self._grows: set[str] = set()  # names of which larger sizes take more operations
        for name in measured.names:
            self._climb(name)
        self._climb_together()
        for name in measured.names:
            self._descend(name)
            self._try_between(name)

    @property
    def fits(self) -> bool:
        """Return whether no size differed that a fit at other sizes could explain."""
        how = self.formulas.derivation
        slow = how.ran or how.loops  # fits far away would take too long
        return not any(
            name in self.measured.moved and not (slow and size > FAR[0])
            for name, size in self.differing.items()
        )

    def note(self) -> None:
        """Put the bounds into the formula's range, and note how far it was confirmed."""
        ends = {name: size for name, size in self.furthest.items() if name in self._ends}
        self.formulas.valid = self.formulas.valid.also(Validity.most(ends))
        seen = {name: size for name, size in self.furthest.items() if name not in self._ends}
        if seen:
            self.formulas.notes.append(f"confirmed by counting as far as {listed(seen)}")

    def _climb(self, name: str) -> None:
        """Try larger values of one size, the others at their first choice."""
        before = self.furthest[name]
        for size in self._sizes(name):
            point = {**self._base, name: size}
            is_near = size == self.measured.near.get(name)
            if name in self._grows and self._work(point) > ENOUGH and not is_near:
                return
            holds = self._holds(point)
            if holds is False:
                self.differing[name] = size
            if not holds:
                self._ends.add(name)
                return
            if self._counter.last > self._operations:
                self._grows.add(name)
            self.furthest[name] = max(size, before)

    def _descend(self, name: str) -> None:
        """Find the smallest size at which the formula holds; 1 is tried elsewhere."""
        fitted = min(self.measured.values[name])
        least = first = 1 if name in self.measured.hyper else 2
        for size in range(first, min(fitted, first + DOWN)):
            point = {**self._base, name: size}
            holds = None if self.formulas.valid.broken(point) else self._holds(point)
            if holds:
                break
            if holds is False:
                least = size + 1 if size + 1 < first + DOWN else fitted
        if least > first:
            self.formulas.valid = self.formulas.valid.also(Validity.least({name: least}))

    def _try_between(self, name: str) -> None:
        """Count between the multiples that a builder was given, or limit the range to these."""
        unit = math.gcd(*self.measured.values[name])
        if name not in self.measured.hyper or name in self.measured.listed or unit == 1:
            return
        first = {n: values[0] for n, values in self.measured.values.items()}
        points = [{**first, name: first[name] + step} for step in BETWEEN if step % unit]
        results = {self._holds(point) for point in points}
        if False in results or True not in results:
            self.formulas.valid = self.formulas.valid.also(Validity.multiples({name: unit}))

    def _climb_together(self) -> None:
        """Try all sizes far away at once, then less far; else only the fit's sizes count."""
        fitted = {name: max(values) for name, values in self.measured.values.items()}
        for most in reversed(FAR):
            point = {
                n: max(min(s, self._fitting(n, most)), fitted[n]) for n, s in self.furthest.items()
            }
            if point == fitted:
                break
            if self._work(point) > max(ENOUGH, self._most):
                continue
            holds = self._holds(point)
            if holds:
                self.furthest = point
                return
            if holds is False:  # the model branches on several sizes at once
                self._ends |= {name for name, size in point.items() if size > fitted[name]}
        self.furthest = fitted

    def _holds(self, point: Mapping[str, int]) -> bool | None:
        """Return whether the counts at a point equal the formula; None if the model cannot run."""
        try:
            counts = self._counter(point)
        except CostError:  # the size is too large for the model
            return None
        self._most = max(self._most, self._counter.last)
        return not self.formulas.difference(counts, point)

    def _work(self, point: Mapping[str, int]) -> float:
        """Return about how many operations a pass takes at a point."""
        return self._operations * math.prod(point[n] / self._base[n] for n in self._grows)

    def _sizes(self, name: str) -> list[int]:
        """Return the values to try, in rising order; none where the user listed all values."""
        measured = self.measured
        if name in measured.listed:
            self._ends.add(name)
            return []
        built = name in measured.hyper
        # Sizes stay small where the model runs on values, or its tensors need memory.
        far = FAR[:1] if self.formulas.derivation.ran or symbolic_shapes() is None else FAR
        beyond = 2 * max(measured.values[name]) + 1
        if beyond > far[-1] and not built:  # the fit itself was far away
            far = (*far, beyond)
        sizes = {self._fitting(name, size) for size in far}
        if built:  # the smallest that others divide, and the one that was asked for
            sizes |= {self._fitting(name, 0), self._base[name]}
        least = max(self._base[name], max(measured.values[name]) + 1)
        return sorted(size for size in sizes if size >= least)

    def _fitting(self, name: str, size: int) -> int:
        """Return a value near `size` that is a multiple of what all values of the fit share."""
        values = self.measured.values[name]
        unit = math.lcm(*FINE) if values == list(FINE) else math.gcd(*values)
        return max(size // unit, 1) * unit
