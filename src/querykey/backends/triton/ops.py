"""The GPU kernels as operators of torch, with their shapes, derivatives and FLOPs.

Lanes fold batch and key heads: q (lanes, group, T, D), k (lanes, N, D), v (lanes, N, M), all
contiguous and of the sizes that `plans` lists; `real` (lanes, N) is False for padding, whose k, v
and decay are zeros; decay (lanes, N), float32, holds logarithms of gates. `numbers` are the
kernel's scale and c0, c1, c2 of the similarity c0 + c1 d + c2 d^2. The kernels need triton, which
only Linux has: they are imported when one is first run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import register_autograd
from torch.utils.flop_counter import register_flop_formula

from querykey.backends.operators import no_second_derivative, operator
from querykey.backends.triton import flops
from querykey.backends.triton.buffers import empty_outputs, empty_sums
from querykey.backends.triton.intervals import Intervals
from querykey.backends.triton.plans import plan


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    decay: Tensor | None,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return out (lanes, group, T, M), residue, 1/z, square, moments, count and table of gates.

    All but the first are for gradients, which are differences from the output. The residue, what
    rounding took from the output, is empty if not to keep or in float32; the sums are empty where
    all keys are near or not to keep, the count also where keys have no weights.
    """
    from querykey.backends.triton import passes

    with torch.cuda.device_of(q):
        results = passes.forward(q, k, v, real, decay, numbers, causal, keep)
    out, residue, inverse, *more = results
    more = more if keep else [None] * len(more)
    return out, *(or_empty(x, q) for x in (residue, inverse, *more))


def or_empty(x: Tensor | None, like: Tensor) -> Tensor:
    """Return x, or an empty tensor in its place, since operators return tensors."""
    return like.new_empty(0) if x is None else x


def _empty_results(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    decay: Tensor | None,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return tensors shaped like the results of `triton_forward`."""
    out, residue, inverse = empty_outputs(q, v, keep)
    residue = or_empty(residue, q)
    table = q.new_empty(0)
    if keep and decay is not None:
        table = decay.new_empty((decay.shape[0], 5, decay.shape[1]))
    if keep and plan(q.shape[-1], v.shape[-1]).far(q.shape[2], k.shape[1], keep):
        weighted = real is not None or decay is not None
        return out, residue, inverse, *empty_sums(q, v, causal, weighted), table
    return out, residue, inverse, *(q.new_empty(0) for _ in range(3)), table


def _backward(
    g: Tensor,
    out: Tensor,
    residue: Tensor,
    inverse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    square: Tensor,
    moments: Tensor,
    count: Tensor,
    gates: Tensor,
    real: Tensor | None,
    numbers: Sequence[float],
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and decay, by what `triton_forward` has kept.

    The last is empty where there is no decay.
    """
    from querykey.backends.triton import passes

    results = passes.Results(out, *map(_or_none, (residue, inverse, square, moments, count, gates)))
    with torch.cuda.device_of(q):
        *three, for_decay = passes.backward(g.contiguous(), results, q, k, v, real, numbers, causal)
    return *three, or_empty(for_decay, inverse)


def _or_none(x: Tensor) -> Tensor | None:
    """Return x, or None for the empty tensor that stands for nothing."""
    return x if x.numel() else None


def _empty_gradients(
    g: Tensor,
    out: Tensor,
    residue: Tensor,
    inverse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tensors shaped like the gradients of q, k and v."""
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _empty_four(*given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return tensors shaped like the results of `_backward`, whose arguments are given."""
    k, gates = given[5], given[10]
    for_decay = k.new_empty(k.shape[:-1] if gates.numel() else 0, dtype=torch.float32)
    return *_empty_gradients(*given), for_decay


def _documents_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: Tensor,
    table: Tensor,
    facts: Tensor,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return out, residue, 1/z, square and moments as `triton_forward` does, for documents.

    order, table and facts are those of `intervals`; 1/z is in that order.
    """
    from querykey.backends.triton import documents

    found = Intervals(order, table, facts)
    with torch.cuda.device_of(q):
        results = documents.forward(q, k, v, found, numbers, causal, keep)
    out, residue, inverse, *sums = results[:5]
    sums = sums if keep else [None] * len(sums)
    return out, or_empty(residue, q), inverse, *(or_empty(x, q) for x in sums)


def _empty_documents(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: Tensor,
    table: Tensor,
    facts: Tensor,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return tensors shaped like the results of `triton_documents_forward`."""
    out, residue, inverse = empty_outputs(q, v, keep)
    square, moments = q.new_empty(0), q.new_empty(0)
    if causal and keep and plan(q.shape[-1], v.shape[-1]).far(q.shape[2], k.shape[1], keep):
        square, moments, _ = empty_sums(q, v, causal, weighted=False)
    return out, or_empty(residue, q), inverse, square, moments


def _documents_backward(
    g: Tensor,
    out: Tensor,
    residue: Tensor,
    inverse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    square: Tensor,
    moments: Tensor,
    order: Tensor,
    table: Tensor,
    facts: Tensor,
    numbers: Sequence[float],
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, by what `triton_documents_forward` has kept."""
    from querykey.backends.triton import documents, passes

    results = passes.Results(out, _or_none(residue), inverse, _or_none(square), _or_none(moments))
    found = Intervals(order, table, facts)
    with torch.cuda.device_of(q):
        return documents.backward(g.contiguous(), results, q, k, v, found, numbers, causal)


def _decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    decay: Tensor | None,
    outer: Tensor,
    total: Tensor,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output (lanes, group, M) of one token, and the sums of a state after it."""
    from querykey.backends.triton import recurrence

    with torch.cuda.device_of(q):
        q, k, v, outer, total = (x.contiguous() for x in (q, k, v, outer, total))
        return recurrence.decode(q, k, v, real, decay, outer, total, numbers)


def _extend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    decay: Tensor | None,
    outer: Tensor,
    total: Tensor,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs (lanes, group, T, M) of many tokens, and the sums after them."""
    from querykey.backends.triton import recurrence

    with torch.cuda.device_of(q):
        return recurrence.extend(q, k, v, real, decay, outer, total, numbers)


def _empty_state(
    q: Tensor, k: Tensor, v: Tensor, real: Any, decay: Any, outer: Tensor, total: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tensors shaped like outputs and the two sums of a state."""
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return out, outer.new_empty(outer.shape), total.new_empty(total.shape)


def _remember(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    q, k, v, real, _, *ctx.rest, _ = inputs
    ctx.save_for_backward(*output[:3], q, k, v, *output[3:], real)
    ctx.set_materialize_grads(False)  # zeros for what is kept would be as large as it


def _derive(ctx: Any, g: Tensor, *_: None) -> tuple:
    *three, for_decay = triton_backward(g, *ctx.saved_tensors, *ctx.rest)
    return *three, None, for_decay if for_decay.numel() else None, *(None,) * 3


def _remember_documents(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    q, k, v, order, table, facts, *ctx.rest, _ = inputs
    ctx.save_for_backward(*output[:3], q, k, v, *output[3:], order, table, facts)
    ctx.set_materialize_grads(False)


def _derive_documents(ctx: Any, g: Tensor, *_: None) -> tuple:
    return *documents_backward(g, *ctx.saved_tensors, *ctx.rest), *(None,) * 6


triton_forward = operator("triton_forward", _forward, _empty_results)
triton_backward = operator("triton_backward", _backward, _empty_four)
documents_forward = operator("triton_documents_forward", _documents_forward, _empty_documents)
documents_backward = operator("triton_documents_backward", _documents_backward, _empty_gradients)
triton_decode = operator("triton_decode", _decode, _empty_state)
triton_extend = operator("triton_extend", _extend, _empty_state)
register_autograd("querykey::triton_forward", _derive, setup_context=_remember)
register_autograd("querykey::triton_backward", no_second_derivative)
register_autograd(
    "querykey::triton_documents_forward", _derive_documents, setup_context=_remember_documents
)
register_autograd("querykey::triton_documents_backward", no_second_derivative)
register_flop_formula(torch.ops.querykey.triton_forward)(flops.forward)
register_flop_formula(torch.ops.querykey.triton_backward)(flops.backward)
register_flop_formula(torch.ops.querykey.triton_documents_forward)(flops.documents_forward)
register_flop_formula(torch.ops.querykey.triton_documents_backward)(flops.documents_backward)
register_flop_formula(torch.ops.querykey.triton_decode)(flops.decode)
register_flop_formula(torch.ops.querykey.triton_extend)(flops.extend)
