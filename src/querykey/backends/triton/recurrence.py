"""Recurrent states on a GPU: one new token or many, as operators, and which calls they serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from querykey.attention import Kernel, PowerSeries
from querykey.backends.operators import operator
from querykey.backends.triton import flops
from querykey.backends.triton.linear import compute_dtype

KINDS = (torch.bfloat16, torch.float16, torch.float32)  # of the tokens, when there is one to a row


def recur(
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    outer: Tensor,
    total: Tensor,
    real: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take new tokens into the sums of a recurrent state, which stay as they are.

    q (batch, heads, T, D), k and v (batch, kv_heads, T, ...), real (batch, 1, T); the sums are
    outer (batch, kv_heads, width, M) and total (batch, kv_heads, width).
    """
    assert isinstance(kernel.features, PowerSeries)
    batch, kv_heads, tokens, _ = k.shape
    lanes, group, dtype = batch * kv_heads, q.shape[1] // kv_heads, q.dtype
    numbers = [float(kernel.scale), *map(float, kernel.features.coefficients)]
    if tokens > 1:
        q, k, v = (x.to(compute_dtype(q)) for x in (q, k, v))
    q = q.reshape(lanes, group, tokens, -1)
    k, v = (x.reshape(lanes, tokens, -1) for x in (k, v))
    if real is not None:
        real = real.expand(batch, kv_heads, tokens).reshape(lanes, tokens)
    sums = outer.flatten(0, 1), total.flatten(0, 1)
    if tokens == 1:
        real = None if real is None else real[:, 0]
        out, *sums = triton_decode(q[:, :, 0], k[:, 0], v[:, 0], real, *sums, numbers)
    else:
        out, *sums = triton_extend(q, k, v, real, *sums, numbers)
    out = out.to(dtype).reshape(batch, kv_heads * group, tokens, -1)
    return out, sums[0].view(outer.shape), sums[1].view(total.shape)


def _decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    outer: Tensor,
    total: Tensor,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output (lanes, group, M) of one token, and the sums after it."""
    from querykey.backends.triton.kernels import decode

    with torch.cuda.device_of(q):
        q, k, v, outer, total = (x.contiguous() for x in (q, k, v, outer, total))
        return decode.decode(q, k, v, real, outer, total, numbers)


def _extend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    outer: Tensor,
    total: Tensor,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs (lanes, group, T, M) of many tokens, and the sums after them."""
    from querykey.backends.triton import carry

    with torch.cuda.device_of(q):
        return carry.extend(q, k, v, real, outer, total, numbers)


def _empty_results(
    q: Tensor, k: Tensor, v: Tensor, real: Any, outer: Tensor, total: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return out, outer.new_empty(outer.shape), total.new_empty(total.shape)


triton_decode = operator("triton_decode", _decode, _empty_results)
triton_extend = operator("triton_extend", _extend, _empty_results)
register_flop_formula(torch.ops.querykey.triton_decode)(flops.decode)
register_flop_formula(torch.ops.querykey.triton_extend)(flops.extend)
