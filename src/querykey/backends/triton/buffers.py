"""Tensors of the sizes that the kernels take: inputs filled up, and room for results."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.backends.triton.plans import SIZES, fitting, plan


def filled(x: Tensor) -> Tensor:
    """Return x with zeros behind its last axis up to a size that is served."""
    size = x.shape[-1]
    return x if size in SIZES else F.pad(x, (0, fitting(size) - size))


def folded(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q (..., heads, T, D) as (lanes, group, T, D), k and v as (lanes, N, ...), contiguous.

    A lane is one of the key heads of one batch entry.
    """
    lanes = k.shape[:-2].numel()
    group = q.shape[-3] // k.shape[-3]
    return (
        q.reshape(lanes, group, *q.shape[-2:]).contiguous(),
        k.reshape(lanes, *k.shape[-2:]).contiguous(),
        v.reshape(lanes, *v.shape[-2:]).contiguous(),
    )


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


def empty_sums(q: Tensor, v: Tensor, causal: bool, weighted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return room for the sums that a forward pass keeps: one table a chunk, or one for all.

    The last, of counts, is empty where tokens have no weights.
    """
    lanes, (keys, value_dim), key_dim = q.shape[0], v.shape[1:], q.shape[-1]
    tables = (lanes, -(-keys // plan(key_dim, value_dim).chunk) if causal else 1)
    square, moments = sum_shapes(key_dim, value_dim)
    return (
        q.new_empty((*tables, *square)),
        q.new_empty((*tables, moments), dtype=torch.float32),
        q.new_empty(tables, dtype=torch.float32) if weighted else q.new_empty(0),
    )
