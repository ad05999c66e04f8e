"""The same tables as torch tensors; torch.compile takes them as constants, untraced."""

from __future__ import annotations

import torch

from querykey.attention import tables


@torch.compiler.assume_constant_result
def monomial_table(letters: int, degree: int) -> tuple[torch.Tensor, ...]:
    """Return what `tables.monomials` lists."""
    return tuple(torch.from_numpy(table) for table in tables.monomials(letters, degree))


@torch.compiler.assume_constant_result
def direction_table(count: int, key_dim: int, seed: int) -> torch.Tensor:
    """Return `tables.orthogonal_rows`."""
    return torch.from_numpy(tables.orthogonal_rows(count, key_dim, seed))
