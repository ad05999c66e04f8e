"""The kernels in order: one pass forward, one backward. Nothing here is differentiated.

    forward    sums of keys and values by chunk, running sums over chunks, then the outputs
    backward   gradients of queries by those sums; sums of queries and the gradients of outputs,
               running from the last chunk to the first; then gradients of keys and values

Where all keys are near there are no sums. The equations are in `kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.backends.triton.buffers import empty_outputs
from querykey.backends.triton.call import KernelCall, SumLaunches, kernel_call


class Past(NamedTuple):
    """The sums of all tokens before the first, per lane, and how many tokens there were."""

    square: Tensor
    moments: Tensor
    count: Tensor


class Results(NamedTuple):
    """The outputs (lanes, group, T, M), and what their gradients need.

    residue: what rounding took from the outputs, or None; inverse: 1/z (lanes, group, T); square
    and moments: the sums of keys, None where all are near.
    """

    out: Tensor
    residue: Tensor | None
    inverse: Tensor
    square: Tensor | None
    moments: Tensor | None


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
) -> Results:
    """Return the outputs; `keep` says that gradients will be asked for."""
    call = kernel_call(q, k, v, numbers, causal=causal, keep=keep)
    return run_forward(call, q, k, v, real, keep)[0]


def run_forward(
    call: KernelCall,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    keep: bool,
    past: Past | None = None,
) -> tuple[Results, tuple[Tensor, ...]]:
    """Return the results, and the sums of the past and all tokens where there is a past."""
    out, residue, inverse = empty_outputs(q, v, keep)
    q_blocks = square = moments = None
    after: tuple[Tensor, ...] = ()
    if call.far:
        k_blocks = transpose(call.key_sums, k)
        square, moments, after = sum_up(call, call.key_sums, k, k_blocks, v, None, past)
        q_blocks = transpose(call.query_sums, q)
    start = call.outputs if residue is None else call.outputs_and_residue
    start(
        q_LGTD=q, q_LGBDS=q_blocks, k_LND=k, v_LNM=v, square_LCPDM=square, moments_LCR=moments,
        real_LN=None if real is None else real.to(torch.uint8).contiguous(),
        count_LC=far_counts(call, real, past), out_LGTM=out, residue_LGTM=residue,
        inverse_LGT=inverse,
    )  # fmt: skip
    return Results(out, residue, inverse, square, moments), after


def backward(
    dout: Tensor, results: Results, q: Tensor, k: Tensor, v: Tensor, numbers: Sequence[float],
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of q, k and v, given that of the outputs."""
    call = kernel_call(q, k, v, numbers, causal=causal, keep=True)
    e, g, a = scale_gradients(call, dout, results)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    blocks = transpose(call.query_sums, q) if call.far else None
    call.query_gradients(
        q_LGTD=q, q_LGBDS=blocks, k_LND=k, v_LNM=v, dout_LGTM=dout, e_LGT=e,
        inverse_LGT=results.inverse, square_LCPDM=results.square, moments_LCR=results.moments,
        dq_LGTD=dq,
    )  # fmt: skip
    square = moments = None
    if g is not None:
        square, moments, _ = sum_up(call, call.query_sums, q, blocks, g, a)
        del blocks, g  # before the next
        blocks = transpose(call.key_sums, k)
    call.key_gradients(
        q_LGTD=q, k_LND=k, k_LBDS=blocks, v_LNM=v, dout_LGTM=dout, e_LGT=e,
        inverse_LGT=results.inverse, square_LCPDM=square, moments_LCR=moments, dk_LND=dk,
        dv_LNM=dv,
    )  # fmt: skip
    return dq, dk, dv


def scale_gradients(
    call: KernelCall, dout: Tensor, results: Results
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return e of `kernels.gradients`, and g and a where queries are summed up."""
    e = torch.empty_like(results.inverse)
    g = torch.empty_like(results.out) if call.far else None
    a = torch.empty_like(e) if call.far else None
    call.scaled_gradients(
        dout_LGTM=dout, out_LGTM=results.out, residue_LGTM=results.residue,
        inverse_LGT=results.inverse, e_LGT=e, g_LGTM=g, a_LGT=a,
    )  # fmt: skip
    return e, g, a


def transpose(launches: SumLaunches, x: Tensor) -> Tensor:
    """Return x (lanes, group, T, D) in blocks with tokens last, (lanes, group, blocks, D, step)."""
    blocks = x.new_empty(launches.block_shape)
    launches.transposed(x_LGTD=x, x_LGBDS=blocks)
    return blocks


def sum_up(
    call: KernelCall,
    launches: SumLaunches,
    x: Tensor,
    x_blocks: Tensor | None,
    y: Tensor,
    weights: Tensor | None,
    past: Past | None = None,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return the running sums of x (lanes, group, T, D) and y (..., T, M): square and moments.

    Per chunk over all before it, or after it if there are weights; without order over all. Third,
    where there is a past, the sums of it and all tokens.
    """
    tables = (call.sizes.lanes, launches.chunks)
    square = x.new_empty((*tables, *launches.square_shape))
    moments = x.new_empty((*tables, launches.moments_size), dtype=torch.float32)
    launches.chunk_sums(
        x_LGTD=x, x_LGBDS=x_blocks, y_LGTM=y, w_LGT=weights, square_LCPDM=square,
        moments_LCR=moments,
    )  # fmt: skip
    after = () if past is None else (torch.empty_like(past.square), torch.empty_like(past.moments))
    launches.running_sums(
        square_LCE=square, moments_LCR=moments,
        square_before_LE=past.square if past else None,
        moments_before_LR=past.moments if past else None,
        square_after_LE=after[0] if after else None,
        moments_after_LR=after[1] if after else None,
    )  # fmt: skip
    if not call.causal:
        square, moments = square[:, :1].contiguous(), moments[:, :1].contiguous()
    return square, moments, after


def far_counts(call: KernelCall, real: Tensor | None, past: Past | None) -> Tensor | None:
    """Count the real keys before each chunk, or all without order; None where that is plain."""
    if not call.far or (real is None and past is None):
        return None
    chunk = call.plan.chunk
    if real is None:
        assert past is not None
        counts = torch.arange(0, call.sizes.keys, chunk, device=past.count.device)
    elif call.causal:
        counts = F.pad(real.cumsum(-1)[:, chunk - 1 : -1 : chunk], (1, 0))
    else:
        counts = real.sum(-1, keepdim=True)
    return (counts if past is None else counts + past.count[:, None]).int()
