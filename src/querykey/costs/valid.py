"""Where a formula holds: conditions on the sizes, as a person would write them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

SMALL = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 64, 100, 1000, 4099, 10**6)
MOST = 1 << 40  # a condition that holds up to here is none


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
                for condition in _range(guard, names[0], hints[names[0].name]):
                    found[condition] = None
            elif not _always(guard, names):
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

    def without_upper(self, name: str) -> Valid:
        """The same without the upper bound of one size."""
        kept = (c for c in self.conditions if not (_is_upper(c) and str(c.args[0]) == name))
        return Valid(tuple(kept))

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
    if isinstance(condition, sympy.Eq) and isinstance(condition.lhs, sympy.Mod):
        size, step = condition.lhs.args
        return f"{size} % {step} == {condition.rhs}"
    return str(condition)


def _truth(condition: Any, sizes: Mapping[Any, Any]) -> Any:
    try:
        return condition.subs(sizes)
    except (TypeError, ValueError):  # a division by 0 in it
        return sympy.false


def _range(guard: Any, symbol: sympy.Symbol, hint: int) -> list[Any]:
    """A condition on one size as bounds around the size at which it was met."""

    def true(size: int) -> bool:
        return _truth(guard, {symbol: size}) == sympy.true

    tried = [size for size in SMALL if size != hint]
    if not true(hint) or all(true(size) for size in tried if size > 1):
        return [] if true(1) or not true(hint) else [symbol >= 2]
    low = next((s + 1 for s in range(hint - 1, max(0, hint - 600), -1) if not true(s)), 1)
    high = _last_true(true, hint)
    if high == hint and low == hint:
        return [guard if any(map(true, tried)) else sympy.Eq(symbol, hint)]
    bounds: list[Any] = [symbol >= low] if low > 1 else []
    return [*bounds, symbol <= high] if high < MOST else bounds


def _last_true(true: Any, start: int) -> int:
    """The last size up to which a condition holds, by doubling and halving."""
    good, step = start, 1
    while good + step < MOST and true(good + step):
        good, step = good + step, step * 2
    if good + step >= MOST:
        return MOST
    bad = good + step
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if true(middle) else (good, middle)
    return good


def _always(guard: Any, names: list[sympy.Symbol]) -> bool:
    """Whether a condition on several sizes holds wherever it is tried."""
    values = SMALL[1:12] if len(names) < 3 else SMALL[1:6]
    points = itertools.product(values, repeat=len(names))
    return all(
        _truth(guard, dict(zip(names, p, strict=True))) == sympy.true
        for p in itertools.islice(points, 400)
    )


def _is_upper(condition: Any) -> bool:
    bound = isinstance(condition, sympy.Le) and condition.rhs.is_Integer
    return bound and condition.lhs.is_Symbol


def _strongest(conditions: list[Any]) -> list[Any]:
    """Keep the tightest lower and upper bound of each size."""
    kept: dict[Any, Any] = {}
    for each in conditions:
        bound = isinstance(each, sympy.Ge | sympy.Le) and each.rhs.is_Integer
        key = (type(each), each.lhs) if bound else each
        if key not in kept:
            kept[key] = each
        elif isinstance(each, sympy.Ge):
            kept[key] = max(kept[key], each, key=lambda c: int(c.rhs))
        else:
            kept[key] = min(kept[key], each, key=lambda c: int(c.rhs))
    return list(kept.values())
