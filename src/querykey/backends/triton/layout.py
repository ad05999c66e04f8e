"""Where a recurrent state keeps its sums, and where the kernels keep the same sums.

Row r of phi(x) is weight[r] x_i x_j with the letters i, j of r; one past the last stands for 1.
The rows are those of `PowerSeries`: 1, every x_i, every x_i x_j with i <= j, without degrees of
factor 0. A state sums up phi(k) v^T and phi(k); the kernels sum up square and moments, as
`kernels.sums` says, without weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it


@dataclass(frozen=True, eq=False)
class StateLayout:
    """The rows of phi on a device, and how they come from and go to tables for keys of `size`.

    Degrees 0 and 1 of a factor 0 have no rows; the kernels then ask for no such sums either.
    """

    letters: Tensor  # (2, width)
    weights: Tensor  # (width,)
    places: Tensor  # of the rows of degree 2 among those of a table
    origins: Tensor  # of a table's rows among those of degree 2, with one more for none
    size: int
    ones: int  # rows of degree 0: 1 or none
    singles: int  # rows of degree 1

    def to_tables(self, outer: Tensor, total: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return a state as the kernels' sums: square, moments, and the count of tokens.

        outer (lanes, width of phi, M) and total (lanes, width of phi); values are filled up.
        """
        lanes, value_dim = len(outer), outer.shape[-1]
        outer = F.pad(outer / self.weights[:, None], (0, width - value_dim, 0, 1))
        total = F.pad(total / self.weights, (0, 1))
        first = self.ones + self.singles
        square = outer[:, first:][:, self.origins]
        s1, z1 = outer.new_zeros(lanes, self.size, width), total.new_zeros(lanes, self.size)
        s1[:, : self.singles] = outer[:, self.ones : first]
        z1[:, : self.singles] = total[:, self.ones : first]
        z2 = total[:, first:][:, self.origins[self._full]]
        s0, count = outer[:, 0], total[:, 0].contiguous()
        if not self.ones:
            s0, count = torch.zeros_like(s0), torch.zeros_like(count)
        moments = torch.cat([s1.flatten(1), z2.flatten(1), s0, z1], 1)
        return square.flatten(1), moments, count

    def to_state(
        self, square: Tensor, moments: Tensor, count: Tensor, value_dim: int
    ) -> tuple[Tensor, Tensor]:
        """Return the kernels' sums as a state: the way back of `to_tables`."""
        lanes, size = len(square), self.size
        square = square.view(lanes, 3 * size * size // 4, -1)
        width = square.shape[-1]
        s1, z2, s0, z1 = moments.split([size * width, size * size, width, size], 1)
        pairs = self.letters[:, self.ones + self.singles :].long()
        outer = [
            s0[:, None][:, : self.ones],
            s1.view(lanes, size, width)[:, : self.singles],
            square[:, self.places],
        ]
        total = [
            count[:, None][:, : self.ones],
            z1[:, : self.singles],
            z2.view(lanes, size, size)[:, pairs[0], pairs[1]],
        ]
        outer = torch.cat(outer, 1)[..., :value_dim] * self.weights[:, None]
        return outer, torch.cat(total, 1) * self.weights

    @property
    def _full(self) -> Tensor:
        """The rows of a table that make a full square, (size, size)."""
        half = self.size // 2
        i = torch.arange(self.size, device=self.places.device)
        low, high = torch.minimum(i[:, None], i), torch.maximum(i[:, None], i)
        return _place(low, high, half)


def state_layout(
    key_dim: int, size: int, numbers: Sequence[float], device: torch.device
) -> StateLayout:
    """Return the layout for keys of `key_dim` entries, filled up to `size`.

    `numbers` are the kernel's scale and c0, c1, c2; half of each factor goes to q, half to k.
    """
    # Made on a CPU and moved once: CUDA calls can be recorded as a graph after the first one.
    with torch.device("cpu"):  # whatever torch's default device
        return _layout(key_dim, size, tuple(numbers), device)


@lru_cache(maxsize=32)
def _layout(
    key_dim: int, size: int, numbers: tuple[float, ...], device: torch.device
) -> StateLayout:
    scale, c0, c1, c2 = numbers
    pairs = torch.triu_indices(key_dim, key_dim)
    twice = 1.0 + (pairs[0] != pairs[1]).double()
    letters, weights = [pairs], [scale * torch.sqrt(c2 * twice)]
    if c1:
        letter = torch.arange(key_dim)
        letters.insert(0, torch.stack([letter, torch.full_like(letter, key_dim)]))
        weights.insert(0, torch.full((key_dim,), math.sqrt(c1 * scale), dtype=torch.float64))
    if c0:
        letters.insert(0, torch.full((2, 1), key_dim))
        weights.insert(0, torch.full((1,), math.sqrt(c0), dtype=torch.float64))
    half, none = size // 2, pairs.shape[1]
    numbered = torch.full((size, size), none)
    numbered[pairs[0], pairs[1]] = numbered[pairs[1], pairs[0]] = torch.arange(none)
    origins = torch.cat([numbered[:half].flatten(), numbered[half:, half:].flatten()])
    tables = (torch.cat(letters, 1).int(), torch.cat(weights).float())
    tables += (_place(pairs[0], pairs[1], half), origins)
    return StateLayout(*(x.to(device) for x in tables), size, int(c0 > 0), key_dim * int(c1 > 0))


def _place(i: Tensor, j: Tensor, half: int) -> Tensor:
    """Return the row of (i, j), i <= j, among those of all tiles, as `kernels.sums` keeps them."""
    return torch.where(i < half, i * 2 * half + j, 2 * half * half + (i - half) * half + j - half)
