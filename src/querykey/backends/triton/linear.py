"""Quadratic kernels on a GPU: axes folded, sizes filled up, padding taken out; then the operator.

    out = attend(q, k, v, Kernel(Quadratic()), causal=True)
    out, outer, total = extend(q, k, v, Kernel(Quadratic()), outer, total)

For the backward pass are kept q, k, v, the output (to 16 bits), one number per query, and the sums
of far keys, if keys are far.
"""

from __future__ import annotations

import torch
from torch import Tensor

from querykey.attention import Kernel, PowerSeries
from querykey.backends.triton.autograd import differentiable, differentiable_documents
from querykey.backends.triton.buffers import filled
from querykey.backends.triton.intervals import Intervals, as_rows, intervals, kept_intervals
from querykey.backends.triton.ops import triton_decode, triton_extend


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    *,
    causal: bool = False,
    real: Tensor | None = None,
    decay: Tensor | None = None,
    ids: Tensor | None = None,
) -> Tensor:
    """Return kernel attention over all real keys, or those up to each query's position.

    q (*batch, heads, T, D), k (*batch, kv_heads, S, D), v (*batch, kv_heads, S, M), or all three
    without heads; real (*batch, S) is True for keys that exist; decay (*batch, kv_heads, S), for
    causal calls, is the logarithm of a gate at each; a query sees keys with its own of the ids
    (*batch, S), if there are ids. Causal and ids need T = S.
    """
    dtype, value_dim = compute_dtype(q), v.shape[-1]
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    real = None if real is None else real.bool()
    if q.ndim == 2:
        decay = None if decay is None else decay[None]
        return attend(
            q[None], k[None], v[None], kernel, causal=causal, real=real, decay=decay, ids=ids
        )[0]
    found = facts = None
    if ids is not None:
        batch = k.shape[:-3]
        if real is None:
            found, facts = kept_intervals(ids, batch, causal)
        else:
            found = intervals(as_rows(ids, batch), as_rows(real, batch), causal)
    if real is not None:
        q, k, v = _without_padding(q, k, v, real, causal, found)
    q, k, v = filled(q), filled(k), filled(v)
    if found is not None:
        out = differentiable_documents(q, k, v, found, facts, numbers_of(kernel), causal)
    else:
        if real is not None:
            lanes = k.shape[:-2].numel()
            real = real[..., None, :].expand(k.shape[:-1]).reshape(lanes, -1).contiguous()
        decay = None if decay is None else _gates(decay, real)
        out = differentiable(q, k, v, real, decay, numbers_of(kernel), causal)
    return out if out.shape[-1] == value_dim else out[..., :value_dim]


def _without_padding(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor,
    causal: bool,
    found: Intervals | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tensors with zeros for keys that are no tokens and queries that see no token."""
    if found is not None:
        seen = found.table[2].gather(-1, found.order.argsort(-1)).view(real.shape)
    else:
        seen = real.cumsum(-1) if causal else real.sum(-1, keepdim=True)
    looking, present = (x[..., None, :, None] for x in (seen > 0, real))
    return torch.where(looking, q, 0), torch.where(present, k, 0), torch.where(present, v, 0)


def _gates(decay: Tensor, real: Tensor | None) -> Tensor:
    """Return the logarithms of gates (..., kv_heads, S) as (lanes, S); those of padding are 0."""
    decay = decay.reshape(-1, decay.shape[-1]).float().contiguous()
    return decay if real is None else torch.where(real, decay, 0)


def extend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    outer: Tensor,
    total: Tensor,
    *,
    real: Tensor | None = None,
    decay: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return causal attention over the sums of the past and new tokens, and the sums after these.

    q (batch, heads, T, D), k and v (batch, kv_heads, T, ...), real (batch, T); outer (batch,
    kv_heads, width, M) is sum phi(k) v^T and total (batch, kv_heads, width) is sum phi(k). The sums
    of the past stay as they are. decay (batch, kv_heads, T) is the logarithm of a gate at each
    token, 0 at those that are not real.
    """
    batch, kv_heads, tokens, _ = k.shape
    lanes, group, dtype = batch * kv_heads, q.shape[1] // kv_heads, q.dtype
    if tokens > 1:
        q, k, v = (x.to(compute_dtype(q)) for x in (q, k, v))
    q = q.reshape(lanes, group, tokens, -1)
    k, v = (x.reshape(lanes, tokens, -1) for x in (k, v))
    if real is not None:
        real = real[:, None].expand(batch, kv_heads, tokens).reshape(lanes, tokens)
    decay = None if decay is None else _gates(decay, real)
    sums = outer.flatten(0, 1), total.flatten(0, 1)
    if tokens == 1:
        q, (k, v) = q[:, :, 0], (x[:, 0] for x in (k, v))
        real, decay = (None if x is None else x[:, 0] for x in (real, decay))
        out, *sums = triton_decode(q, k, v, real, decay, *sums, numbers_of(kernel))
    else:
        out, *sums = triton_extend(q, k, v, real, decay, *sums, numbers_of(kernel))
    out = out.to(dtype).reshape(batch, kv_heads * group, tokens, -1)
    return out, sums[0].view(outer.shape), sums[1].view(total.shape)


def compute_dtype(q: Tensor) -> torch.dtype:
    """Return the dtype of the products: as for torch's own attention, autocast's if it is on."""
    if torch.is_autocast_enabled(q.device.type):
        return torch.get_autocast_dtype(q.device.type)
    return q.dtype


def numbers_of(kernel: Kernel) -> tuple[float, ...]:
    """Return the kernel's scale and the coefficients c0, c1, c2 of its similarity."""
    assert isinstance(kernel.features, PowerSeries)
    return (float(kernel.scale), *map(float, kernel.features.coefficients))
