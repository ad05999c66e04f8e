"""Documents packed into one sequence: brought each into one piece, attended to, and put back.

A query sees the keys with its own id, all of them or those up to itself. Once tokens are sorted by
id, those of one id in their order, it sees an interval, whatever the ids were: every pair of an
interval is met, without sums. The equations are in `kernels.documents`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from querykey.backends.triton import plans
from querykey.backends.triton.buffers import empty_outputs
from querykey.backends.triton.call import KernelCall, cut, kernel_call
from querykey.backends.triton.kernels import documents as kernels
from querykey.backends.triton.launches import Launcher
from querykey.backends.triton.passes import Results, scale_gradients


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: Tensor,
    table: Tensor,
    numbers: Sequence[float],
    keep: bool,
) -> Results:
    """Do as `passes.forward`, by the order and the table of `intervals.intervals`."""
    call = kernel_call(q, k, v, numbers, causal=False, keep=keep, pairs=True)
    q, k, v = (in_order(x, order) for x in (q, k, v))
    out, residue, inverse = empty_outputs(q, v, keep)
    low, up, _, _, *real = table
    start = _outputs(call, len(low), residue is not None)
    start(
        q_LGTD=q, k_LTD=k, v_LTM=v, low_ET=low, up_ET=up, real_ET=real[0] if real else None,
        out_LGTM=out, residue_LGTM=residue, inverse_LGT=inverse,
    )  # fmt: skip
    inverse = in_order(inverse[..., None], order, back=True)[..., 0]
    if residue is not None:
        residue = in_order(residue, order, back=True)
    return Results(in_order(out, order, back=True), residue, inverse)


def backward(
    dout: Tensor,
    results: Results,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: Tensor,
    table: Tensor,
    numbers: Sequence[float],
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Do as `passes.backward`; a causal query is the first that sees its own key."""
    call = kernel_call(q, k, v, numbers, causal=False, keep=True, pairs=True)
    e, _, _ = scale_gradients(call, dout, results)
    e, inverse = (in_order(x[..., None], order) for x in (e, results.inverse))
    q, k, v, dout = (in_order(x, order) for x in (q, k, v, dout))
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    low, up, end, *_ = table
    _query_gradients(call, len(low))(
        q_LGTD=q, k_LTD=k, v_LTM=v, dout_LGTM=dout, e_LGT=e, inverse_LGT=inverse, low_ET=low,
        up_ET=up, dq_LGTD=dq,
    )  # fmt: skip
    first = low
    if causal:
        first = torch.arange(k.shape[1], device=k.device, dtype=low.dtype)
        first = first.expand_as(low).contiguous()
    _key_gradients(call, len(low))(
        q_LGTD=q, k_LTD=k, v_LTM=v, dout_LGTM=dout, e_LGT=e, inverse_LGT=inverse, low_ET=first,
        up_ET=end, dk_LTD=dk, dv_LTM=dv,
    )  # fmt: skip
    dq, dk, dv = (in_order(x, order, back=True) for x in (dq, dk, dv))
    return dq, dk, dv


def in_order(x: Tensor, order: Tensor, back: bool = False) -> Tensor:
    """Return x (lanes, ..., T, width) with tokens in each batch entry's order, or undo it."""
    y, (tokens, width) = torch.empty_like(x), x.shape[-2:]
    rows = x.numel() // (tokens * width)
    _permuted(tokens, width, rows, rows // len(order), back)(x_LTW=x, y_LTW=y, order_ET=order)
    return y


@lru_cache(maxsize=256)
def _permuted(tokens: int, width: int, rows: int, heads: int, back: bool) -> Launcher:
    block = 4096 // width
    return Launcher(
        kernels.permuted, (cut(tokens, block), rows), plans.PLAIN,
        T=tokens, heads=heads, WIDTH=width, BLOCK=block, BACK=back,
    )  # fmt: skip


@lru_cache(maxsize=256)
def _outputs(call: KernelCall, batch: int, keep: bool) -> Launcher:
    sizes, launch = call.sizes, call.plan.outputs[1]
    grid = (cut(sizes.queries, launch.queries), sizes.lanes * sizes.group)
    return Launcher(
        kernels.document_outputs, grid, launch, offset=call.similarity.offset or None, KEEP=keep,
        **_numbers(call, batch, launch),
    )  # fmt: skip


@lru_cache(maxsize=256)
def _query_gradients(call: KernelCall, batch: int) -> Launcher:
    sizes, launch = call.sizes, call.plan.by_query[1]
    grid = (cut(sizes.queries, launch.queries), sizes.lanes * sizes.group)
    numbers = _numbers(call, batch, launch)
    return Launcher(kernels.document_query_gradients, grid, launch, **numbers)


@lru_cache(maxsize=256)
def _key_gradients(call: KernelCall, batch: int) -> Launcher:
    launch = call.plan.by_key[1]
    return Launcher(
        kernels.document_key_gradients, (cut(call.sizes.keys, launch.keys), call.sizes.lanes),
        launch, offset=call.similarity.offset or None, **_numbers(call, batch, launch),
    )  # fmt: skip


def _numbers(call: KernelCall, batch: int, launch: plans.Launch) -> dict[str, Any]:
    """Return the numbers that all kernels of documents take."""
    sizes, similarity = call.sizes, call.similarity
    return {
        "T": sizes.queries, "heads": sizes.lanes // batch, "rise": similarity.rise,
        "shift": similarity.shift, "G": sizes.group, "D": sizes.key_dim, "M": sizes.value_dim,
        "BQ": launch.queries, "BK": launch.keys, "PRECISION": call.precision,
    }  # fmt: skip
