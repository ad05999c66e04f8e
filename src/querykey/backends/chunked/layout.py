"""Where the sums of a recurrent state are among the sums that the chunks keep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from querykey.backends.chunked.features import Word, letters, spellings


@dataclass(frozen=True)
class MonomialLayout:
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
        total = grad.new_zeros(*grad.shape[:-1], len(self.first))
        return total.index_add_(-1, self.place.to(grad.device), grad * self.shares.to(grad)).mT

    def to_phi(self, rows: Tensor) -> Tensor:
        """Return the sums by phi from ours."""
        return (rows[..., self.first.to(rows.device)] * self.factors.to(rows)).mT

    def to_phi_back(self, grad: Tensor) -> Tensor:
        """Return the gradient of our sums from that of the sums by phi."""
        total = grad.new_zeros(len(grad), grad.shape[-1], len(self.place))
        return total.index_add_(-1, self.first.to(grad.device), grad.mT * self.factors.to(grad))


@lru_cache(maxsize=64)
def layout(key_dim: int, numbers: tuple[float, ...]) -> MonomialLayout:
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
    return MonomialLayout(
        first=torch.tensor([where[word] for word in ordered]),
        factors=torch.tensor(factors, dtype=torch.float64),
        place=torch.tensor([at.get(word, 0) for word in words]),
        shares=torch.tensor(shares, dtype=torch.float64),
    )


@lru_cache(maxsize=64)
def same(width: int) -> MonomialLayout:
    """Return the layout of a map whose rows are its features themselves."""
    order, ones = torch.arange(width), torch.ones(width, dtype=torch.float64)
    return MonomialLayout(order, ones, order, ones)
