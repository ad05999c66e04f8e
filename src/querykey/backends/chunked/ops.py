"""Chunked kernel attention as two operators, with their shapes and their derivative.

Lanes fold batch and key heads: q (lanes, group, T, D), k (lanes, S, D), v (lanes, S, M),
real and decay (lanes, S), sums of the past (lanes, width, M + 1) by the feature map's own phi.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from querykey.backends.chunked import flops
from querykey.backends.chunked.decay import decay_gradient
from querykey.backends.chunked.features import row_count
from querykey.backends.chunked.pairs import Pairs
from querykey.backends.chunked.panel import Lanes, Panel
from querykey.backends.chunked.passes import ChunkedCall, forward_pass, key_pass, query_pass
from querykey.backends.operators import no_second_derivative, operator

# Keys per feature up to which causal pairs were faster than sums, measured at head sizes 16 to 64:
# below, they take a third to an eighth of the time.
PAIRS = 2.5
# Keys up to which a GPU meets pairs in any case: its sums in float32 err two to six times as much.
PAIRS_ON_GPU = 4096


def pairs_are_better(
    q: Tensor, k: Tensor, kind: str, numbers: Sequence[float], causal: bool
) -> bool:
    """Return whether to meet pairs for q (lanes, group, T, D), k (lanes, S, D), in place of sums.

    Few pairs are faster, and on a GPU they are more exact.
    """
    keys = k.shape[1] if causal else 2 * k.shape[1]  # half of the causal pairs are hidden
    few = keys <= PAIRS * row_count(q.shape[-1], kind, numbers)
    on_gpu = q.device.type == "cuda" and k.shape[1] <= PAIRS_ON_GPU
    return kind == "series" and (few or on_gpu)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    decay: Tensor | None,
    sums: Tensor | None,
    kind: str,
    numbers: Sequence[float],
    causal: bool,
    start: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return out (lanes, group, T, M), 1/d (lanes, group, T), and the sums if they are to keep."""
    out, d, after = _empty_results(q, k, v, real, decay, sums, kind, numbers, causal, start, keep)
    if sums is None and not keep and pairs_are_better(q, k, kind, numbers, causal):
        with torch.autocast(q.device.type, enabled=False):
            Pairs((q, k, v, real, decay), numbers, causal, start).forward(out, d)
        return (*_divided(out, d), after)
    call = ChunkedCall((q, k, v, real, decay), kind, numbers, causal, start)
    out[:, :, : call.blind], d[:, :, : call.blind] = 0, 0
    plan = call.plan if keep else call.until_last_query

    def work(at: slice, panel: Panel, lanes: Lanes) -> None:
        total = call.sums_before(sums, panel, at)
        forward_pass(panel, plan, lanes, total, out[at].permute(0, 3, 1, 2), d[at])
        if keep:
            after[at] = call.layout.to_phi(total)

    call.run(work)
    return (*_divided(out, d), after)


def _divided(n: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Return n / d and 1 / d, zeros where d vanishes."""
    # Below the smallest normal number 1 / d can be infinite.
    inverse = d.reciprocal().masked_fill_(d.abs() < torch.finfo(d.dtype).tiny, 0)
    return n.mul_(inverse[..., None]), inverse


def _empty_results(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    decay: Tensor | None,
    sums: Tensor | None,
    kind: str,
    numbers: Sequence[float],
    causal: bool,
    start: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(q.dtype, torch.float32)
    width = 0 if sums is None or not keep else sums.shape[1]
    return (
        q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype),
        q.new_empty(q.shape[:-1], dtype=dtype),
        q.new_empty((k.shape[0], width, v.shape[-1] + 1), dtype=dtype),
    )


def _backward(
    g: Tensor | None,
    g_after: Tensor | None,
    out: Tensor,
    inverse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    decay: Tensor | None,
    sums: Tensor | None,
    kind: str,
    numbers: Sequence[float],
    causal: bool,
    start: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v, decay and sums; the last two are empty without them."""
    dq, dk, dv, ddecay, dsums = _empty_gradients(
        g, g_after, out, inverse, q, k, v, real, decay, sums, kind, numbers, causal, start
    )
    g = torch.zeros_like(out) if g is None else g
    pulls = None if decay is None else inverse.new_zeros(decay.shape)
    if sums is None and g_after is None and pairs_are_better(q, k, kind, numbers, causal):
        pairs = Pairs((q, k, v, real, decay), numbers, causal, start)
        with torch.autocast(q.device.type, enabled=False):
            dk, dv = pairs.backward(g, inverse, dq, pulls)
        if pulls is not None:
            ddecay.copy_(decay_gradient(pulls, None, real))
        return dq, *_hidden(dk.to(k.dtype), dv.to(v.dtype), real), ddecay, dsums
    call = ChunkedCall((q, k, v, real, decay), kind, numbers, causal, start)
    dq[:, :, : call.blind] = 0

    def work(at: slice, panel: Panel, lanes: Lanes) -> None:
        panel.track()
        minus_go = (g[at] * out[at]).sum(-1).neg_()
        lanes.gradient = (g[at].permute(0, 3, 1, 2), minus_go, inverse[at])
        total = call.sums_before(sums, panel, at)
        query_pass(panel, call.until_last_query, lanes, total, dq[at].permute(0, 3, 1, 2))
        more = None if g_after is None else call.layout.to_phi_back(g_after[at])
        to_keys = (dk[at].mT, dv[at].mT, None if pulls is None else pulls[at])
        key_pass(panel, call.plan, lanes, total.zero_(), more, *to_keys)
        if sums is not None:
            last = panel.ready(total, more, out=panel.sums_of[0])
            dsums[at] = call.layout.to_rows_back(last)

    call.run(work)
    if pulls is not None:
        before = None if sums is None else (sums * dsums).sum((1, 2))
        ddecay.copy_(decay_gradient(pulls, before, real))
    return dq, *_hidden(dk, dv, real), ddecay, dsums


def _hidden(dk: Tensor, dv: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gradients with zeros for keys that are not real."""
    if real is None:
        return dk, dv.contiguous()
    return dk.masked_fill(~real[..., None], 0), dv.masked_fill(~real[..., None], 0)


def _empty_gradients(
    g: Tensor | None,
    g_after: Tensor | None,
    out: Tensor,
    inverse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    decay: Tensor | None,
    sums: Tensor | None,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    ddecay, dsums = (
        inverse.new_empty(0) if x is None else x.new_empty(x.shape) for x in (decay, sums)
    )
    return dq, dk, dv, ddecay, dsums


def _remember(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, real, decay, sums, *ctx.rest, ctx.keep = inputs
    ctx.save_for_backward(output[0], output[1], q, k, v, real, decay, sums)
    ctx.set_materialize_grads(False)


def _derive(ctx: Any, g: Tensor | None, _: Tensor | None, g_after: Tensor | None) -> tuple:
    out, inverse, q, k, v, real, decay, sums = ctx.saved_tensors
    # Without sums to keep, the third result is empty and so may be its gradient.
    g_after = g_after if ctx.keep else None
    dq, dk, dv, ddecay, dsums = chunked_backward(
        g, g_after, out, inverse, q, k, v, real, decay, sums, *ctx.rest
    )
    ddecay, dsums = None if decay is None else ddecay, None if sums is None else dsums
    return dq, dk, dv, None, ddecay, dsums, *(None,) * 5


chunked_forward = operator("chunked_forward", _forward, _empty_results)
chunked_backward = operator("chunked_backward", _backward, _empty_gradients)
torch.library.register_autograd("querykey::chunked_forward", _derive, setup_context=_remember)
torch.library.register_autograd("querykey::chunked_backward", no_second_derivative)
register_flop_formula(torch.ops.querykey.chunked_forward)(flops.forward)
register_flop_formula(torch.ops.querykey.chunked_backward)(flops.backward)
