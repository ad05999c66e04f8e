"""The range in which a formula holds: conditions on the sizes, as a person writes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import sympy
from sympy.core.relational import Relational

# Sizes at which a condition that does not repeat is tried, such as one on a square root.
TRIED = np.unique([*range(1, 1 << 14), *(int(2 ** (n / 8)) for n in range(112, 321))])
CONSTANTS = 1000  # a number in such a condition is at most this, and what it decides is seen there
GRID = (*range(2, 18), 31, 32, 64, 100, 128, 1000, 1024, 4099, 10**6)  # for several sizes
MOST = 1 << 40  # a condition that holds for all sizes up to here is dropped
EVERY = 1 << 21  # at most so many sizes are tried one by one
FAR = 5000  # sizes that break a condition are looked for up to here
FEW = 10  # so many are tried near, and so many far away
ROUNDING = 1e-7  # less than two quotients of whole numbers up to EVERY can differ


@dataclass(frozen=True)
class Validity:
    """Conditions that must all hold; `holds(seq=100)` evaluates them."""

    conditions: tuple[sympy.Basic, ...] = ()

    @staticmethod
    def of(guards: Sequence[Any], hints: Mapping[str, int]) -> Validity:
        """Return the conditions among torch's guards of a pass that ran at `hints`."""
        conditions: dict[Any, None] = {}
        for guard in map(_reduced, guards):
            symbols = sorted(guard.free_symbols, key=lambda symbol: symbol.name)
            if not symbols or not hints.keys() >= {symbol.name for symbol in symbols}:
                continue
            alone = len(symbols) == 1
            found = _of_one(guard, symbols[0], hints[symbols[0].name]) if alone else [guard]
            conditions.update(dict.fromkeys(found))
        simple = [c for c in conditions if _is_bound(c) or _is_multiple(c)]
        for guard in [condition for condition in conditions if condition not in simple]:
            if _follows_from(simple, guard):
                del conditions[guard]
        return Validity(tuple(_strongest(list(conditions))))

    @staticmethod
    def least(sizes: Mapping[str, int]) -> Validity:
        """Return the condition that no size is below these."""
        return Validity(tuple(sympy.Symbol(name) >= size for name, size in sizes.items()))

    @staticmethod
    def most(sizes: Mapping[str, Any]) -> Validity:
        """Return the condition that no size is above these."""
        return Validity(tuple(sympy.Symbol(name) <= size for name, size in sizes.items()))

    @staticmethod
    def multiples(steps: Mapping[str, int]) -> Validity:
        """Return the condition that the sizes are multiples of these numbers."""
        return Validity(tuple(sympy.Eq(sympy.Symbol(n) % step, 0) for n, step in steps.items()))

    def also(self, other: Validity) -> Validity:
        """Return the conditions of both."""
        return Validity(tuple(_strongest([*self.conditions, *other.conditions])))

    def upper_bounds(self) -> dict[str, int]:
        """Return the upper bound of every size that has one."""
        bounds: list[Any] = [c for c in self.conditions if _is_upper(c)]
        return {str(bound.lhs): int(bound.rhs) for bound in bounds}

    def lower_bound(self, name: str) -> int:
        """Return the least value that a size may have."""
        bounds: list[Any] = [c for c in self.conditions if isinstance(c, sympy.Ge) and _is_bound(c)]
        return max((int(bound.rhs) for bound in bounds if str(bound.lhs) == name), default=1)

    def unbounded(self) -> tuple[sympy.Basic, ...]:
        """Return the conditions that are no bounds, such as `t % 128 != 0`."""
        return tuple(c for c in self.conditions if not _is_bound(c))

    def without(self, *conditions: sympy.Basic) -> Validity:
        """Return the others of the conditions."""
        return Validity(tuple(c for c in self.conditions if c not in conditions))

    def breaking(self, condition: Any, hints: Mapping[str, int]) -> list[dict[str, int]]:
        """Return sizes that break one condition and no other: small ones, and a large one."""
        names = sorted(condition.free_symbols, key=lambda symbol: symbol.name)
        grid = _grid(condition, names) if len(names) > 1 else np.arange(2, FAR)[:, None]
        grid = grid[(grid < FAR).all(axis=1)]
        bad = sorted(grid[~_true_at(condition, names, grid)].tolist(), key=math.prod)
        points = [{**hints, **dict(zip(map(str, names), row, strict=True))} for row in bad]
        rest = self.without(condition)
        near = [p for p in points[:FEW] if not rest.broken(p)]
        far = [p for p in points[-FEW:] if not rest.broken(p)]
        return [*near[:2], *far[-1:]]

    def broken(self, sizes: Mapping[str, Any]) -> list[sympy.Basic]:
        """Return the conditions that do not hold at these sizes."""
        values: Any = {sympy.Symbol(name): size for name, size in sizes.items()}
        return [c for c in self.conditions if _truth(c, values) == sympy.false]

    def holds(self, **sizes: int) -> bool:
        """Return whether every condition holds at these sizes."""
        return not self.broken(sizes)

    def __str__(self) -> str:
        return ", ".join(written(condition) for condition in self.conditions) or "every size"


def written(condition: Any) -> str:
    """Return a condition as Python writes it, such as `t % 128 != 0`."""
    signs = {sympy.Eq: "==", sympy.Ne: "!="}
    if type(condition) not in signs:
        return str(condition)
    left, right = (
        " % ".join(map(_operand, side.args)) if isinstance(side, sympy.Mod) else str(side)
        for side in condition.args
    )
    return f"{left} {signs[type(condition)]} {right}"


def _operand(side: Any) -> str:
    return str(side) if side.is_Symbol or side.is_Integer else f"({side})"


def _truth(condition: Any, sizes: Mapping[Any, Any]) -> Any:
    """Return whether a condition holds; one that divides by 0 does not."""
    try:
        if isinstance(condition, Relational):
            sides = [sympy.sympify(side).subs(sizes) for side in condition.args]
            if any(side.has(sympy.zoo, sympy.nan) for side in sides):
                return sympy.false
        return condition.subs(sizes)
    except (TypeError, ValueError):
        return sympy.false


def _of_one(guard: Any, symbol: sympy.Symbol, hint: int) -> list[Any]:
    """Return a guard on one size as bounds where it holds between two sizes, else as it is."""
    if _truth(guard, {symbol: hint}) != sympy.true:
        return []
    turns = _turns(guard, symbol)
    if turns is not None:
        sizes = np.array(turns)
        true = np.array([_truth(guard, {symbol: size}) == sympy.true for size in turns])
    else:
        most = max(_period(guard), 2 * hint)
        each = most <= EVERY and _repeats(guard)
        if not each and _largest(guard) > CONSTANTS:
            return [guard]
        sizes = np.arange(1, most + 1) if each else TRIED
        true = _true_at(guard, [symbol], sizes[:, None])
    if not true.any():
        return [guard]
    first, last = np.flatnonzero(true)[[0, -1]]
    low, high = int(sizes[first]), int(sizes[last])
    if not true[first : last + 1].all():
        ends = int(sizes[np.flatnonzero(~true)[-1]])  # all that is false lies up to here
        if turns is None and ends < hint:
            return [symbol >= ends + 1]
        step = int(sizes[np.flatnonzero(true)[1]]) - low
        multiples = turns is None and np.array_equal(true, sizes % step == low % step)
        return [sympy.Eq(symbol % step, low % step)] if multiples else [guard]
    if low == high:
        return [sympy.Eq(symbol, hint)]
    bounds: list[Any] = [symbol >= low] if low > 1 else []
    return [*bounds, symbol <= high] if last < len(sizes) - 1 else bounds


def _reduced(guard: Any) -> Any:
    """Return a relation without the positive factors that all of its terms share."""
    if not isinstance(guard, Relational):
        return guard
    left: Any = guard.lhs
    factors = sympy.Mul.make_args(sympy.factor_terms(left - guard.rhs))
    kept = [f for f in factors if not f.is_Symbol and not (f.is_Rational and f.is_positive)]
    if len(kept) == len(factors):
        return guard
    number, rest = sympy.Mul(*kept).as_coeff_Add()
    return guard.func(rest, -number)


def _turns(guard: Any, symbol: sympy.Symbol) -> list[int] | None:
    """Return the sizes at which a relation of polynomials may turn, None for other guards."""
    if not isinstance(guard, Relational):
        return None
    left: Any = guard.lhs
    gap = left - guard.rhs
    if not gap.is_polynomial(symbol):
        return None
    roots = map(sympy.floor, sympy.Poly(gap, symbol).real_roots())
    near = {int(root) + step for root in roots for step in (-1, 0, 1, 2)}
    return sorted({1, 2, MOST} | {size for size in near if 1 <= size < MOST})


def _repeats(guard: Any) -> bool:
    """Return whether a guard consists of floors and remainders of fractions, which repeat."""
    whole = guard.atoms(sympy.Function) == guard.atoms(sympy.floor, sympy.ceiling, sympy.Mod)
    powers = all(power.exp.is_Integer for power in guard.atoms(sympy.Pow))
    return whole and powers and not guard.atoms(sympy.Float)


def _largest(guard: Any) -> int:
    return max((abs(int(n)) for n in guard.atoms(sympy.Integer)), default=0)


def _period(guard: Any) -> int:
    """Return a size beyond which a guard with floors and remainders repeats itself."""
    numbers = [number for number in guard.atoms(sympy.Rational) if number != 0]
    steps = [int(n.q) for n in numbers]
    steps += [int(m.args[1]) for m in guard.atoms(sympy.Mod) if m.args[1].is_Integer]
    most = max((abs(int(n.p)) for n in numbers), default=1)
    return (most + 2) * math.lcm(*steps) ** max(1, _depth(guard))


def _depth(expression: Any) -> int:
    """Return how many floors and remainders are within each other."""
    inner = max(map(_depth, expression.args), default=0)
    return inner + isinstance(expression, sympy.floor | sympy.ceiling | sympy.Mod)


def _follows_from(others: Sequence[Any], guard: Any) -> bool:
    """Return whether a condition holds at all sizes that are tried and meet the others."""
    names = sorted(guard.free_symbols, key=lambda symbol: symbol.name)
    if len(names) == 1 and _largest(guard) > CONSTANTS:
        return False
    grid = _grid(guard, names) if len(names) > 1 else TRIED[:, None]
    for other in (other for other in others if other.free_symbols <= {*names}):
        grid = grid[_true_at(other, names, grid)]
    return bool(len(grid)) and bool(_true_at(guard, names, grid).all())


def _grid(guard: Any, names: Sequence[sympy.Symbol]) -> np.ndarray:
    """Return choices of several sizes: small, large, and around the numbers in a guard."""
    own = {int(n) + step for n in guard.atoms(sympy.Integer) for step in (-1, 0, 1)}
    values = sorted({*GRID, *(n for n in own if 1 < n < MOST)})
    values = values if len(names) < 4 else values[::6]
    return np.array(list(itertools.product(values, repeat=len(names))))


def _true_at(guard: Any, names: Sequence[sympy.Symbol], sizes: np.ndarray) -> np.ndarray:
    """Return for each row of sizes whether a guard holds there."""
    exact = {
        "floor": lambda value: np.floor(value + ROUNDING),
        "ceiling": lambda value: np.ceil(value - ROUNDING),
        "Rounded": np.round,
        "larger": np.maximum,
    }
    guard = guard.replace(sympy.Max, lambda *sides: reduce(sympy.Function("larger"), sides))
    try:
        with np.errstate(all="ignore"):
            true = sympy.lambdify(names, guard, [exact, "numpy"])(*sizes.T.astype(float))
    except Exception:  # NumPy lacks a function of it, so no choice is known to satisfy it
        true = False
    return np.broadcast_to(true, len(sizes)).astype(bool)


def _is_bound(condition: Any) -> bool:
    bound = isinstance(condition, sympy.Ge | sympy.Le) and condition.rhs.is_Integer
    return bound and condition.lhs.is_Symbol


def _is_multiple(condition: Any) -> bool:
    left = condition.lhs if isinstance(condition, sympy.Eq) else None
    return isinstance(left, sympy.Mod) and left.args[0].is_Symbol and condition.rhs.is_Integer


def _is_upper(condition: Any) -> bool:
    return isinstance(condition, sympy.Le) and _is_bound(condition)


def _strongest(conditions: list[Any]) -> list[Any]:
    """Return the conditions with only the tightest bounds of each size."""
    kept: dict[Any, Any] = {}
    for condition in conditions:
        bound = isinstance(condition, sympy.Ge | sympy.Le) and condition.rhs.is_Integer
        key = (type(condition), condition.lhs) if bound else condition
        if key not in kept or not bound:
            kept[key] = condition
        elif isinstance(condition, sympy.Ge):
            kept[key] = max(kept[key], condition, key=lambda c: int(c.rhs))
        else:
            kept[key] = min(kept[key], condition, key=lambda c: int(c.rhs))
    return list(kept.values())
