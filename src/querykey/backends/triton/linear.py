"""Quadratic kernels on a GPU: axes folded, sizes filled up, padding taken out; then the operator.

    out = attend(q, k, v, Kernel(Quadratic()), causal=True)

For the backward pass are kept q, k, v, the output (to 16 bits), one number per query, and the sums
of far keys, if keys are far.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.attention import Kernel, PowerSeries
from querykey.backends.triton import documents
from querykey.backends.triton.ops import triton_forward
from querykey.backends.triton.plans import fitting


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    *,
    causal: bool = False,
    real: Tensor | None = None,
    ids: Tensor | None = None,
) -> Tensor:
    """Return kernel attention over all real keys, or those up to each query's position.

    q (*batch, heads, T, D), k (*batch, kv_heads, S, D), v (*batch, kv_heads, S, M), or all three
    without heads; real (*batch, S) is True for keys that exist; a query sees keys with its own of
    the ids (*batch, S), if given. Causal and ids need T = S.
    """
    assert isinstance(kernel.features, PowerSeries)
    q, k, v = (x.to(compute_dtype(q)) for x in (q, k, v))
    shape = (*q.shape[:-1], v.shape[-1])
    if q.ndim == 2:
        q, k, v = q[None], k[None], v[None]
    order = table = None
    if real is not None:
        real = real.bool()
        seen = real.cumsum(-1) if causal else real.sum(-1, keepdim=True)
    if ids is not None:
        batch = k.shape[:-3]
        order, table = documents.bounds(_rows(ids, batch), _rows(real, batch), causal)
        if real is not None:
            seen = table[3].gather(-1, order.argsort(-1)).view(*batch, -1)
    if real is not None:
        looking, there = (x[..., None, :, None] for x in (seen > 0, real))
        q, k, v = torch.where(looking, q, 0), torch.where(there, k, 0), torch.where(there, v, 0)
    outer = k.shape[:-2]
    q = filled(q.reshape(outer.numel(), q.shape[-3] // outer[-1], *q.shape[-2:]))
    k, v = (filled(x.reshape(outer.numel(), *x.shape[-2:])) for x in (k, v))
    numbers = [float(kernel.scale), *map(float, kernel.features.coefficients)]
    keep = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if order is not None and table is not None:
        out = documents.documents_forward(q, k, v, order, table, numbers, causal, keep)[0]
    else:
        if real is not None:
            real = real[..., None, :].expand(*outer, -1).reshape(outer.numel(), -1).contiguous()
        out = triton_forward(q, k, v, real, numbers, causal, keep)[0]
    return out[..., : shape[-1]].reshape(shape)


def compute_dtype(q: Tensor) -> torch.dtype:
    """Return the dtype of the products: as for torch's own attention, autocast's if it is on."""
    if torch.is_autocast_enabled(q.device.type):
        return torch.get_autocast_dtype(q.device.type)
    return q.dtype


def _rows(x: Tensor | None, batch: torch.Size) -> Tensor | None:
    """Return x (..., S) as one row for each of the batch."""
    return None if x is None else x.expand(*batch, x.shape[-1]).reshape(batch.numel(), -1)


def filled(x: Tensor) -> Tensor:
    """Return x contiguous, with zeros behind its last axis up to a size that is served."""
    missing = fitting(x.shape[-1]) - x.shape[-1]
    return F.pad(x, (0, missing)) if missing else x.contiguous()
