"""Kernel attention in chunks, forward and backward, in time and memory linear in the tokens.

    out = attend(q, k, v, Kernel(Quadratic()), causal=True, decay=log_g)
    out, outer, total = extend(q, k, v, Kernel(Quadratic()), outer, total, decay=log_g)

Few tokens meet pair by pair instead, which is faster then: see `pairs`.

Two operators do the work, so torch.compile and autograd see one node each. The backward pass keeps
q, k, v, the output (in float32 for half-precision inputs) and one number per query.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from querykey.attention import EluPlusOne, Kernel, PowerSeries, RandomFeatures
from querykey.backends.chunked.ops import chunked_forward
from querykey.errors import QuerykeyError


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    *,
    causal: bool = False,
    real: Tensor | None = None,
    start: int = 0,
    decay: Tensor | None = None,
) -> Tensor:
    """Return kernel attention over all real keys, or those up to each query's position.

    q (*batch, heads, T, D), k (*batch, kv_heads, S, D), v (*batch, kv_heads, S, M), or all three
    without heads; real (*batch, S) is True for keys that exist; query i has position start + i.

    decay (*batch, kv_heads, S), or (S,) without heads, multiplies the similarity of query i and key
    j by exp of its sum over the positions j + 1 to start + i. It is at most 0, needs `causal`, and
    counts as 0 for keys that are not real and behind the last key.
    """
    if decay is not None and not causal:
        raise QuerykeyError(
            "decay counts the positions from a key to a later query: it needs causal"
        )
    return _run(q, k, v, kernel, (real, decay, None), causal, start, keep=False)[0]


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

    outer (*batch, kv_heads, width, M) is sum phi(k) v^T and total (*batch, kv_heads, width) is
    sum phi(k), with the phi of the kernel's own feature map. decay (*batch, kv_heads, tokens) is as
    for `attend`: it shrinks the sums of the past too.
    """
    table = torch.cat([outer, total[..., None]], -1).flatten(end_dim=-3)
    out, after = _run(q, k, v, kernel, (real, decay, table), causal=True, start=0, keep=True)
    after = after.reshape(*total.shape, -1)
    out = out.to(q.dtype)  # whatever autocast says: few tokens, by the equation, give that too
    return out, after[..., :-1], after[..., -1]


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    options: tuple[Tensor | None, Tensor | None, Tensor | None],
    causal: bool,
    start: int,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """Fold the axes to (lanes, ...), run the operator, unfold.

    The options are real, decay, and the sums of the past (lanes, width, M + 1).
    """
    real, decay, sums = options
    dtype = _dtype_under_autocast(q)
    if dtype is not None:
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    shape = (*q.shape[:-1], v.shape[-1])
    if q.ndim == 2:
        q, k, v = q[None], k[None], v[None]
    if real is not None:
        real = real.bool()[..., None, :].expand(k.shape[:-1])
    kind, numbers = _spec(kernel)
    if kind == "phi":
        # A map unknown here: its features exist for all tokens, still linear but no longer small.
        clean = k if real is None else k.masked_fill(~real[..., None], 0)
        q, k, kind, numbers = kernel.phi(q), kernel.phi(clean), "series", [1.0, 0.0, 1.0]
    # Not Size.numel(), which would make a number of a symbolic size.
    lanes, heads, kv_heads = math.prod(k.shape[:-2]), q.shape[-3], k.shape[-3]
    group = heads // max(kv_heads, 1)
    out, _, after = chunked_forward(
        q.reshape(lanes, group, *q.shape[-2:]),
        k.reshape(lanes, *k.shape[-2:]),
        v.reshape(lanes, *v.shape[-2:]),
        None if real is None else real.reshape(lanes, k.shape[-2]),
        None if decay is None else decay.reshape(lanes, k.shape[-2]),
        sums,
        kind,
        numbers,
        causal,
        start,
        keep,
    )
    return out.to(v.dtype).reshape(shape), after


def _dtype_under_autocast(q: Tensor) -> torch.dtype | None:
    """Return the dtype of products where autocast is on, as for torch's own attention."""
    device = q.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return q.dtype if q.dtype == torch.float64 else torch.get_autocast_dtype(device)


def _spec(kernel: Kernel) -> tuple[str, list[float]]:
    """Write the kernel as an operator's schema can carry it: see `features.rows`."""
    features, scale = kernel.features, float(kernel.scale)
    if isinstance(features, PowerSeries):
        return "series", [scale, *features.coefficients]
    if isinstance(features, EluPlusOne):
        return "elu+1", [scale]
    if isinstance(features, RandomFeatures):
        return "random", [scale, float(features.count), float(features.seed)]
    return "phi", []
