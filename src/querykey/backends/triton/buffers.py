"""Tensors of the sizes that the kernels take: inputs filled up, and room for results."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.backends.triton.plans import fitting, plan


def filled(x: Tensor) -> Tensor:
    """Return x contiguous, with zeros behind its last axis up to a size that is served."""
    missing = fitting(x.shape[-1]) - x.shape[-1]
    return F.pad(x, (0, missing)) if missing else x.contiguous()


def empty_outputs(q: Tensor, v: Tensor, keep: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return room for the outputs, for their residue and for 1/z of every query.

    The residue is what rounding takes from the outputs: None if it is not kept, and in float32.
    """
    shape = (*q.shape[:-1], v.shape[-1])
    out = v.new_empty(shape)
    residue = v.new_empty(shape) if keep and v.dtype != torch.float32 else None
    return out, residue, q.new_empty(shape[:-1], dtype=torch.float32)


def sum_shapes(key_dim: int, value_dim: int) -> tuple[tuple[int, int, int], int]:
    """Return the shape of a chunk's square, (tiles, key_dim, value_dim), and its moments' size."""
    square = (3 * key_dim // 4, key_dim, value_dim)
    return square, key_dim * value_dim + key_dim * key_dim + value_dim + key_dim


def empty_sums(q: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return room for the sums that a forward pass keeps: one table a chunk, or one for all."""
    lanes, (keys, value_dim), key_dim = q.shape[0], v.shape[1:], q.shape[-1]
    tables = (lanes, -(-keys // plan(key_dim, value_dim).chunk) if causal else 1)
    square, moments = sum_shapes(key_dim, value_dim)
    return q.new_empty((*tables, *square)), q.new_empty((*tables, moments), dtype=torch.float32)
