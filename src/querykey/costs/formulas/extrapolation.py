"""How far an interpolated formula holds: a polynomial that fits small sizes may be one piece of
many, so it is counted again at sizes far away, one by one and all together.

Where a count denies it, and where the model no longer runs, the furthest confirmed size ends its
range. Else a note says how far it was seen: where a loop is long, that may not be far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from querykey.costs import private
from querykey.costs.counting.passes import Options
from querykey.costs.formulas.symbolic import Counter, Formulas, difference
from querykey.costs.formulas.validity import Valid
from querykey.costs.inputs import CostError
from querykey.costs.measured_model import FINE, Subject

FAR = (61, 290)  # sizes at which it is tried again
DOWN = 8  # so many sizes below those of the fit
BETWEEN = (1, 2, 8)  # beyond a multiple
ENOUGH = 4000  # operations in one pass, which take some seconds


class Reach:
    """The furthest confirmed size of every name, and which names were denied, and where."""

    def __init__(self, subject: Subject, how: Options, found: Formulas):
        self.subject, self.found = subject, found
        self.furthest = {name: max(subject.values[name]) for name in subject.names}
        self.denied: dict[str, int] = {}
        self._ends: set[str] = set()  # names whose furthest size ends the range
        self._base = subject.base()
        self._counter = Counter(subject, how)
        self._counter(self._base)
        self._calls = self._most = self._counter.last
        self._grows: set[str] = set()  # names of which larger sizes take more operations
        for name in subject.names:
            self._climb(name)
        self._meet()
        for name in subject.names:
            self._descend(name)
            self._between(name)

    @property
    def fits(self) -> bool:
        """Whether nothing denied it that a look elsewhere could mend."""
        near = self.found.runs or self.found.loops  # too slow to look elsewhere for what is far
        return not any(
            name in self.subject.moved and not (near and size > FAR[0])
            for name, size in self.denied.items()
        )

    def tell(self) -> None:
        """Put the bounds into the formula's range, and say how far it was seen."""
        ends = {name: size for name, size in self.furthest.items() if name in self._ends}
        self.found.valid = self.found.valid.also(Valid.most(ends))
        seen = {name: size for name, size in self.furthest.items() if name not in self._ends}
        if seen:
            said = ", ".join(f"{name}={size}" for name, size in seen.items())
            self.found.notes.append(f"confirmed by counting as far as {said}")

    def _climb(self, name: str) -> None:
        """Go further with one size, the others being at their first choice."""
        before = self.furthest[name]
        for size in self._sizes(name):
            point = {**self._base, name: size}
            asked = size == self.subject.near.get(name)
            if name in self._grows and self._work(point) > ENOUGH and not asked:
                return
            holds = self._holds(point)
            if holds is False:
                self.denied[name] = size
            if not holds:
                self._ends.add(name)
                return
            if self._counter.last > self._calls:
                self._grows.add(name)
            self.furthest[name] = max(size, before)

    def _descend(self, name: str) -> None:
        """Say from which size on it holds, where the smallest deny it; 1 is looked at elsewhere."""
        fitted = min(self.subject.values[name])
        least = first = 1 if name in self.subject.hyper else 2
        for size in range(first, min(fitted, first + DOWN)):
            point = {**self._base, name: size}
            holds = None if self.found.valid.broken(point) else self._holds(point)
            if holds:
                break
            if holds is False:
                least = size + 1 if size + 1 < first + DOWN else fitted
        if least > first:
            self.found.valid = self.found.valid.also(Valid.least({name: least}))

    def _between(self, name: str) -> None:
        """Where a builder was given multiples only, count between them, or claim no more."""
        unit = math.gcd(*self.subject.values[name])
        if name not in self.subject.hyper or name in self.subject.listed or unit == 1:
            return
        first = {n: values[0] for n, values in self.subject.values.items()}
        points = [{**first, name: first[name] + step} for step in BETWEEN if step % unit]
        seen = {self._holds(point) for point in points}
        if False in seen or True not in seen:
            self.found.valid = self.found.valid.also(Valid.multiples({name: unit}))

    def _meet(self) -> None:
        """All sizes far at once, or less far, or as far as the fit itself went."""
        fitted = {name: max(values) for name, values in self.subject.values.items()}
        for most in reversed(FAR):
            point = {
                n: max(min(s, self._sized(n, most)), fitted[n]) for n, s in self.furthest.items()
            }
            if point == fitted:
                break
            if self._work(point) > max(ENOUGH, self._most):
                continue
            holds = self._holds(point)
            if holds:
                self.furthest = point
                return
            if holds is False:  # a branch on several sizes at once
                self._ends |= {name for name, size in point.items() if size > fitted[name]}
        self.furthest = fitted

    def _holds(self, point: Mapping[str, int]) -> bool | None:
        """Whether the counts at a point are the formula's; None where the model does not run."""
        try:
            counts = self._counter(point)
        except CostError:  # too long for the model
            return None
        self._most = max(self._most, self._counter.last)
        return not difference(self.found, counts, point)

    def _work(self, point: Mapping[str, int]) -> float:
        """About how many operations a pass takes at a point."""
        return self._calls * math.prod(point[n] / self._base[n] for n in self._grows)

    def _sizes(self, name: str) -> list[int]:
        """Where to look, from near to far; nowhere where the user listed all sizes there are."""
        subject = self.subject
        if name in subject.listed:
            self._ends.add(name)
            return []
        built = name in subject.hyper
        # What really runs, or has memory, has its limits.
        far = FAR[:1] if self.found.runs or private.symbolic_shapes() is None else FAR
        beyond = 2 * max(subject.values[name]) + 1
        if beyond > far[-1] and not built:  # where the fit was itself far
            far = (*far, beyond)
        sizes = {self._sized(name, size) for size in far}
        if built:  # the nearest that others divide, and what was asked for
            sizes |= {self._sized(name, 0), self._base[name]}
        least = max(self._base[name], max(subject.values[name]) + 1)
        return sorted(size for size in sizes if size >= least)

    def _sized(self, name: str, size: int) -> int:
        """A size the model may take: a multiple of what all sizes of the fit are multiples of."""
        values = self.subject.values[name]
        unit = math.lcm(*FINE) if values == list(FINE) else math.gcd(*values)
        return max(size // unit, 1) * unit
