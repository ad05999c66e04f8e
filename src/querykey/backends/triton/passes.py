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

from querykey.backends.triton.buffers import empty_outputs
from querykey.backends.triton.call import KernelCall, SumLaunches, kernel_call
from querykey.backends.triton.launches import Launcher


class Sums(NamedTuple):
    """Sums of tokens, as `kernels.sums` says, by chunk or of all that came before (or after) one.

    A count, the sum of weights, is there where tokens have weights.
    """

    square: Tensor
    moments: Tensor
    count: Tensor | None


class GateTables(NamedTuple):
    """The table of `kernels.gates` (lanes, 5, N), and what is left of keys at the chunk's end."""

    table: Tensor
    weights: Tensor


class Results(NamedTuple):
    """The outputs (lanes, group, T, M), and what their gradients need.

    residue: what rounding took from the outputs, or None; inverse: 1/z (lanes, group, T); square,
    moments and count: the sums of keys, None where all are near; gates: the table of gates, if any.
    """

    out: Tensor
    residue: Tensor | None
    inverse: Tensor
    square: Tensor | None = None
    moments: Tensor | None = None
    count: Tensor | None = None
    gates: Tensor | None = None


class Tokens(NamedTuple):
    """Tokens x (lanes, group, T, D) and y (..., T, M) to sum up, and their weights (..., T)."""

    x: Tensor
    blocks: Tensor  # of x, transposed
    y: Tensor
    weights: Tensor | None
    x_sorted: Tensor | None = None  # copies in the order of documents, if a token has moved
    y_sorted: Tensor | None = None


class Places(NamedTuple):
    """Where documents stand once each is in one piece, as `kernels.intervals` says."""

    low: Tensor
    end: Tensor
    facts: Tensor


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    decay: Tensor | None,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
) -> Results:
    """Return the outputs; `keep` says that gradients will be asked for."""
    call = kernel_call(q, k, v, numbers, causal=causal, keep=keep)
    return run_forward(call, q, k, v, real, decay, keep)[0]


def run_forward(
    call: KernelCall,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    decay: Tensor | None,
    keep: bool,
    past: Sums | None = None,
) -> tuple[Results, Sums | None]:
    """Return the results, and the sums of the past and all tokens where there is a past.

    The past has one table per lane, (lanes, ...), and a count.
    """
    out, residue, inverse = empty_outputs(q, v, keep)
    real = None if real is None else real.to(torch.uint8).contiguous()
    gates, q_blocks, sums, after = gates_of(call, decay, real), None, None, None
    if call.far:
        sums, after = sums_of_keys(call, k, v, real, gates, past)
        q_blocks = transpose(call.query_sums, q)
    square, moments, count = sums or (None, None, None)
    start = call.outputs if residue is None else call.outputs_and_residue
    start(
        q_LGTD=q, q_LGBDS=q_blocks, k_LND=k, v_LNM=v, square_LCPDM=square, moments_LCR=moments,
        real_LN=real, count_LC=count, gates_L5N=gates.table if gates else None, out_LGTM=out,
        residue_LGTM=residue, inverse_LGT=inverse,
    )  # fmt: skip
    results = Results(out, residue, inverse, square, moments, count, gates.table if gates else None)
    return results, after


def gates_of(call: KernelCall, decay: Tensor | None, real: Tensor | None) -> GateTables | None:
    """Return what the kernels need of the gates of keys, decay (lanes, N), if they have any."""
    if decay is None:
        return None
    gates = GateTables(decay.new_empty((len(decay), 5, decay.shape[1])), torch.empty_like(decay))
    call.gate_tables(
        decay_LN=decay, real_LN=real, gates_L5N=gates.table, weights_LN=gates.weights
    )  # fmt: skip
    return gates


def sums_of_keys(
    call: KernelCall,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    gates: GateTables | None,
    past: Sums | None,
) -> tuple[Sums, Sums | None]:
    """Return the sums of keys before each chunk, and the sums after all where there is a past."""
    weights = None
    if gates is not None:
        weights, y = gates.weights, torch.empty_like(v)
        call.scaled_values(v_LNM=v, weights_LN=weights, scaled_LNM=y)
    else:
        y = v
        if real is not None:
            weights = real.float()
        elif past is not None:
            weights = k.new_ones(k.shape[:-1], dtype=torch.float32)
    launches = call.key_sums if weights is None else call.weighted_key_sums
    tokens = Tokens(k, transpose(launches, k), y, weights)
    return sum_up(call, launches, tokens, gates.table if gates else None, past)


def backward(
    dout: Tensor,
    results: Results,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    numbers: Sequence[float],
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of q, k, v and decay, given that of the outputs."""
    gates, gated = results.gates, results.gates is not None
    call = kernel_call(q, k, v, numbers, causal=causal, keep=True, gated=gated)
    seen = real.to(torch.uint8).contiguous() if gated and real is not None else None
    e = torch.empty_like(results.inverse)
    g, a = scale_gradients(call.scaled_gradients, dout, results, e) if call.far else (None, None)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    by_query = torch.empty_like(e) if gated else None
    by_key = k.new_empty(k.shape[:-1], dtype=torch.float32) if gated else None
    blocks = transpose(call.query_sums, q) if call.far else None
    call.query_gradients(
        q_LGTD=q, q_LGBDS=blocks, k_LND=k, v_LNM=v, dout_LGTM=dout, e_LGT=e,
        inverse_LGT=results.inverse, square_LCPDM=results.square, moments_LCR=results.moments,
        real_LN=seen, count_LC=results.count, gates_L5N=gates, out_LGTM=results.out,
        residue_LGTM=results.residue, dq_LGTD=dq, total_LGT=by_query,
    )  # fmt: skip
    square = moments = count = borders = None
    if g is not None and a is not None:
        launches, keys = call.query_sums, None
        if gated:
            keys = Sums(results.square, results.moments, results.count)
            shape = (call.sizes.lanes, launches.parts, launches.chunks)
            borders = q.new_empty(shape, dtype=torch.float32)
        tokens = Tokens(q, blocks, g, a)
        (square, moments, count), _ = sum_up(
            call, launches, tokens, gates, keys=keys, borders=borders
        )
        del blocks, g, tokens  # before the next
        blocks = transpose(call.key_sums, k)
    call.key_gradients(
        q_LGTD=q, k_LND=k, k_LBDS=blocks, v_LNM=v, dout_LGTM=dout, e_LGT=e,
        inverse_LGT=results.inverse, square_LCPDM=square, moments_LCR=moments, count_LC=count,
        gates_L5N=gates, dk_LND=dk, dv_LNM=dv, total_LN=by_key,
    )  # fmt: skip
    if by_key is None:
        return dq, dk, dv, None
    for_gates = by_key.new_empty((call.sizes.lanes, call.sizes.keys))
    call.gate_gradients(
        by_query_LGN=by_query, by_key_LN=by_key, borders_LAC=borders, real_LN=seen,
        gradient_LN=for_gates,
    )  # fmt: skip
    return dq, dk, dv, for_gates


def scale_gradients(
    start: Launcher, dout: Tensor, results: Results, e: Tensor, order: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Write e of `kernels.gradients`, and return g and a, by which queries are summed up."""
    g, a = torch.empty_like(results.out), torch.empty_like(e)
    start(
        dout_LGTM=dout, out_LGTM=results.out, residue_LGTM=results.residue,
        inverse_LGT=results.inverse, gates_L5N=results.gates, order_ET=order, e_LGT=e, g_LGTM=g,
        a_LGT=a,
    )  # fmt: skip
    return g, a


def transpose(launches: SumLaunches, x: Tensor) -> Tensor:
    """Return x (lanes, group, T, D) in blocks with tokens last, (lanes, group, blocks, D, step)."""
    blocks = x.new_empty(launches.block_shape)
    launches.transposed(x_LGTD=x, x_LGBDS=blocks)
    return blocks


def sum_up(
    call: KernelCall,
    launches: SumLaunches,
    tokens: Tokens,
    gates: Tensor | None,
    past: Sums | None = None,
    keys: Sums | None = None,
    borders: Tensor | None = None,
    places: Places | None = None,
) -> tuple[Sums, Sums | None]:
    """Return the running sums of tokens, per chunk over all before it, or after it for queries.

    Without order they are over all. Second, where there is a past, the sums of it and all tokens.
    Where there are `keys`, the sums of keys before each chunk, `borders` is written.
    """
    x, weights = tokens.x, tokens.weights
    tables = (call.sizes.lanes, launches.chunks)
    square = x.new_empty((*tables, *launches.square_shape))
    moments = x.new_empty((*tables, launches.moments_size), dtype=torch.float32)
    count = None if weights is None else x.new_empty(tables, dtype=torch.float32)
    low, end, facts = places or (None, None, None)
    launches.chunk_sums(
        x_LGTD=x, x_LGBDS=tokens.blocks, y_LGTM=tokens.y, w_LGT=weights, square_LCPDM=square,
        moments_LCR=moments, count_LC=count, x_sorted_LGTD=tokens.x_sorted,
        y_sorted_LGTM=tokens.y_sorted, low_ET=low, end_ET=end, facts_E2=facts,
    )  # fmt: skip
    before = past or Sums(None, None, None)
    after = None if past is None else Sums(*map(torch.empty_like, past))
    into = after or Sums(None, None, None)
    keys = keys or Sums(None, None, None)
    launches.running_sums(
        square_LCE=square, moments_LCR=moments, count_LC=count,
        square_before_LE=before.square, moments_before_LR=before.moments,
        count_before_L=before.count, square_after_LE=into.square, moments_after_LR=into.moments,
        count_after_L=into.count, gates_L5N=gates,
        other_square_LCE=keys.square, other_moments_LCR=keys.moments, other_count_LC=keys.count,
        borders_LAC=borders, low_ET=low, end_ET=end, facts_E2=facts,
    )  # fmt: skip
    if not call.causal:
        square, moments = square[:, :1].contiguous(), moments[:, :1].contiguous()
        count = None if count is None else count[:, :1].contiguous()
    return Sums(square, moments, count), after
