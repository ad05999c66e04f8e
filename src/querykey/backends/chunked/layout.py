"""Which monomials of x the rows of a series hold, how often each counts, and where to find it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

# Products x_i x_j are made for this many i at once. Within such a block both orders of a pair
# appear: a few more rows than the triangle has, for an eighth of the calls.
BLOCK = 8

Block = tuple[int, int, int, int, int]
Word = tuple[int, ...]


@lru_cache(maxsize=64)
def blocks(key_dim: int, degree: int) -> tuple[list[Block], int]:
    """List the products as (first letter, last letter, from row, to row, first row made)."""
    plan, begin = [], 1 + key_dim
    starts = {letter: 1 + letter for letter in range(0, key_dim, BLOCK)}
    end = 1 + key_dim
    for _ in range(degree - 1):
        made = {}
        for first in range(0, key_dim, BLOCK):
            last = min(first + BLOCK, key_dim)
            made[first] = begin
            plan.append((first, last, starts[first], end, begin))
            begin += (last - first) * (end - starts[first])
        starts, end = made, begin
    return plan, begin if degree else 1


@lru_cache(maxsize=64)
def letters(key_dim: int, degree: int) -> list[Word]:
    """Return each row's letters, sorted: (), (0,), (1,), ..., (0, 0), (0, 1), ..."""
    words: list[Word] = [(), *((i,) for i in range(key_dim))]
    for first, last, tail, end, _ in blocks(key_dim, degree)[0]:
        words += [tuple(sorted((i, *w))) for i in range(first, last) for w in words[tail:end]]
    return words[: blocks(key_dim, degree)[1]]


@lru_cache(maxsize=64)
def orderings(key_dim: int, degree: int) -> tuple[Tensor, Tensor]:
    """Return how often each row's word is spelled in (q.k)^n, and its n.

    A word that several rows hold is shared out among them.
    """
    words = letters(key_dim, degree)
    held: dict[Word, int] = {}
    for word in words:
        held[word] = held.get(word, 0) + 1
    spelled = [spellings(word) / held[word] for word in words]
    lengths = [len(word) for word in words]
    return torch.tensor(spelled, dtype=torch.float64), torch.tensor(lengths, dtype=torch.int64)


def spellings(word: Word) -> int:
    """Count the orders in which the letters of a word can stand."""
    repeats = math.prod(math.factorial(word.count(letter)) for letter in set(word))
    return math.factorial(len(word)) // repeats


def recentred(coefficients: Sequence[float]) -> tuple[float, tuple[float, ...]]:
    """Write sum_n c_n d^n as a polynomial in u = d + shift without the power below the highest.

    (d + b)^n becomes u^n: one multiplication fewer per power, and even powers stay above 0 whatever
    the rounding.
    """
    degree = len(coefficients) - 1
    if degree < 1:
        return 0.0, tuple(coefficients)
    shift = coefficients[-2] / (degree * coefficients[-1])
    factors = []
    for m in range(degree + 1):
        terms = [
            coefficients[n] * math.comb(n, m) * (-shift) ** (n - m) for n in range(m, degree + 1)
        ]
        total = math.fsum(terms)
        small = 1e-14 * max(abs(term) for term in terms)
        factors.append(total if abs(total) > small else 0.0)
    return shift, tuple(factors)


@dataclass(frozen=True)
class Layout:
    """Where the features of the map's own phi are among our rows, and times what.

    Sums over keys by phi are (lanes, width, n) and ours (lanes, n, rows). They hold the same
    numbers: phi = factors * rows[first], rows = phi[place] * shares.
    """

    first: Tensor
    factors: Tensor
    place: Tensor
    shares: Tensor

    def to_rows(self, phi: Tensor) -> Tensor:
        """Return our sums from those by phi."""
        return phi.mT[..., self.place.to(phi.device)] * self.shares.to(phi)

    def to_rows_back(self, grad: Tensor) -> Tensor:
        """Return the gradient of the sums by phi from that of ours."""
        found = grad.new_zeros(*grad.shape[:-1], len(self.first))
        return found.index_add_(-1, self.place.to(grad.device), grad * self.shares.to(grad)).mT

    def to_phi(self, rows: Tensor) -> Tensor:
        """Return the sums by phi from ours."""
        return (rows[..., self.first.to(rows.device)] * self.factors.to(rows)).mT

    def to_phi_back(self, grad: Tensor) -> Tensor:
        """Return the gradient of our sums from that of the sums by phi."""
        found = grad.new_zeros(len(grad), grad.shape[-1], len(self.place))
        return found.index_add_(-1, self.first.to(grad.device), grad.mT * self.factors.to(grad))


@lru_cache(maxsize=64)
def layout(key_dim: int, numbers: tuple[float, ...]) -> Layout:
    """Return the layout of a series: its kernel's scale, then its coefficients."""
    scale, *coefficients = numbers
    by_degree = [c * scale**n for n, c in enumerate(coefficients)]
    words = letters(key_dim, len(coefficients) - 1)
    where: dict[Word, int] = {}
    for row, word in enumerate(words):
        if by_degree[len(word)]:
            where.setdefault(word, row)
    # In phi the degrees rise, and the words of one degree are in the order of a dictionary.
    ordered = sorted(where, key=lambda word: (len(word), word))
    at = {word: i for i, word in enumerate(ordered)}
    factors = [math.sqrt(by_degree[len(word)] * spellings(word)) for word in ordered]
    shares = [1 / factors[at[word]] if word in at else 0.0 for word in words]
    return Layout(
        first=torch.tensor([where[word] for word in ordered]),
        factors=torch.tensor(factors, dtype=torch.float64),
        place=torch.tensor([at.get(word, 0) for word in words]),
        shares=torch.tensor(shares, dtype=torch.float64),
    )


@lru_cache(maxsize=64)
def same(width: int) -> Layout:
    """Return the layout of a map whose rows are its features themselves."""
    order, ones = torch.arange(width), torch.ones(width, dtype=torch.float64)
    return Layout(order, ones, order, ones)
