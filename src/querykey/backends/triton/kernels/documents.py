"""Attention in which each query sees the keys of its own document, all or those up to itself.

Tokens are sorted by document, as `intervals` says, and the axis T counts places; queries, outputs
and their gradients stay where they are and are looked up. A long document in causal order goes
through sums, one table a chunk, as all tokens do without documents; what a query meets pair by pair
then begins with its chunk. Of short ones every pair is met. Tiles outside of what a block of
queries or keys sees are skipped. Where SPLIT, blocks that sums have a part in and those that none
has are two launches, FAR and not, of which each leaves the other's blocks alone: in one program,
products would wait for each other. The axis E counts batch entries, whose `heads` lanes have the
same documents. The equations are those of `outputs` and `gradients`.
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from querykey.backends.triton.kernels.gradients import (
    against_output,
    far_key_gradients,
    far_query_gradients,
)
from querykey.backends.triton.kernels.intervals import is_moved, longest
from querykey.backends.triton.kernels.outputs import far_outputs
from querykey.backends.triton.kernels.pairs import (
    add_key_gradients,
    add_outputs,
    add_query_gradients,
    load_tokens,
    write_outputs,
)


@triton.jit
def bounds(low, up, STEP: tl.constexpr):
    """Return where the tokens begin that some row sees, all rows see, all saw, none sees any more.

    In steps, but for the last; between the second and the third nothing is hidden.
    """
    end = tl.max(up, 0)
    first = tl.minimum(tl.cdiv(tl.max(low, 0), STEP) * STEP, end)
    return (
        tl.min(low, 0) // STEP * STEP,
        first,
        tl.maximum(tl.min(up, 0) // STEP * STEP, first),
        end,
    )


@triton.jit
def is_far(low, end, begin, longest_near):
    """Return 1 for queries of long documents that come from before the chunk that begins there."""
    return ((low < begin) & (end - low > longest_near)).to(tl.int32)


@triton.jit
def document_outputs(
    q_LGTD, q_LGBDS, k_LTD, v_LTM, k_sorted_LTD, v_sorted_LTM, square_LCPDM, moments_LCR,
    order_ET, low_ET, end_ET, seen_ET, real_ET, facts_E2, out_LGTM, residue_LGTM, inverse_LGT,
    T, heads, blocks, chunks, longest_near, rise, shift, offset,
    G: tl.constexpr, CHUNK: tl.constexpr, D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr, CAUSAL: tl.constexpr, SPLIT: tl.constexpr,
    FAR: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write out_i = n_i / z_i, its residue and 1 / z_i for BQ queries i of one row.

    n_i (M) = sum_j f(q_i.k_j) v_j and z_i = sum_j f(q_i.k_j) over the keys j of its document.
    """
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    lane = row // G
    e = lane // heads
    t = block * BQ + tl.arange(0, BQ)
    # Rows past the last do as the last one does, and are not written.
    at = tl.minimum(t, T - 1)
    place = tl.load(order_ET + e * T + at)
    low, end = tl.load(low_ET + e * T + at), tl.load(end_ET + e * T + at)
    up = at + 1 if CAUSAL else end
    moved = is_moved(facts_E2, e)
    k_TD = tl.where(moved, k_sorted_LTD, k_LTD) + lane * T * D
    v_TM = tl.where(moved, v_sorted_LTM, v_LTM) + lane * T * M
    if real_ET is not None:
        real_ET += e * T
    chunk = block * BQ // CHUNK
    far = is_far(low, end, chunk * CHUNK, longest_near)
    if SPLIT and (tl.max(far, 0) > 0) != FAR:
        return
    if FAR:
        d = tl.arange(0, D)
        begin = chunk * CHUNK
        # All such rows are of the document that comes from the chunk before.
        count = tl.load(seen_ET + e * T + begin)
        count -= tl.load(real_ET + begin) if real_ET is not None else 1
        square_LCPDM += (lane * chunks + chunk) * (3 * D // 4) * D * M
        moments_LCR += (lane * chunks + chunk) * (D * M + D * D + M + D)
        q_i = q_LGBDS + row * blocks * STEP * D + (t // STEP) * (STEP * D) + t % STEP
        q = tl.trans(tl.load(q_i[None, :] + d[:, None] * STEP))
        acc, z = far_outputs(
            q, q_i, square_LCPDM, moments_LCR, count, 1, rise, shift, offset, D=D, M=M, STEP=STEP,
            BQ=BQ, PRECISION=PRECISION,
        )  # fmt: skip
        acc, z = tl.where((far > 0)[:, None], acc, 0.0), tl.where(far > 0, z, 0.0)
        low = tl.where(far > 0, begin, low)
    else:
        q = load_tokens(q_LGTD + row * T * D, place, T, D)
        acc = tl.zeros((BQ, M), tl.float32)
        z = tl.zeros((BQ,), tl.float32)
    begin, first, last, end = bounds(low, up, BK)
    low, up = low[:, None], up[:, None]
    acc, z = add_outputs(
        acc, z, q, low, up, k_TD, v_TM, real_ET, None, 0.0, 0.0, begin=begin, end=first, N=T,
        rise=rise, shift=shift, offset=offset, D=D, M=M, BK=BK, GRANULE=BK, EDGE=True,
        PRECISION=PRECISION,
    )  # fmt: skip
    acc, z = add_outputs(
        acc, z, q, low, up, k_TD, v_TM, real_ET, None, 0.0, 0.0, begin=first, end=last, N=T,
        rise=rise, shift=shift, offset=offset, D=D, M=M, BK=BK, GRANULE=BK, EDGE=False,
        PRECISION=PRECISION,
    )  # fmt: skip
    acc, z = add_outputs(
        acc, z, q, low, up, k_TD, v_TM, real_ET, None, 0.0, 0.0, begin=last, end=end, N=T,
        rise=rise, shift=shift, offset=offset, D=D, M=M, BK=BK, GRANULE=BK, EDGE=True,
        PRECISION=PRECISION,
    )  # fmt: skip
    write_outputs(acc, z, out_LGTM, residue_LGTM, inverse_LGT, row, t, place, T, M, KEEP)


@triton.jit
def document_query_gradients(
    q_LGTD, q_LGBDS, k_LTD, v_LTM, k_sorted_LTD, v_sorted_LTM, dout_LGTM, e_LGT, inverse_LGT,
    square_LCPDM, moments_LCR, order_ET, low_ET, end_ET, facts_E2, out_LGTM, residue_LGTM, dq_LGTD,
    T, heads, blocks, chunks, longest_near, rise, shift, offset,
    G: tl.constexpr, CHUNK: tl.constexpr, D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr, CAUSAL: tl.constexpr, SPLIT: tl.constexpr,
    FAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dq_i (D) = sum_j w_ij f'(d_ij) k_j, j of its document, for BQ queries i of one row."""
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    lane = row // G
    document = lane // heads * T
    d = tl.arange(0, D)
    t = block * BQ + tl.arange(0, BQ)
    real = t < T
    at = tl.minimum(t, T - 1)
    place = tl.load(order_ET + document + at)
    low, end = tl.load(low_ET + document + at), tl.load(end_ET + document + at)
    up = at + 1 if CAUSAL else end
    moved = is_moved(facts_E2, lane // heads)
    k_TD = tl.where(moved, k_sorted_LTD, k_LTD) + lane * T * D
    v_TM = tl.where(moved, v_sorted_LTM, v_LTM) + lane * T * M
    chunk = block * BQ // CHUNK
    far = is_far(low, end, chunk * CHUNK, longest_near)
    if SPLIT and (tl.max(far, 0) > 0) != FAR:
        return
    o = load_tokens(dout_LGTM + row * T * M, place, T, M)
    if FAR:
        e = tl.load(e_LGT + row * T + t, mask=real, other=0.0)
    else:
        e = against_output(o, out_LGTM, residue_LGTM, row, place, T, M)
        tl.store(e_LGT + row * T + t, e, mask=real)
    if FAR:
        square_LCPDM += (lane * chunks + chunk) * (3 * D // 4) * D * M
        moments_LCR += (lane * chunks + chunk) * (D * M + D * D + M + D)
        q_i = q_LGBDS + row * blocks * STEP * D + (t // STEP) * (STEP * D) + t % STEP
        q = tl.trans(tl.load(q_i[None, :] + d[:, None] * STEP))
        acc, _linear, _z1 = far_query_gradients(
            q, o, e, q_i, square_LCPDM, moments_LCR, 1, rise, shift, D=D, M=M, STEP=STEP, BQ=BQ,
            PRECISION=PRECISION,
        )  # fmt: skip
        acc = tl.where((far > 0)[:, None], acc, 0.0)
        low = tl.where(far > 0, chunk * CHUNK, low)
    else:
        q = load_tokens(q_LGTD + row * T * D, place, T, D)
        acc = tl.zeros((BQ, D), tl.float32)
    z = tl.zeros((BQ,), tl.float32)  # what gates would get: there are none
    begin, first, last, end = bounds(low, up, BK)
    low, up = low[:, None], up[:, None]
    acc, _ = add_query_gradients(
        acc, z, q, o, e, low, up, k_TD, v_TM, None, None, 0.0, 0.0, begin=begin, end=first, N=T,
        rise=rise, shift=shift, offset=None, D=D, M=M, BK=BK, GRANULE=BK, EDGE=True,
        PRECISION=PRECISION,
    )  # fmt: skip
    acc, _ = add_query_gradients(
        acc, z, q, o, e, low, up, k_TD, v_TM, None, None, 0.0, 0.0, begin=first, end=last, N=T,
        rise=rise, shift=shift, offset=None, D=D, M=M, BK=BK, GRANULE=BK, EDGE=False,
        PRECISION=PRECISION,
    )  # fmt: skip
    acc, _ = add_query_gradients(
        acc, z, q, o, e, low, up, k_TD, v_TM, None, None, 0.0, 0.0, begin=last, end=end, N=T,
        rise=rise, shift=shift, offset=None, D=D, M=M, BK=BK, GRANULE=BK, EDGE=True,
        PRECISION=PRECISION,
    )  # fmt: skip
    inverse = tl.load(inverse_LGT + row * T + t, mask=real, other=0.0)
    acc *= 2 * rise * inverse[:, None]
    dq = dq_LGTD + row * T * D + place[:, None] * D + d[None, :]
    tl.store(dq, acc.to(dq_LGTD.dtype.element_ty), mask=real[:, None])


@triton.jit
def document_key_gradients(
    q_LGTD, k_LTD, k_LBDS, v_LTM, dout_LGTM, q_sorted_LGTD, dout_sorted_LGTM, e_LGT, inverse_LGT,
    square_LCPDM, moments_LCR, order_ET, low_ET, end_ET, facts_E2, dk_LTD, dv_LTM,
    T, heads, blocks, chunks, longest_near, rise, shift, offset,
    G: tl.constexpr, CHUNK: tl.constexpr, D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr, CAUSAL: tl.constexpr, SPLIT: tl.constexpr,
    FAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dk_j (D) = sum_i w_ij f'(d_ij) q_i, dv_j (M) = sum_i f(d_ij) o_i / z_i for BK keys j.

    Key j is seen by the queries of its document, in causal order by itself and those behind it.
    """
    block, lane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    document = lane // heads * T
    d, m = tl.arange(0, D), tl.arange(0, M)
    u = block * BK + tl.arange(0, BK)
    real = u < T
    at = tl.minimum(u, T - 1)
    place = tl.load(order_ET + document + at)
    low, up = tl.load(low_ET + document + at), tl.load(end_ET + document + at)
    at_k, at_v = place[:, None] * D + d[None, :], place[:, None] * M + m[None, :]
    moved = is_moved(facts_E2, lane // heads)
    q_LGTD = tl.where(moved, q_sorted_LGTD, q_LGTD)
    dout_LGTM = tl.where(moved, dout_sorted_LGTM, dout_LGTM)
    end = block * BK // CHUNK * CHUNK + CHUNK
    far = ((up > end) & (up - low > longest_near)).to(tl.int32)
    if SPLIT and (tl.max(far, 0) > 0) != FAR:
        return
    v = load_tokens(v_LTM + lane * T * M, place, T, M)
    if FAR:
        chunk = block * BK // CHUNK
        square_LCPDM += (lane * chunks + chunk) * (3 * D // 4) * D * M
        moments_LCR += (lane * chunks + chunk) * (D * M + D * D + M + D)
        k_i = k_LBDS + lane * blocks * STEP * D + (u // STEP) * (STEP * D) + u % STEP
        k = tl.trans(tl.load(k_i[None, :] + d[:, None] * STEP))
        dk, dv, _slope, _y1 = far_key_gradients(
            k, v, k_i, square_LCPDM, moments_LCR, 1, rise, shift, offset, D=D, M=M, STEP=STEP,
            BK=BK, PRECISION=PRECISION,
        )  # fmt: skip
        dk, dv = tl.where((far > 0)[:, None], dk, 0.0), tl.where((far > 0)[:, None], dv, 0.0)
        up = tl.where(far > 0, end, up)
    else:
        k = load_tokens(k_LTD + lane * T * D, place, T, D)
        dk = tl.zeros((BK, D), tl.float32)
        dv = tl.zeros((BK, M), tl.float32)
    z = tl.zeros((BK,), tl.float32)  # what gates would get: there are none
    if CAUSAL:
        low = at
    begin, first, last, end = bounds(low, up, BQ)
    low, up = low[:, None], up[:, None]
    for h in range(G):
        row = lane * G + h
        q_TD, dout_TM = q_LGTD + row * T * D, dout_LGTM + row * T * M
        e_T, inverse_T = e_LGT + row * T, inverse_LGT + row * T
        dk, dv, _ = add_key_gradients(
            dk, dv, z, k, v, low, up, q_TD, dout_TM, e_T, inverse_T, None, 0.0, 0.0, begin=begin,
            end=first, T=T, rise=rise, shift=shift, offset=offset, D=D, M=M, BQ=BQ, GRANULE=BQ,
            EDGE=True, PRECISION=PRECISION,
        )  # fmt: skip
        dk, dv, _ = add_key_gradients(
            dk, dv, z, k, v, low, up, q_TD, dout_TM, e_T, inverse_T, None, 0.0, 0.0, begin=first,
            end=last, T=T, rise=rise, shift=shift, offset=offset, D=D, M=M, BQ=BQ, GRANULE=BQ,
            EDGE=False, PRECISION=PRECISION,
        )  # fmt: skip
        dk, dv, _ = add_key_gradients(
            dk, dv, z, k, v, low, up, q_TD, dout_TM, e_T, inverse_T, None, 0.0, 0.0, begin=last,
            end=end, T=T, rise=rise, shift=shift, offset=offset, D=D, M=M, BQ=BQ, GRANULE=BQ,
            EDGE=True, PRECISION=PRECISION,
        )  # fmt: skip
    dk *= 2 * rise
    tl.store(dk_LTD + lane * T * D + at_k, dk.to(dk_LTD.dtype.element_ty), mask=real[:, None])
    tl.store(dv_LTM + lane * T * M + at_v, dv.to(dv_LTM.dtype.element_ty), mask=real[:, None])


@triton.jit
def sorted_copy(
    x_LTW, y_LTW, order_ET, facts_E2, T, heads, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Write y_t = x_order(t) for BLOCK tokens t of one of the `heads` rows of a batch entry.

    Nothing is written where no token has moved.
    """
    row = tl.program_id(1).to(tl.int64)
    e = row // heads
    if is_moved(facts_E2, e):
        t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        place = tl.load(order_ET + e * T + t, mask=t < T, other=0)
        at = tl.arange(0, WIDTH)[None, :]
        x = tl.load(x_LTW + row * T * WIDTH + place[:, None] * WIDTH + at, mask=(t < T)[:, None])
        tl.store(y_LTW + row * T * WIDTH + t[:, None] * WIDTH + at, x, mask=(t < T)[:, None])


@triton.jit
def sorted_blocks(
    x_LGTD, x_LGBDS, order_ET, facts_E2, T, blocks, heads, longest_near,
    D: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Do as `sums.transposed` for tokens in order; nothing is written where no document is long."""
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    e = row // heads
    if longest(facts_E2, e) > longest_near:
        d, tt = tl.arange(0, D), tl.arange(0, STEP)
        t = block * STEP + tt
        place = tl.load(order_ET + e * T + t, mask=t < T, other=0)
        x = tl.load(
            x_LGTD + row * T * D + place[:, None] * D + d[None, :], mask=(t < T)[:, None], other=0.0
        )
        x_DS = x_LGBDS + (row * blocks + block) * D * STEP + d[:, None] * STEP + tt[None, :]
        tl.store(x_DS, tl.trans(x))
