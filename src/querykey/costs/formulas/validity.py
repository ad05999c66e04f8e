"""Where a formula holds: conditions on the sizes, as a person would write them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy
from sympy.core.relational import Relational

MIXED = (*range(2, 18), 31, 32, 64, 100, 128, 1000, 1024, 4099, 10**6)  # of several sizes
MOST = 1 << 40  # a condition that holds up to here is none
EVERY = 1 << 21  # up to here, sizes can be tried one by one
FAR = 5000  # where to look for sizes that break a condition
FEW = 10  # so many of them, near and far
ROUNDING = 1e-7  # of a quotient, far below what one of whole numbers up to EVERY can have


@dataclass(frozen=True)
class Valid:
    """Conditions that must all hold; `holds(seq=100)` tries them."""

    conditions: tuple[sympy.Basic, ...] = ()

    @staticmethod
    def of(guards: Sequence[Any], hints: Mapping[str, int]) -> Valid:
        """From what torch concluded while it ran at `hints`."""
        found: dict[sympy.Basic, None] = {}
        for guard in guards:
            names = sorted(guard.free_symbols, key=lambda symbol: symbol.name)
            if not names or not all(symbol.name in hints for symbol in names):
                continue
            if len(names) == 1:
                for condition in _of_one(guard, names[0], hints[names[0].name]):
                    found[condition] = None
            elif not _true_at(guard, names, _mixed(guard, names)).all():
                found[guard] = None
        return Valid(tuple(_strongest(list(found))))

    @staticmethod
    def least(sizes: Mapping[str, int]) -> Valid:
        """From these sizes on."""
        return Valid(tuple(sympy.Symbol(name) >= size for name, size in sizes.items()))

    @staticmethod
    def most(sizes: Mapping[str, Any]) -> Valid:
        """Up to these sizes."""
        return Valid(tuple(sympy.Symbol(name) <= size for name, size in sizes.items()))

    @staticmethod
    def multiples(steps: Mapping[str, int]) -> Valid:
        """Multiples of these numbers."""
        found = (sympy.Eq(sympy.Symbol(name) % step, 0) for name, step in steps.items())
        return Valid(tuple(found))

    def also(self, other: Valid) -> Valid:
        """Both."""
        return Valid(tuple(_strongest([*self.conditions, *other.conditions])))

    def upper_bounds(self) -> dict[str, int]:
        """The sizes that may not be larger than some number."""
        bounds: list[Any] = [c for c in self.conditions if _is_upper(c)]
        return {str(bound.lhs): int(bound.rhs) for bound in bounds}

    def lower_bound(self, name: str) -> int:
        """The least that a size may be."""
        found: list[Any] = [c for c in self.conditions if isinstance(c, sympy.Ge) and _is_bound(c)]
        return max((int(c.rhs) for c in found if str(c.lhs) == name), default=1)

    def unbounded(self) -> tuple[sympy.Basic, ...]:
        """The conditions that are no bounds, such as `t % 128 != 0`."""
        return tuple(c for c in self.conditions if not _is_bound(c))

    def without(self, *conditions: sympy.Basic) -> Valid:
        """The same without some of the conditions."""
        return Valid(tuple(c for c in self.conditions if c not in conditions))

    def breaking(self, condition: Any, hints: Mapping[str, int]) -> list[dict[str, int]]:
        """Sizes that break one condition and no other: small ones, and one far away."""
        names = sorted(condition.free_symbols, key=lambda symbol: symbol.name)
        grid = _mixed(condition, names) if len(names) > 1 else np.arange(2, FAR)[:, None]
        grid = grid[(grid < FAR).all(axis=1)]
        bad = sorted(grid[~_true_at(condition, names, grid)].tolist(), key=math.prod)
        points = [{**hints, **dict(zip(map(str, names), each, strict=True))} for each in bad]
        rest = self.without(condition)
        near = [p for p in points[:FEW] if not rest.broken(p)]
        far = [p for p in points[-FEW:] if not rest.broken(p)]
        return [*near[:2], *far[-1:]]

    def broken(self, sizes: Mapping[str, Any]) -> list[sympy.Basic]:
        """The conditions that do not hold at these sizes."""
        values: Any = {sympy.Symbol(name): size for name, size in sizes.items()}
        return [each for each in self.conditions if _truth(each, values) == sympy.false]

    def holds(self, **sizes: int) -> bool:
        """Whether every condition holds."""
        return not self.broken(sizes)

    def __str__(self) -> str:
        return ", ".join(written(each) for each in self.conditions) or "every size"


def written(condition: Any) -> str:
    """Return a condition as Python has it."""
    signs = {sympy.Eq: "==", sympy.Ne: "!="}
    if type(condition) not in signs:
        return str(condition)
    left, right = (
        f"{side.args[0]} % {side.args[1]}" if isinstance(side, sympy.Mod) else str(side)
        for side in condition.args
    )
    return f"{left} {signs[type(condition)]} {right}"


def _truth(condition: Any, sizes: Mapping[Any, Any]) -> Any:
    try:
        return condition.subs(sizes)
    except (TypeError, ValueError):  # a division by 0 in it
        return sympy.false


def _of_one(guard: Any, symbol: sympy.Symbol, hint: int) -> list[Any]:
    """A condition on one size: as bounds where it holds between two sizes, else as it is."""
    if _truth(guard, {symbol: hint}) != sympy.true:
        return []
    turns = _turns(guard, symbol)
    if turns is not None:
        sizes = np.array(turns)
        true = np.array([_truth(guard, {symbol: size}) == sympy.true for size in turns])
    else:
        sizes = np.arange(1, _period(guard) + 1)
        if len(sizes) > EVERY:
            return [guard]
        true = _true_at(guard, [symbol], sizes[:, None])
    first, last = np.flatnonzero(true)[[0, -1]]
    low, high = int(sizes[first]), int(sizes[last])
    if not true[first : last + 1].all():
        return [guard]
    if low == high:
        return [sympy.Eq(symbol, hint)]
    bounds: list[Any] = [symbol >= low] if low > 1 else []
    return [*bounds, symbol <= high] if last < len(sizes) - 1 else bounds


def _turns(guard: Any, symbol: sympy.Symbol) -> list[int] | None:
    """The sizes at which a relation of polynomials may change, None where it is none."""
    if not isinstance(guard, Relational):
        return None
    left: Any = guard.lhs
    gap = left - guard.rhs
    if not gap.is_polynomial(symbol):
        return None
    roots = map(sympy.floor, sympy.Poly(gap, symbol).real_roots())
    near = {int(root) + step for root in roots for step in (-1, 0, 1, 2)}
    return sorted({1, 2, MOST} | {size for size in near if 1 <= size < MOST})


def _period(guard: Any) -> int:
    """The size from which on a condition with floors and remainders says nothing new."""
    numbers = [each for each in guard.atoms(sympy.Rational) if each != 0]
    steps = [int(n.q) for n in numbers]
    steps += [int(m.args[1]) for m in guard.atoms(sympy.Mod) if m.args[1].is_Integer]
    return (max((abs(int(n.p)) for n in numbers), default=1) + 2) * math.lcm(*steps)


def _mixed(guard: Any, names: Sequence[sympy.Symbol]) -> np.ndarray:
    """Choices of several sizes, near and far, and around the numbers in a condition."""
    own = {int(n) + step for n in guard.atoms(sympy.Integer) for step in (-1, 0, 1)}
    values = sorted({*MIXED, *(n for n in own if 1 < n < MOST)})
    values = values if len(names) < 4 else values[::6]
    return np.array(list(itertools.product(values, repeat=len(names))))


def _true_at(guard: Any, names: Sequence[sympy.Symbol], sizes: np.ndarray) -> np.ndarray:
    """Whether a condition holds at each of many choices of sizes, one per row."""
    exact = {
        "floor": lambda value: np.floor(value + ROUNDING),
        "ceiling": lambda value: np.ceil(value - ROUNDING),
    }
    try:
        with np.errstate(all="ignore"):
            true = sympy.lambdify(names, guard, [exact, "numpy"])(*sizes.T.astype(float))
    except Exception:  # a function that NumPy lacks: by no choice is it known to hold
        true = False
    return np.broadcast_to(true, len(sizes)).astype(bool)


def _is_bound(condition: Any) -> bool:
    bound = isinstance(condition, sympy.Ge | sympy.Le) and condition.rhs.is_Integer
    return bound and condition.lhs.is_Symbol


def _is_upper(condition: Any) -> bool:
    return isinstance(condition, sympy.Le) and _is_bound(condition)


def _strongest(conditions: list[Any]) -> list[Any]:
    """Keep the tightest lower and upper bound of each size."""
    kept: dict[Any, Any] = {}
    for each in conditions:
        bound = isinstance(each, sympy.Ge | sympy.Le) and each.rhs.is_Integer
        key = (type(each), each.lhs) if bound else each
        if key not in kept or not bound:
            kept[key] = each
        elif isinstance(each, sympy.Ge):
            kept[key] = max(kept[key], each, key=lambda c: int(c.rhs))
        else:
            kept[key] = min(kept[key], each, key=lambda c: int(c.rhs))
    return list(kept.values())
