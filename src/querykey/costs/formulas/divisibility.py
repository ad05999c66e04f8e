"""What must divide what among the sizes of a builder, found by counts where it does not.

One size after the other is multiplied by a prime. Where the formula then fails, the size divides
another one, which must be multiplied too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy

PRIMES = (5, 7, 11, 13, 17, 19)
ROUGH = 30  # a number that shares no factor with it has only large primes


@dataclass(frozen=True)
class Divisions:
    """For every size: of how many times which others it is a multiple."""

    names: tuple[str, ...]
    times: Mapping[str, int]
    divisors: Mapping[str, tuple[str, ...]]
    above: Mapping[str, Collection[str]]  # what must grow with a size, the size itself included

    @property
    def conditions(self) -> list[Any]:
        """Return the conditions as sympy's relations."""
        terms: list[Any] = []
        for name in self.names:
            symbol, times = sympy.Symbol(name), self.times[name]
            for divisor in self.divisors[name]:
                terms.append(sympy.Eq(symbol % (times * sympy.Symbol(divisor)), 0))
            if not self.divisors[name] and times > 1:
                terms.append(sympy.Eq(symbol % times, 0))
        return terms

    def unit(self, name: str, sizes: Mapping[str, int]) -> int:
        """Return the number of which a size is a multiple, the others being `sizes`."""
        return self.times[name] * math.lcm(*(sizes[d] for d in self.divisors[name]))

    def grown(self, name: str, base: Mapping[str, int], size: int) -> dict[str, int]:
        """Return the sizes at which one is larger, and what must grow with it in proportion."""
        whole = all(base[n] * size % base[name] == 0 for n in self.above[name])
        factor, divisor = (size, base[name]) if whole else (size, 1)
        sizes = {n: s * factor // divisor if n in self.above[name] else s for n, s in base.items()}
        return {**sizes, name: size}

    def sizes(self, times: Callable[[str, int], int]) -> dict[str, int]:
        """Return sizes that meet all conditions: each the unit by `times(name, unit)`."""
        sizes: dict[str, int] = {}
        while len(sizes) < len(self.names):
            for name in self.names:
                if name not in sizes and all(d in sizes for d in self.divisors[name]):
                    unit = self.unit(name, sizes)
                    sizes[name] = unit * times(name, unit)
        return sizes

    def smallest(self, least: Mapping[str, int]) -> dict[str, int]:
        """Return the smallest sizes that meet all conditions."""
        return self.sizes(lambda name, unit: -(-least[name] // unit))


def find_divisions(
    base: Mapping[str, int], names: Sequence[str], holds: Callable[[Mapping[str, int]], bool]
) -> Divisions:
    """Return what divides what among `names`; the formula holds at `base`, and `holds` counts."""
    prime = next((p for p in PRIMES if all(base[n] % p for n in names)), PRIMES[-1])
    above = {name: _above(name, base, names, prime, holds) for name in names}
    below = {x: {y for y in names if y != x and x in above[y]} for x in names}
    # Of two that seem to divide each other, the smaller one does.
    below = {
        x: {y for y in ys if x not in below[y] or base[y] < base[x]} for x, ys in below.items()
    }
    divisors = {
        x: tuple(y for y in names if y in ys and not any(y in below[z] for z in ys if z != y))
        for x, ys in below.items()
    }
    divisions = Divisions(tuple(names), dict.fromkeys(names, 1), divisors, above)
    return replace(divisions, times={name: _times(name, base, divisions, holds) for name in names})


def _times(
    name: str,
    base: Mapping[str, int],
    divisions: Divisions,
    holds: Callable[[Mapping[str, int]], bool],
) -> int:
    """Return the least number of times its divisors at which a size is right."""
    unit = divisions.unit(name, base)
    for times in range(1, base[name] // unit + 1):
        if base[name] % (unit * times) == 0:
            size = _rough(unit * times, base[name])
            if holds(divisions.grown(name, base, size)):
                return times
    return base[name] // unit


def _above(
    name: str,
    base: Mapping[str, int],
    names: Sequence[str],
    prime: int,
    holds: Callable[[Mapping[str, int]], bool],
) -> set[str]:
    """Return the sizes that must be multiplied where `name` is."""
    scaled = {name}
    if holds({**base, name: base[name] * prime}):
        return scaled
    scaled = set(names)
    for other in names:
        less = scaled - {other}
        if other != name and holds({n: s * prime if n in less else s for n, s in base.items()}):
            scaled = less
    return scaled


def _rough(unit: int, least: int) -> int:
    """Return a multiple of `unit`, of at least `least`, that small primes divide no further."""
    times = -(-least // unit)
    while math.gcd(times, ROUGH) > 1:
        times += 1
    return unit * times
