"""Attention in which each query sees an interval of keys: documents, once each stands in one piece.

The intervals of queries over keys, and of keys over the queries that see them, are given by their
first token (low) and the one after their last (up), for every batch entry, whose `heads` lanes
share them. Whole tiles outside of them are skipped; what is left is every pair of a document, so
time grows with the squares of the documents' lengths. The axis E counts batch entries; queries and
keys are as many. The equations are those of `outputs` and `gradients`.
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

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
def document_outputs(
    q_LGTD, k_LTD, v_LTM, low_ET, up_ET, real_ET, out_LGTM, residue_LGTM, inverse_LGT,
    T, heads, rise, shift, offset,
    G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    KEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write out_i = n_i / z_i, its residue and 1 / z_i for BQ queries i of one row.

    n_i (M) = sum_j f(q_i.k_j) v_j and z_i = sum_j f(q_i.k_j) over the keys low_i <= j < up_i.
    """
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    lane = row // G
    t = block * BQ + tl.arange(0, BQ)
    # Rows past the last do as the last one does, and are not written.
    at = lane // heads * T + tl.minimum(t, T - 1)
    low, up = tl.load(low_ET + at), tl.load(up_ET + at)
    q = load_tokens(q_LGTD + row * T * D, t, T, D)
    k_TD, v_TM = k_LTD + lane * T * D, v_LTM + lane * T * M
    acc = tl.zeros((BQ, M), tl.float32)
    z = tl.zeros((BQ,), tl.float32)
    begin, first, last, end = bounds(low, up, BK)
    low, up = low[:, None], up[:, None]
    if real_ET is not None:
        real_ET += lane // heads * T
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
    write_outputs(acc, z, out_LGTM, residue_LGTM, inverse_LGT, row, t, T, M, KEEP)


@triton.jit
def document_query_gradients(
    q_LGTD, k_LTD, v_LTM, dout_LGTM, e_LGT, inverse_LGT, low_ET, up_ET, dq_LGTD,
    T, heads, rise, shift,
    G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dq_i (D) = sum_j w_ij f'(d_ij) k_j, low_i <= j < up_i, for BQ queries i of one row."""
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    lane = row // G
    d = tl.arange(0, D)
    t = block * BQ + tl.arange(0, BQ)
    real = t < T
    at = lane // heads * T + tl.minimum(t, T - 1)
    low, up = tl.load(low_ET + at), tl.load(up_ET + at)
    q, o = load_tokens(q_LGTD + row * T * D, t, T, D), load_tokens(dout_LGTM + row * T * M, t, T, M)
    e = tl.load(e_LGT + row * T + t, mask=real, other=0.0)
    k_TD, v_TM = k_LTD + lane * T * D, v_LTM + lane * T * M
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
    dq = dq_LGTD + row * T * D + t[:, None] * D + d[None, :]
    tl.store(dq, acc.to(dq_LGTD.dtype.element_ty), mask=real[:, None])


@triton.jit
def document_key_gradients(
    q_LGTD, k_LTD, v_LTM, dout_LGTM, e_LGT, inverse_LGT, low_ET, up_ET, dk_LTD, dv_LTM,
    T, heads, rise, shift, offset,
    G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dk_j (D) = sum_i w_ij f'(d_ij) q_i, dv_j (M) = sum_i f(d_ij) o_i / z_i for BK keys j.

    Key j is seen by the queries low_j <= i < up_j.
    """
    block, lane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    d, m = tl.arange(0, D), tl.arange(0, M)
    u = block * BK + tl.arange(0, BK)
    real = u < T
    at = lane // heads * T + tl.minimum(u, T - 1)
    low, up = tl.load(low_ET + at), tl.load(up_ET + at)
    at_k, at_v = u[:, None] * D + d[None, :], u[:, None] * M + m[None, :]
    k, v = load_tokens(k_LTD + lane * T * D, u, T, D), load_tokens(v_LTM + lane * T * M, u, T, M)
    dk = tl.zeros((BK, D), tl.float32)
    dv = tl.zeros((BK, M), tl.float32)
    z = tl.zeros((BK,), tl.float32)  # what gates would get: there are none
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
def permuted(
    x_LTW, y_LTW, order_ET, T, heads,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Write y_t = x_order(t) for BLOCK tokens t of one of the `heads` rows of a batch entry.

    Where BACK it is the way back, y_order(t) = x_t.
    """
    row = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    other = tl.load(order_ET + row // heads * T + t, mask=t < T)
    if BACK:
        old, new = t, other
    else:
        old, new = other, t
    at = tl.arange(0, WIDTH)[None, :]
    x = tl.load(x_LTW + row * T * WIDTH + old[:, None] * WIDTH + at, mask=(t < T)[:, None])
    tl.store(y_LTW + row * T * WIDTH + new[:, None] * WIDTH + at, x, mask=(t < T)[:, None])
