"""The peak of memory: a maximum over formulas, its value at a point, and what is alive there."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import sympy

from querykey.costs.memory.timeline import Event, Piece
from querykey.costs.sums import Sum, as_sum, expression

MANY = 200  # means of more formulas are not compared


@dataclass(frozen=True)
class Alive:
    """Tensors that are in memory at the peak: equal ones of numbered modules are in one row."""

    module: str
    made_by: str
    times: int
    bytes: int  # of all of them


@dataclass(frozen=True)
class Peak:
    """The most memory that is taken at one time, in bytes, and by what."""

    bytes: int
    alive: tuple[Alive, ...]


def peak_at(events: Sequence[Event], value: Callable[[Any], int]) -> Peak:
    """Return the peak where `value` turns the size of a piece into a number."""
    sizes: dict[Any, int] = {}
    total = most = 0
    place = -1
    for index, event in enumerate(events):
        size = event.piece.size
        if size not in sizes:
            sizes[size] = value(size)
        total += sizes[size] if event.taken else -sizes[size]
        if total > most:
            most, place = total, index
    alive: Counter[Piece] = Counter()
    for event in events[: place + 1]:
        alive[event.piece] += 1 if event.taken else -1
    return Peak(most, _rows(alive, sizes))


def peak_formulas(events: Sequence[Event], plain: Callable[[Any], Any]) -> list[sympy.Expr]:
    """Return the formulas of which the largest is the peak, at any sizes of at least 1."""
    sizes = {size: as_sum(plain(size)) for size in {e.piece.size for e in events}}
    monomials = list(dict.fromkeys(m for total in sizes.values() for m in total))
    rows = {size: np.array([t.get(m, 0) for m in monomials], object) for size, t in sizes.items()}
    steps = [rows[e.piece.size] if e.taken else -rows[e.piece.size] for e in events]
    totals = np.cumsum(np.array(steps), axis=0)
    # The total is largest right before memory is given back, or at the end.
    ends = [a.taken and not b.taken for a, b in itertools.pairwise(events)] + [True]
    candidates = {tuple(total): None for total, end in zip(totals, ends, strict=True) if end}
    kept = _undominated([np.array(c, object) for c in candidates], monomials)
    return [expression(dict(zip(monomials, total, strict=True))) for total in kept]


def _between(candidates: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Return the totals without those that a weighted mean of two others nowhere falls below.

    A mean never exceeds the larger of its two, so the maximum of the rest is the same.
    """
    kept = list(candidates)
    for candidate in candidates:
        others = [other[0] for other in kept if other is not candidate]
        if any(_below_mean(candidate[0], a, b) for a, b in itertools.combinations(others, 2)):
            kept = [other for other in kept if other is not candidate]
    return [total for _, total in kept]


def _below_mean(total: np.ndarray, first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether some mean w first + (1 - w) second is nowhere below `total`."""
    low, high = Fraction(0), Fraction(1)
    for a, b, c in zip(first, second, total, strict=True):
        if a == b:
            if c > b:
                return False
            continue
        weight = Fraction(c - b) / Fraction(a - b)
        low, high = (max(low, weight), high) if a > b else (low, min(high, weight))
        if low > high:
            return False
    return True


def _undominated(candidates: list[np.ndarray], monomials: list[Any]) -> list[np.ndarray]:
    """Return the totals that no other one exceeds at all sizes of at least 1."""
    shift = _sizes_less_one(monomials)
    shifted = [(candidate @ shift, candidate) for candidate in candidates]
    shifted.sort(key=lambda pair: pair[0].sum(), reverse=True)
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    for vector, candidate in shifted:
        if not any((other >= vector).all() for other, _ in kept):
            kept.append((vector, candidate))
    return _between(kept) if len(kept) <= MANY else [candidate for _, candidate in kept]


def _sizes_less_one(monomials: list[Any]) -> np.ndarray:
    """Return the matrix that writes sums of these monomials in the sizes less 1.

    There a sum without negative terms is negative nowhere. What is no polynomial stays as it is.
    """
    moved: list[Sum] = []
    for monomial in map(sympy.sympify, monomials):
        symbols: Any = monomial.free_symbols
        polynomial = bool(symbols) and monomial.is_polynomial(*symbols)
        moved.append(as_sum(monomial.subs({s: s + 1 for s in symbols}) if polynomial else monomial))
    inner = list(dict.fromkeys(m for total in moved for m in total))
    return np.array([[total.get(m, 0) for m in inner] for total in moved], object)


def _rows(alive: Counter[Piece], sizes: Mapping[Any, int]) -> tuple[Alive, ...]:
    times: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    for piece, count in alive.items():
        parts = ("*" if part.isdigit() else part for part in piece.module.split("."))
        key = ".".join(parts), piece.made_by
        times[key] += count
        total[key] += count * sizes[piece.size]
    rows = (Alive(*key, times[key], size) for key, size in total.items() if times[key] and size)
    return tuple(sorted(rows, key=lambda row: -row.bytes))
