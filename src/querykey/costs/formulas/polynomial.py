"""Exact interpolation: the polynomial in several sizes through counts at some of them.

The sizes are taken one after the other. The monomials that occur in the first sizes say how many
points the next size needs, so few points are evaluated where few monomials occur. Every point that
the coefficients do not need is held out, and the polynomial must predict its counts exactly.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Point = tuple[int, ...]
Powers = tuple[int, ...]
Values = Mapping[Any, int]

PRIME = (1 << 61) - 1
CONFIRMATIONS = 2  # so many further values of one size must be predicted


class NotPolynomialError(ValueError):
    """Says in which size the counts are no polynomial, over which values."""

    def __init__(self, name: str, values: Sequence[int], why: str):
        super().__init__(f"{why} in `{name}` over {min(values)} to {max(values)}")
        self.name = name


@dataclass(frozen=True)
class Fit:
    """Coefficients by what was counted, over shared monomials; and how many points support them."""

    powers: list[Powers]
    coefficients: dict[Hashable, list[Fraction]]
    evaluated: int
    held_out: int


class Fitter:
    """Evaluates points, each once, and finds the polynomial through them."""

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
        """Return the polynomial, or raise NotPolynomialError with a size in which there is none."""
        for start in (0, 2):
            powers: list[Powers] = [tuple(0 for _ in self.names)]
            for place in range(len(self.names)):
                powers = self._extend(powers, place)
            fit = self._solve(powers)
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

    def _digest(self, point: Point) -> int:
        """Return one number made of all counts, with weights so that no two counts cancel."""
        return sum(n * (1 + zlib.crc32(repr(k).encode())) for k, n in self.at(point).items())

    def _extend(self, monomials: list[Powers], place: int) -> list[Powers]:
        """Return the monomials in the sizes up to `place`, from those in the sizes before it."""
        shift, degree = self._degree(place)
        rows = self._points(monomials, place)
        slices = []
        for value in self.values[place][: degree + 1]:
            digests = [Fraction(self._digest(_put(row, place, value))) for row in rows]
            solved = solve([[_monomial(p, row) for p in monomials] for row in rows], [digests])[0]
            slices.append([c * Fraction(value) ** shift for c in solved])
        extended = []
        for index, powers in enumerate(monomials):
            line = [coefficients[index] for coefficients in slices]
            for power, c in enumerate(_newton(self.values[place][: degree + 1], line)):
                if c != 0:
                    extended.append(_put(powers, place, power - shift))
        return extended or [tuple(0 for _ in self.names)]

    def _degree(self, place: int) -> tuple[int, int]:
        """Return (shift, degree): value^shift times the counts has this degree in one size."""
        values, base = self.values[place], self._base()
        reached: list[int] = []
        for value in values:
            reached.append(self._digest(_put(base, place, value)))
            for shift in (0, 1):  # 1 for costs that are divided by the size
                line = [Fraction(n) * v**shift for n, v in zip(reached, values, strict=False)]
                differences = _differences(values[: len(line)], line)
                degree = max((i for i, d in enumerate(differences) if d != 0), default=0)
                if len(line) - 1 - degree >= CONFIRMATIONS + shift:
                    return shift, degree
        raise NotPolynomialError(self.names[place], values, "the counts are no polynomial")

    def _points(self, monomials: list[Powers], place: int) -> list[Point]:
        """Return points in the sizes before `place` that make the known monomials independent."""
        base, rows, independent = self._base(), [], _Independent()
        grids = [self.values[i] for i in range(place)]
        for head in self._candidates(grids):
            point = (*head, *base[place:])
            if independent.add([_monomial(powers, point) for powers in monomials]):
                rows.append(point)
            if len(rows) == len(monomials):
                return rows
        name = self.names[max(place - 1, 0)]
        raise NotPolynomialError(
            name, self.values[max(place - 1, 0)], "too few sizes for the degree"
        )

    def _candidates(self, grids: list[list[int]]) -> list[Point]:
        """Return points to choose from: those already evaluated, then a shuffled grid."""
        old = [p[: len(grids)] for p in self.seen]
        total = list(itertools.islice(itertools.product(*(g[:6] for g in grids)), 4096))
        self._random.shuffle(total)
        return [*dict.fromkeys([*old, *total])]

    def _solve(self, powers: list[Powers]) -> Fit | None:
        """Return the coefficients of all counts, or None where a held-out point is missed."""
        self.at(tuple(max(values) for values in self.values))
        if self.names:
            self.at(tuple(self._random.choice(values[-3:]) for values in self.values))
        points = list(self.seen)
        matrix, chosen, independent = [], [], _Independent()
        for point in points:
            row = [_monomial(p, point) for p in powers]
            if len(chosen) < len(powers) and independent.add(row):
                matrix.append(row)
                chosen.append(point)
        keys = list(dict.fromkeys(key for values in self.seen.values() for key in values))
        right = [[Fraction(self.seen[point].get(key, 0)) for point in chosen] for key in keys]
        solved = dict(zip(keys, solve(matrix, right), strict=True))
        for point in points:
            row = [_monomial(p, point) for p in powers]
            for key, coefficients in solved.items():
                got = sum(c * m for c, m in zip(coefficients, row, strict=True))
                if got != self.seen[point].get(key, 0):
                    return None
        return Fit(powers, solved, len(points), len(points) - len(chosen))


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
