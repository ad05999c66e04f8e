"""Exact interpolation: the polynomials in several sizes through counts at some of them.

The sizes are taken one after the other. The monomials of a count in the first sizes say how many
points the next size needs, so few points are evaluated where every count has few monomials. Every
point that the coefficients do not need is held out, and must be predicted exactly.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Point = tuple[int, ...]
Powers = tuple[int, ...]
Values = Mapping[Any, Any]  # by what was counted: an int or a Fraction

PRIME = (1 << 61) - 1
CONFIRMATIONS = 2  # so many further values of one size must be predicted
HELD_OUT = 2  # so many random points, beside the largest, must be predicted


class NotPolynomialError(ValueError):
    """Says in which size the counts are no polynomial, over which values."""

    def __init__(self, name: str, values: Sequence[int], why: str):
        super().__init__(f"{why} in `{name}` over {min(values)} to {max(values)}")
        self.name = name


@dataclass(frozen=True)
class Fit:
    """Coefficients by what was counted and by monomial; and how many points support them."""

    coefficients: dict[Hashable, dict[Powers, Fraction]]
    evaluated: int
    held_out: int


class Fitter:
    """Evaluates points, each once, and finds the polynomials through them.

    Everything that is counted has its own monomials, mostly one or two, and all share the points.
    """

    def __init__(
        self,
        evaluate: Callable[[Mapping[str, int]], Values],
        names: Sequence[str],
        values: Mapping[str, Sequence[int]],
    ):
        self.evaluate, self.names = evaluate, list(names)
        self.values = [list(values[name]) for name in names]
        self.seen: dict[Point, Values] = {}
        self._random = random.Random(0)

    def fit(self) -> Fit:
        """Return the polynomials, or raise where there is none, with the size in question."""
        for start in (0, 2):
            self._supports: dict[Hashable, tuple[Powers, ...]] = {}
            for place in range(len(self.names)):
                self._extend(place)
            fit = self._solve()
            if fit is not None:
                return fit
            # Terms may cancel at the first values: begin once more at others.
            self.values = [[*values[start + 2 :], *values[: start + 2]] for values in self.values]
        raise NotPolynomialError(
            self.names[-1], sorted(self.values[-1]), "held-out counts lie on no polynomial"
        )

    def at(self, point: Point) -> Values:
        """Return the counts at a point, evaluated once."""
        if point not in self.seen:
            self.seen[point] = self.evaluate(dict(zip(self.names, point, strict=True)))
        return self.seen[point]

    def _base(self) -> Point:
        return tuple(values[0] for values in self.values)

    def _keys(self) -> list[Hashable]:
        return list(dict.fromkeys(key for counts in self.seen.values() for key in counts))

    def _support(self, key: Hashable) -> tuple[Powers, ...]:
        """Return the monomials of one count in the sizes so far; at first the constant alone."""
        return self._supports.get(key, (tuple(0 for _ in self.names),))

    def _extend(self, place: int) -> None:
        """Give every count its monomials in the sizes up to `place`."""
        degrees = self._degrees(place)
        rows: dict[tuple[Powers, ...], list[Point]] = {}
        known: dict[Any, tuple[Powers, ...]] = {}  # counts with equal numbers share the work
        for key, (shift, degree) in degrees.items():
            support = self._support(key)
            if degree == shift == 0:
                continue
            if support not in rows:
                rows[support] = self._points(support, place)
            points = rows[support]
            values = self.values[place][: degree + 1]
            grid = [[self.at(_put(p, place, v)).get(key, 0) for p in points] for v in values]
            same = support, shift, tuple(map(tuple, grid))
            if same not in known:
                known[same] = self._extended(support, place, shift, points, grid)
            self._supports[key] = known[same]

    def _extended(
        self,
        support: tuple[Powers, ...],
        place: int,
        shift: int,
        points: list[Point],
        grid: list[list[Any]],
    ) -> tuple[Powers, ...]:
        """Return the monomials of one count, whose numbers are in a row per value of the size."""
        values = self.values[place][: len(grid)]
        matrix = [[_monomial(powers, point) for powers in support] for point in points]
        solved = solve(matrix, [[Fraction(n) for n in row] for row in grid])
        extended = []
        for index, powers in enumerate(support):
            line = [c[index] * Fraction(v) ** shift for c, v in zip(solved, values, strict=True)]
            for power, c in enumerate(_newton(values, line)):
                if c != 0:
                    extended.append(_put(powers, place, power - shift))
        return tuple(extended) or (tuple(0 for _ in self.names),)

    def _degrees(self, place: int) -> dict[Hashable, tuple[int, int]]:
        """Return (shift, degree) by count: value^shift times it has this degree in one size."""
        values, base = self.values[place], self._base()
        self.at(base)
        lines: list[Values] = []
        for value in values:
            lines.append(self.at(_put(base, place, value)))
            known: dict[Any, tuple[int, int] | None] = {}
            degrees: dict[Hashable, tuple[int, int]] = {}
            for key in self._keys():
                line = tuple(counts.get(key, 0) for counts in lines)
                if line not in known:
                    known[line] = _degree(values, line)
                degree = known[line]
                if degree is None:
                    break
                degrees[key] = degree
            else:
                return degrees
        raise NotPolynomialError(self.names[place], values, "the counts are no polynomial")

    def _points(self, support: tuple[Powers, ...], place: int) -> list[Point]:
        """Return points in the sizes before `place` that make the known monomials independent."""
        base, rows, independent = self._base(), [], _Independent()
        grids = [self.values[i] for i in range(place)]
        for head in self._candidates(grids):
            point = (*head, *base[place:])
            if independent.add([_monomial(powers, point) for powers in support]):
                rows.append(point)
            if len(rows) == len(support):
                return rows
        name = self.names[max(place - 1, 0)]
        raise NotPolynomialError(
            name, self.values[max(place - 1, 0)], "too few sizes for the degree"
        )

    def _candidates(self, grids: list[list[int]]) -> list[Point]:
        """Return points to choose from: those already evaluated, then a shuffled grid."""
        base = self._base()[: len(grids)]
        old = sorted((p[: len(grids)] for p in self.seen), key=lambda p: p != base)
        total = list(itertools.islice(itertools.product(*(g[:6] for g in grids)), 4096))
        random.Random(0).shuffle(total)
        return [*dict.fromkeys([*old, *total])]

    def _solve(self) -> Fit | None:
        """Return the coefficients of all counts, or None where a held-out point is missed."""
        self.at(tuple(max(values) for values in self.values))
        if self.names:
            for _ in range(HELD_OUT):
                self.at(tuple(self._random.choice(values[-3:]) for values in self.values))
        points = list(self.seen)
        by_support: dict[tuple[Powers, ...], dict[Any, list[Hashable]]] = {}
        for key in self._keys():
            line = tuple(self.seen[point].get(key, 0) for point in points)
            by_support.setdefault(self._support(key), {}).setdefault(line, []).append(key)
        coefficients: dict[Hashable, dict[Powers, Fraction]] = {}
        for support, lines in by_support.items():
            solved = _through(support, points, list(lines))
            if solved is None:
                return None
            for keys, solution in zip(lines.values(), solved, strict=True):
                terms = {p: c for p, c in zip(support, solution, strict=True) if c != 0}
                coefficients |= dict.fromkeys(keys, terms)
        most = max((len(support) for support in by_support), default=0)
        return Fit(coefficients, len(points), len(points) - most)


def _through(
    support: tuple[Powers, ...], points: list[Point], lines: list[tuple[Any, ...]]
) -> list[list[Fraction]] | None:
    """Return the coefficients through each line of counts, None where one misses a point."""
    rows = [[_monomial(powers, point) for powers in support] for point in points]
    independent, chosen = _Independent(), []
    for index, row in enumerate(rows):
        if len(chosen) < len(support) and independent.add(row):
            chosen.append(index)
    if len(chosen) < len(support):
        return None
    solved = solve(
        [rows[i] for i in chosen], [[Fraction(line[i]) for i in chosen] for line in lines]
    )
    for coefficients, line in zip(solved, lines, strict=True):
        for row, count in zip(rows, line, strict=True):
            if sum(c * m for c, m in zip(coefficients, row, strict=True)) != count:
                return None
    return solved


def _degree(values: Sequence[int], counts: Sequence[Any]) -> tuple[int, int] | None:
    """Return (shift, degree) of the counts at the first values, None where they are too few."""
    for shift in (0, 1):  # 1 for costs that are divided by the size
        line = [Fraction(n) * v**shift for n, v in zip(counts, values, strict=False)]
        differences = _differences(values[: len(line)], line)
        degree = max((i for i, d in enumerate(differences) if d != 0), default=0)
        if len(line) - 1 - degree >= CONFIRMATIONS + shift:
            return shift, degree
    return None


def solve(matrix: list[list[Fraction]], right: list[list[Fraction]]) -> list[list[Fraction]]:
    """Return the exact solutions of a square linear system for several right-hand sides."""
    size = len(matrix)
    rows = [[*row, *(side[i] for side in right)] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(i for i in range(column, size) if rows[i][column] != 0)
        rows[column], rows[pivot] = rows[pivot], rows[column]
        head = rows[column][column]
        rows[column] = [x / head for x in rows[column]]
        for i in range(size):
            if i != column and rows[i][column] != 0:
                factor = rows[i][column]
                rows[i] = [x - factor * y for x, y in zip(rows[i], rows[column], strict=True)]
    return [[rows[i][size + j] for i in range(size)] for j in range(len(right))]


class _Independent:
    """Rows that are linearly independent, added one by one.

    They are reduced modulo a prime: rows that are independent there are so in fractions too.
    """

    def __init__(self):
        self.rows: list[tuple[int, list[int]]] = []  # by the place of a leading 1

    def add(self, row: Sequence[Fraction]) -> bool:
        """Add a row and return True, or return False where it depends on those before."""
        reduced = [x.numerator * pow(x.denominator, -1, PRIME) % PRIME for x in row]
        for place, known in self.rows:
            factor = reduced[place]
            if factor:
                reduced = [(x - factor * y) % PRIME for x, y in zip(reduced, known, strict=True)]
        place = next((i for i, x in enumerate(reduced) if x), None)
        if place is None:
            return False
        inverse = pow(reduced[place], -1, PRIME)
        self.rows.append((place, [x * inverse % PRIME for x in reduced]))
        return True


def _put(point: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*point[:place], value, *point[place + 1 :])


def _monomial(powers: Powers, point: Point) -> Fraction:
    result = Fraction(1)
    for power, value in zip(powers, point, strict=True):
        result *= Fraction(value) ** power
    return result


def _differences(xs: Sequence[int], ys: Sequence[Fraction]) -> list[Fraction]:
    """Return Newton's divided differences; the last that is not 0 gives the degree."""
    table, differences = list(ys), [ys[0]]
    for order in range(1, len(xs)):
        table = [(table[i + 1] - table[i]) / (xs[i + order] - xs[i]) for i in range(len(table) - 1)]
        differences.append(table[0])
    return differences


def _newton(xs: Sequence[int], ys: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients, by power, of the polynomial through the points."""
    result: list[Any] = [Fraction(0)] * len(xs)
    basis = [Fraction(1)]
    for i, difference in enumerate(_differences(xs, ys)):
        for power, c in enumerate(basis):
            result[power] += difference * c
        basis = [
            (basis[p - 1] if p > 0 else 0) - (xs[i] * basis[p] if p < len(basis) else 0)
            for p in range(len(basis) + 1)
        ]
    return result
