"""Quadratic kernels on a GPU: axes folded, sizes filled up, padding taken out; then the operator.

    out = attend(q, k, v, Kernel(Quadratic()), causal=True)

The backward pass keeps q, k, v, the output (to 16 bits) and one number per query.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.attention.features import PowerSeries
from querykey.attention.mechanisms import Kernel
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
) -> Tensor:
    """Return kernel attention over all real keys, or those up to each query's position.

    q (*batch, heads, T, D), k (*batch, kv_heads, S, D), v (*batch, kv_heads, S, M), or all three
    without heads; real (*batch, S) is True for keys that exist. Causal needs T = S.
    """
    assert isinstance(kernel.features, PowerSeries)
    q, k, v = (x.to(compute_dtype(q)) for x in (q, k, v))
    shape = (*q.shape[:-1], v.shape[-1])
    if q.ndim == 2:
        q, k, v = q[None], k[None], v[None]
    seen = None
    if real is not None:
        real = real.bool()[..., None, :].expand(k.shape[:-1])
        q, k, v, seen = _without_padding(q, k, v, real, causal)
    lanes = k.shape[:-2].numel()
    q = filled(q.reshape(lanes, q.shape[-3] // k.shape[-3], *q.shape[-2:]))
    k, v = (filled(x.reshape(lanes, *x.shape[-2:])) for x in (k, v))
    numbers = [float(kernel.scale), *map(float, kernel.features.coefficients)]
    # In half precision the output's rounding is kept beside it where gradients will need it.
    keep = q.dtype != torch.float32 and torch.is_grad_enabled()
    keep = keep and (q.requires_grad or k.requires_grad or v.requires_grad)
    out = triton_forward(q, k, v, seen, numbers, causal, keep)[0]
    return out[..., : shape[-1]].reshape(shape)


def compute_dtype(q: Tensor) -> torch.dtype:
    """Return the dtype of the products: as for torch's own attention, autocast's if it is on."""
    if torch.is_autocast_enabled(q.device.type):
        return torch.get_autocast_dtype(q.device.type)
    return q.dtype


def _without_padding(
    q: Tensor, k: Tensor, v: Tensor, real: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Put zeros for padding, whatever it holds, and count the real keys that each query sees."""
    k, v = (torch.where(real[..., None], x, 0) for x in (k, v))
    if causal:
        seen = real.cumsum(-1, dtype=torch.int32)
    else:
        seen = real.sum(-1, keepdim=True, dtype=torch.int32).expand(*real.shape[:-1], q.shape[-2])
    looking = (seen > 0).repeat_interleave(q.shape[-3] // k.shape[-3], -2)[..., None]
    return torch.where(looking, q, 0), k, v, seen.reshape(-1, q.shape[-2]).contiguous()


def filled(x: Tensor) -> Tensor:
    """Return x contiguous, with zeros behind its last axis up to a size that is served."""
    missing = fitting(x.shape[-1]) - x.shape[-1]
    return F.pad(x, (0, missing)) if missing else x.contiguous()
