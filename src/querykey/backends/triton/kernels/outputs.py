"""The output of every query: far keys through their sums, near keys pair by pair.

A similarity is c2 d^2 + c1 d + c0 at the plain dot product d = q.k, or (rise d + shift)^2 + offset.
With S_i, S1, Z2, S0, Z1 of `sums`, the far keys of a query q give

    sum of values   c2 sum_i q_i (q S_i) + c1 q S1 + c0 S0
    normaliser      c2 q Z2 q + c1 q Z1 + c0 count

With gates, all of that is multiplied by what is left of the past of the chunk at the query.
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from querykey.backends.triton.kernels.gates import left, left_since, logs
from querykey.backends.triton.kernels.pairs import (
    add_outputs,
    load_tokens,
    lowest,
    scheduled,
    write_outputs,
)
from querykey.backends.triton.kernels.reading import read_halves, read_whole


@triton.jit
def outputs(
    q_LGTD, q_LGBDS, k_LND, v_LNM, square_LCPDM, moments_LCR, real_LN, count_LC, gates_L5N,
    out_LGTM, residue_LGTM, inverse_LGT,
    T, blocks, N, chunks, rows_at_once, rise, shift, offset,
    G: tl.constexpr, CHUNK: tl.constexpr, D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr, GRANULE: tl.constexpr, CAUSAL: tl.constexpr,
    FAR: tl.constexpr, NEAR: tl.constexpr, KEEP: tl.constexpr, CARRIED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write out_i = n_i / z_i, its residue and 1 / z_i for BQ queries i of one row.

    n_i (M) = sum_j f(q_i.k_j) v_j and z_i = sum_j f(q_i.k_j) over the keys j that query i sees: all
    before its chunk through square and moments where FAR, and the others pair by pair where NEAR.
    """
    block, row = scheduled(rows_at_once, LAST_FIRST=CAUSAL, FAR=FAR)
    lane = row // G
    d = tl.arange(0, D)
    t = block * BQ + tl.arange(0, BQ)
    acc = tl.zeros((BQ, M), tl.float32)
    z = tl.zeros((BQ,), tl.float32)
    chunk = block * BQ // CHUNK if CAUSAL and FAR else 0
    if FAR:
        # Before the first chunk there is nothing to add up, unless a state came before it.
        some = tl.where(chunk > 0, 1, 0) if CAUSAL and not CARRIED else 1
        square_LCPDM += (lane * chunks + chunk) * (3 * D // 4) * D * M
        moments_LCR += (lane * chunks + chunk) * (D * M + D * D + M + D)
        count = chunk * CHUNK if CAUSAL else N
        if count_LC is not None:
            count = tl.load(count_LC + lane * chunks + chunk)
        q_i = q_LGBDS + row * blocks * STEP * D + (t // STEP) * (STEP * D) + t % STEP
        # From here q_i, which the sums are read with one by one, is near at hand.
        q = tl.trans(tl.load(q_i[None, :] + d[:, None] * STEP))
        acc, z = far_outputs(
            q, q_i, square_LCPDM, moments_LCR, count, some, rise, shift, offset, D=D, M=M,
            STEP=STEP, BQ=BQ, PRECISION=PRECISION,
        )  # fmt: skip
    else:
        q = load_tokens(q_LGTD + row * T * D, t, T, D)
    if NEAR:
        if real_LN is not None:
            real_LN += lane * N
        k_ND, v_NM = k_LND + lane * N * D, v_LNM + lane * N * M
        if CAUSAL:
            up, edge, end = t[:, None] + 1, block * BQ, tl.minimum(block * BQ + BQ, N)
        else:
            up, edge, end = N, N // BK * BK, N
        large = 0.0
        small = 0.0
        if gates_L5N is not None:
            gates_L5N += lane * 5 * N
            large, small = logs(gates_L5N, edge - 1, N)
            if FAR:
                past = left_since(gates_L5N, edge - 1, chunk * CHUNK - 1, N)
                acc, z = acc * past, z * past
        acc, z = add_outputs(
            acc, z, q, 0, up, k_ND, v_NM, real_LN, gates_L5N, large, small, begin=chunk * CHUNK,
            end=edge, N=N, rise=rise, shift=shift, offset=offset, D=D, M=M, BK=BK, GRANULE=GRANULE,
            EDGE=False, PRECISION=PRECISION,
        )  # fmt: skip
        if gates_L5N is not None:
            large_t, small_t = logs(gates_L5N, t, N)
            past = left(large_t, small_t, large, small)
            acc, z = acc * past[:, None], z * past
            large, small = large_t[:, None], small_t[:, None]
        acc, z = add_outputs(
            acc, z, q, 0, up, k_ND, v_NM, real_LN, gates_L5N, large, small, begin=edge, end=end,
            N=N, rise=rise, shift=shift, offset=offset, D=D, M=M, BK=BK, GRANULE=GRANULE,
            EDGE=True, PRECISION=PRECISION,
        )  # fmt: skip
    write_outputs(acc, z, out_LGTM, residue_LGTM, inverse_LGT, row, t, t, T, M, KEEP)


@triton.jit
def far_outputs(
    q, q_i, square_PDM, moments_R, count, some, rise, shift, offset,
    D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr, BQ: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the sum of values (BQ, M) and the normaliser (BQ,) of far keys, for queries q (BQ, D).

    q_i points at q_0 of every query, q_1 being STEP further on; where `some` is 0 the square is not
    read, being zeros.
    """
    d, m = tl.arange(0, D), tl.arange(0, M)
    c0, c1, c2 = lowest(shift, offset), 2 * rise * shift, rise * rise
    if D < 32:  # the least that a product can add up is 16
        acc = c2 * read_whole(q, q_i, square_PDM, some, D, M, STEP, BQ, False, PRECISION)
    else:
        acc = c2 * read_halves(q, q_i, square_PDM, some, D, M, STEP, BQ, PRECISION)
    s1 = tl.load(moments_R + d[:, None] * M + m[None, :])
    z2 = tl.load(moments_R + D * M + d[:, None] * D + d[None, :])
    s0 = tl.load(moments_R + D * M + D * D + m)
    z1 = tl.load(moments_R + D * M + D * D + M + d)
    acc += c1 * tl.dot(q, s1.to(q.dtype), input_precision=PRECISION) + c0 * s0[None, :]
    slope = c2 * tl.dot(q, z2.to(q.dtype), input_precision=PRECISION) + c1 * z1[None, :]
    return acc, tl.sum(slope * q.to(tl.float32), 1) + c0 * count
