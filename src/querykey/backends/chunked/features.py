"""Feature maps one chunk at a time: tokens in, rows of phi(x) out, and gradients the way back.

Everything is laid out (lanes, rows, tokens). A lane is one key head of one batch entry; tokens
come last, so that a row is made by one multiplication over contiguous memory. A `Rows` object owns
its buffers and the views into them: filling it allocates nothing and makes no view, which for
chunks of this size takes as long as the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from querykey.attention import orthogonal_rows

# Products x_i x_j are made for this many i at once. Within such a block both orders of a pair
# appear: a few more rows than the triangle has, for an eighth of the calls.
BLOCK = 8

ProductBlock = tuple[int, int, int, int, int]
Word = tuple[int, ...]


class Rows:
    """phi(x) for one chunk: sim(q, k) = sum_r weights[r] q.values[r] k.values[r].

    Within a chunk sim = f(u) at u = scale * q.k + shift, where `factors` are the coefficients of
    the polynomial f. A map with a closed form takes q.k from the tokens, any other from its rows.
    """

    closed = False
    scale = 1.0
    shift = 0.0
    factors: tuple[float, ...] = (0.0, 1.0)
    weights: Tensor | float = 1.0

    def __init__(self, values: Tensor):
        self.values = values
        self.slopes = tuple(self.scale * n * f for n, f in enumerate(self.factors))[1:]

    def fill(self, x: Tensor) -> None:
        """Make the rows of x (lanes, key_dim, tokens)."""
        raise NotImplementedError

    def track(self) -> None:
        """Get ready for gradients: make `grad`, of the rows."""
        self.grad = torch.empty_like(self.values)

    def pull(self, x: Tensor) -> Tensor:
        """Return the gradient of x, whose rows these are, from `grad`, which is used up."""
        raise NotImplementedError

    def gradient(self, x: Tensor, from_pairs: Tensor | None) -> Tensor:
        """Return the gradient of x from `grad` and, if given, that of the pairs in its chunk."""
        if from_pairs is None:
            return self.pull(x)
        if self.closed:
            return self.pull(x).add_(from_pairs)
        self.grad.add_(from_pairs)
        return self.pull(x)


class Monomials(Rows):
    """1, x_i, x_i x_j, ...: the rows of sum_n coefficients[n] (scale q.k)^n.

    Degree n is x_i times those rows of degree n - 1 that begin at the block of i or later. They are
    the last ones of that degree, so a block of x times a slice makes many rows in one call.
    """

    closed = True

    def __init__(self, like: Tensor, coefficients: Sequence[float], scale: float):
        lanes, key_dim, tokens = like.shape
        degree = len(coefficients) - 1
        self.scale = scale
        self.shift, self.factors = recentred(coefficients)
        self.blocks, rows = blocks(key_dim, degree)
        super().__init__(like.new_ones(lanes, rows, tokens))
        self.linear = slice(1, 1 + key_dim)
        self.x = self.values[:, self.linear]
        by_degree = [c * scale**n for n, c in enumerate(coefficients)]
        counts, degrees = orderings(key_dim, degree)
        self.weights = (torch.tensor(by_degree, dtype=torch.float64)[degrees] * counts).to(like)
        self.products = [_views(self.values, block) for block in self.blocks]

    def fill(self, x: Tensor) -> None:
        """Make the rows of x, degree by degree."""
        self.x.copy_(x)
        for left, right, product in self.products:
            torch.mul(left, right, out=product)

    def track(self) -> None:
        """Get ready for gradients, with room for the largest block."""
        super().track()
        room = self.values.new_empty(max((p.numel() for *_, p in self.products), default=0))
        self.pulls = []
        for block, (left, right, product) in zip(self.blocks, self.products, strict=True):
            to_left, to_right, grad = _views(self.grad, block)
            spare = room[: product.numel()].view(product.shape)
            self.pulls.append((grad, left, right, to_left[:, :, 0], to_right[:, 0], spare))

    def pull(self, x: Tensor) -> Tensor:
        """Return the gradient of x: the product rule for every block, highest degree first."""
        for grad, left, right, to_left, to_right, spare in reversed(self.pulls):
            to_left.add_(torch.mul(grad, right, out=spare).sum(2))
            to_right.add_(torch.mul(grad, left, out=spare).sum(1))
        return self.grad[:, self.linear]


class EluPlusOne(Rows):
    """y + 1 above 0 and exp(y) below, at y = root x."""

    def __init__(self, like: Tensor, root: float):
        self.root = root
        super().__init__(torch.empty_like(like))

    def fill(self, x: Tensor) -> None:
        """Make the rows of x."""
        torch.mul(x, self.root, out=self.values)
        above = self.values.clamp(min=0)
        self.values.clamp_(max=0).exp_().add_(above)

    def pull(self, x: Tensor) -> Tensor:
        """Return the gradient of x: the slope is 1 above 0 and the value itself below."""
        return self.grad.mul_(self.values.clamp(max=1)).mul_(self.root)


class RandomFeatures(Rows):
    """exp(w.y - |y|^2 / 2) / sqrt(count) for every row w of `directions`, at y = root x."""

    def __init__(self, like: Tensor, directions: Tensor, root: float):
        self.root = root
        self.directions = directions.to(like).expand(len(like), -1, -1)
        super().__init__(like.new_empty(len(like), len(directions), like.shape[-1]))

    def fill(self, x: Tensor) -> None:
        """Make the rows of x."""
        half = (x * x).sum(1, keepdim=True).mul_(self.root**2 / 2)
        torch.baddbmm(half, self.directions, x, beta=-1, alpha=self.root, out=self.values)
        self.values.exp_().mul_(1 / math.sqrt(len(self.directions[0])))

    def pull(self, x: Tensor) -> Tensor:
        """Return the gradient of x: root (w - y) for every feature."""
        grad = self.grad.mul_(self.values)
        total = grad.sum(1, keepdim=True)
        return (self.directions.mT @ grad).sub_(x * total, alpha=self.root).mul_(self.root)


def rows(like: Tensor, kind: str, numbers: Sequence[float]) -> Rows:
    """Return the buffers of a map for chunks shaped like `like` (lanes, key_dim, tokens).

    The map is named as an operator's schema can carry it: a kind, and the kernel's scale followed
    by the coefficients of a series, or by the count and the seed of random features.
    """
    scale, *more = numbers
    if kind == "series":
        return Monomials(like, more, scale)
    if kind == "elu+1":
        return EluPlusOne(like, math.sqrt(scale))
    count, seed = map(int, more)
    directions = torch.from_numpy(orthogonal_rows(count, like.shape[1], seed))
    return RandomFeatures(like, directions, math.sqrt(scale))


def row_count(key_dim: int, kind: str, numbers: Sequence[float]) -> int:
    """Count the rows that `rows` makes."""
    if kind == "series":
        return blocks(key_dim, len(numbers) - 2)[1]
    return key_dim if kind == "elu+1" else int(numbers[1])


def series(factors: Sequence[float], u: Tensor, out: Tensor) -> Tensor:
    """Return sum_n factors[n] u^n, by Horner's rule, written to `out` unless it is u itself."""
    if len(factors) == 1:
        return out.fill_(factors[0])
    total = u if factors[-1] == 1 else torch.mul(u, factors[-1], out=out)
    for factor in reversed(factors[1:-1]):
        if factor:
            total = torch.add(total, factor, out=out)
        total = torch.mul(total, u, out=out)
    return torch.add(total, factors[0], out=out) if factors[0] else total


def _views(buffer: Tensor, block: ProductBlock) -> tuple[Tensor, Tensor, Tensor]:
    first, last, tail, end, begin = block
    lanes, _, tokens = buffer.shape
    shape = (lanes, last - first, end - tail, tokens)
    product = buffer[:, begin : begin + shape[1] * shape[2]].view(shape)
    return buffer[:, 1 + first : 1 + last, None], buffer[:, None, tail:end], product


@lru_cache(maxsize=64)
def blocks(key_dim: int, degree: int) -> tuple[list[ProductBlock], int]:
    """List the products as (first letter, last letter, from row, to row, first row made)."""
    plan, begin = [], 1 + key_dim
    starts = {letter: 1 + letter for letter in range(0, key_dim, BLOCK)}
    end = 1 + key_dim
    for _ in range(degree - 1):
        begins = {}
        for first in range(0, key_dim, BLOCK):
            last = min(first + BLOCK, key_dim)
            begins[first] = begin
            plan.append((first, last, starts[first], end, begin))
            begin += (last - first) * (end - starts[first])
        starts, end = begins, begin
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
