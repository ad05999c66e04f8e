"""Softmax attention by torch's fused kernel, `F.scaled_dot_product_attention`.

A mask becomes the least that the kernel takes: nothing, `is_causal`, booleans per key, or booleans
per pair. The last are never made for all pairs of a long sequence at once: queries go in blocks,
and each block is given only the keys that it can reach, so that a window costs T * w, not T * S.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.attention import (
    FULL,
    Bias,
    Causal,
    Mechanism,
    Softmax,
)
from querykey.backends.backend import Request
from querykey.backends.operators import no_forward_mode
from querykey.backends.pairs import (
    QueryBlock,
    blocks,
    joined_batch,
    looked_at,
    per_query,
    positions,
    visible,
)

computes: type[Mechanism] = Softmax
VECTOR = 16  # floats in the widest vector of a CPU
beaten = "it could compute this, but {taken} is faster here; ask for it by name"


def why(request: Request[Softmax]) -> str:
    """Say which kernel computes the call."""
    return "torch's fused softmax attention"


def refusal(request: Request[Softmax]) -> str | None:
    """Say why this backend cannot serve the call; None if it can."""
    if request.empty:
        return "there is nothing to compute"
    if request.mechanism.softcap is not None:
        return "it has no softcap"
    return no_forward_mode(request.q, request.k, request.v, request.bias)


def defers_to(request: Request[Softmax]) -> str | None:
    """Name flex on a GPU where the mask leaves out blocks, which flex skips."""
    return "flex" if request.q.is_cuda and request.others else None


def notes(request: Request[Softmax]) -> tuple[str, ...]:
    """Say what a user should know about the numbers."""
    if request.mask == FULL:
        return ()
    return ("NaN or inf in a key that only some queries may see can reach the others",)


def run(request: Request[Softmax]) -> torch.Tensor:
    """Compute the call by the fused kernel, in blocks where the mask differs per query."""
    q, k, v = four_axes(request)
    if request.bias is None and _everything_visible(request):
        out = _fused(request, q, k, v)
    elif request.bias is None and _plainly_causal(request):
        seen = request.call.queries  # a key behind the last query is seen by none
        if seen < request.call.keys:
            k, v = k[:, :, :seen], v[:, :, :seen]
        out = _fused(request, q, k, v, is_causal=True)
    else:
        out = _masked(request, q, k, v)
    return out if request.q.ndim == 4 else out.reshape(*request.q.shape[:-1], request.v.shape[-1])


def repeated(request: Request[Softmax]) -> Callable[..., torch.Tensor]:
    """Return the function of q, k and v that computes every call like this one.

    Where that is torch's kernel alone, nothing stands before it: for short sequences the questions
    of `run` take as long as the kernel.
    """
    call, mechanism, mask = request.call, request.mechanism, request.mask
    everything = _everything_visible(request)
    plain = everything or _plainly_causal(request)  # with as many queries as keys, without a start
    even = request.q.ndim == 4 and call.key_dim == request.v.shape[-1] and call.keys >= VECTOR
    if plain and even:
        options = _options(request)
        return partial(F.scaled_dot_product_attention, is_causal=not everything, **options)
    return lambda q, k, v: run(Request(q, k, v, mechanism, mask, None, None, call))


def four_axes(request: Request[Softmax]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q, k and v as (batch, heads, tokens, features), which torch's kernels want."""
    call = request.call
    if request.q.ndim == 4:
        return request.q, request.k, request.v
    batch = math.prod(call.batch)
    return (
        request.q.reshape(batch, call.heads, call.queries, call.key_dim),
        request.k.reshape(batch, call.kv_heads, call.keys, call.key_dim),
        request.v.reshape(batch, call.kv_heads, call.keys, request.v.shape[-1]),
    )


def _everything_visible(request: Request[Softmax]) -> bool:
    """Whether the mask is FULL, or Causal() with every query behind the last key.

    The latter is how one token is decoded.
    """
    start = request.call.start
    behind = isinstance(start, int) and start >= request.call.keys - 1
    return request.mask == FULL or (request.mask == Causal() and behind)


def _plainly_causal(request: Request[Softmax]) -> bool:
    fits = request.call.queries <= request.call.keys
    # torch scales the -inf of its own mask too, so that a scale of 0 or below makes NaN of it.
    fits = fits and request.mechanism.scale_for(request.call.key_dim) > 0
    return request.mask == Causal() and request.starts_at_zero and fits


def _masked(request: Request[Softmax], q: Any, k: Any, v: Any) -> torch.Tensor:
    """Attend block by block; what is alone stays out, and a query that sees nothing gets zeros."""
    mask, call, looking = request.mask, request.call, None
    if not (mask == FULL or request.sees_itself):
        looking, seen = looked_at(mask, call, q.device)
        q = torch.where(looking, q, 0)
        k, v = torch.where(seen, k, 0), torch.where(seen, v, 0)
    alike = request.bias is None and not per_query(mask)
    outs = [_block(request, block, looking, q, k, v) for block in blocks(mask, call, alike)]
    out = outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)
    return out if looking is None else torch.where(looking, out, 0)


def _block(
    request: Request[Softmax],
    block: QueryBlock,
    looking: torch.Tensor | None,
    q: Any,
    k: Any,
    v: Any,
) -> torch.Tensor:
    queries, keys = slice(block.first, block.last), slice(block.low, block.high)
    seen = None
    if request.mask != FULL:
        seen = visible(request.mask, request.call, block, q.device)
        if looking is not None:
            # Softmax over nothing is NaN: a query that sees nothing sees all, and is zeroed after.
            rows = looking if looking.shape[2] == 1 else looking[:, :, queries]
            seen = seen | ~rows
    if request.bias is not None:
        seen = _biased(request, block, seen)
    return _fused(request, q[:, :, queries], k[:, :, keys], v[:, :, keys], seen)


def _biased(
    request: Request[Softmax], block: QueryBlock, seen: torch.Tensor | None
) -> torch.Tensor:
    bias, call, q = request.bias, request.call, request.q
    # Scores are never in less than float32; on a GPU the kernels want a bias like q.
    wide = torch.promote_types(q.dtype, torch.float32)
    if isinstance(bias, Bias):
        query, key, at = positions(call, block, q.device)
        values = bias.on(torch.empty(0, dtype=wide, device=q.device)).values(query, key, at.head)
    else:
        assert bias is not None
        values = bias.reshape((1,) * (3 - bias.ndim) + tuple(bias.shape))
        values = values[..., block.first : block.last, block.low : block.high]
    values = joined_batch(values.to(wide if q.device.type == "cpu" else q.dtype), call)
    return values if seen is None else torch.where(seen, values, -math.inf)


def _fused(
    request: Request[Softmax], q: Any, k: Any, v: Any, mask: Any = None, is_causal: bool = False
) -> torch.Tensor:
    value_dim = v.shape[-1]
    width = max(q.shape[-1], value_dim)
    # Keys and values of different sizes take a path that is five times slower; zeros behind the
    # features change no product.
    q, k, v = (F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (q, k, v))
    exported = torch.compiler.is_exporting()  # a branch would fix which lengths are served
    if mask is None and not exported and q.device.type == "cpu" and k.shape[2] < VECTOR:
        # Without a mask, torch's kernel finds no largest score among so few keys where all are NaN,
        # and answers zeros as for a query that sees nothing.
        rows = q.shape[2] if is_causal else 1
        mask = torch.ones(rows, k.shape[2], dtype=torch.bool, device=q.device)
        mask, is_causal = mask.tril() if is_causal else mask, False
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, **_options(request)
    )
    return out[..., :value_dim] if value_dim < width else out


def _options(request: Request[Softmax]) -> dict[str, Any]:
    # A branch, for torch.compile hands on no comparison of sizes that it leaves open.
    grouped = {"enable_gqa": True} if request.call.heads != request.call.kv_heads else {}
    return {"scale": request.mechanism.scale_for(request.call.key_dim)} | grouped
