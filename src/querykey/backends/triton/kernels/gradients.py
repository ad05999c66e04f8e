"""The gradients of queries, keys and values, by the same split into far and near tokens.

With the output n / z, its gradient o and the similarity f(d), d = q.k:

    e = -o.out,   w_ij = (o_i.v_j + e_i) / z_i,   dv_j = sum_i f(d_ij) o_i / z_i
    dq_i = sum_j w_ij f'(d_ij) k_j,   dk_j = sum_i w_ij f'(d_ij) q_i

Far keys come through the sums over (k, v) before a chunk, far queries through those over (q, g),
g = o / z, with weights a = -g.out, after it. Near tokens get o and 1 / z apart: where few keys are
seen w may nearly vanish, and what rounding o / z adds would not. As f = x^2 + offset with
x = rise d + shift, f' is 2 rise x; dq and dk get the factor 2 rise at last.

With gates, f(d_ij) gets the factor exp(G_i - G_j), and p_ij = w_ij f(d_ij) is what the gates of
all tokens t with j < t <= i get. Its sums over keys and over queries are written. From t to t + 1
the gradient grows by the sum over the queries of key t, less that over the keys of query t.
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from querykey.backends.triton.kernels.gates import left, left_since, logs
from querykey.backends.triton.kernels.pairs import (
    add_key_gradients,
    add_query_gradients,
    load_tokens,
    lowest,
    scheduled,
)
from querykey.backends.triton.kernels.reading import read_whole, tiles


@triton.jit
def scaled_gradients(
    dout_LGTM, out_LGTM, residue_LGTM, inverse_LGT, gates_L5N, order_ET, e_LGT, g_LGTM, a_LGT,
    rows, T, heads, G: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write e = -o.out, g = o / z and a = -g.out for BLOCK of the `rows` queries of all rows.

    o is dout, 1 / z is inverse, out may have its residue beside it. With gates, g is what is left
    of it before its chunk. Where there is an order, see `intervals`, dout, out and residue are
    looked up in it.
    """
    m = tl.arange(0, M)
    t = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = t < rows
    here = t[:, None] * M + m[None, :]
    at = here
    if order_ET is not None:
        row = t // T
        place = tl.load(order_ET + row // (G * heads) * T + t % T, mask=real, other=0)
        at = (row * T + place)[:, None] * M + m[None, :]
    o = tl.load(dout_LGTM + at, mask=real[:, None], other=0.0).to(tl.float32)
    out = tl.load(out_LGTM + at, mask=real[:, None], other=0.0).to(tl.float32)
    if residue_LGTM is not None:
        out += tl.load(residue_LGTM + at, mask=real[:, None], other=0.0).to(tl.float32)
    tl.store(e_LGT + t, -tl.sum(o * out, 1), mask=real)
    inverse = tl.load(inverse_LGT + t, mask=real, other=0.0)
    if gates_L5N is not None:
        lane, token = t // (G * T), t % T
        inverse *= tl.load(gates_L5N + lane * 5 * T + 4 * T + token, mask=real, other=0.0)
    g = (o * inverse[:, None]).to(g_LGTM.dtype.element_ty)
    tl.store(g_LGTM + here, g, mask=real[:, None])
    # Of the g that is stored: g.v + a is a difference, and vanishes where it should.
    tl.store(a_LGT + t, -tl.sum(g.to(tl.float32) * out, 1), mask=real)


@triton.jit
def query_gradients(
    q_LGTD, q_LGBDS, k_LND, v_LNM, dout_LGTM, e_LGT, inverse_LGT, square_LCPDM, moments_LCR,
    real_LN, count_LC, gates_L5N, out_LGTM, residue_LGTM, dq_LGTD, total_LGT,
    T, blocks, N, chunks, rows_at_once, rise, shift, offset,
    G: tl.constexpr, CHUNK: tl.constexpr, D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr, GRANULE: tl.constexpr, CAUSAL: tl.constexpr,
    FAR: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dq_i (D) = sum_j w_ij f'(d_ij) k_j for BQ queries i of one row; with gates sum_j p_ij.

    Where all keys are near, e = -o.out is found here and written, out having its residue beside it.
    Far keys, by the sums over (k, v) before the chunk, give 2 rise / z_i times
    r = rise sum_b q_b (o S_b^T) + shift S1 o + e (rise Z2 q + shift Z1)
    to dq, and (rise q.r + rise shift q.(S1 o + e Z1) + (shift^2 + offset) (S0.o + e count)) / z_i
    to the sum of p.
    """
    block, row = scheduled(rows_at_once, LAST_FIRST=CAUSAL, FAR=FAR)
    lane = row // G
    d, m = tl.arange(0, D), tl.arange(0, M)
    t = block * BQ + tl.arange(0, BQ)
    real = t < T
    o = load_tokens(dout_LGTM + row * T * M, t, T, M)
    if FAR:
        e = tl.load(e_LGT + row * T + t, mask=real, other=0.0)
    else:
        e = against_output(o, out_LGTM, residue_LGTM, row, t, T, M)
        tl.store(e_LGT + row * T + t, e, mask=real)
    acc = tl.zeros((BQ, D), tl.float32)
    total = tl.zeros((BQ,), tl.float32)
    chunk = block * BQ // CHUNK if CAUSAL and FAR else 0
    if FAR:
        some = tl.where(chunk > 0, 1, 0) if CAUSAL else 1
        square_LCPDM += (lane * chunks + chunk) * (3 * D // 4) * D * M
        moments_LCR += (lane * chunks + chunk) * (D * M + D * D + M + D)
        q_i = q_LGBDS + row * blocks * STEP * D + (t // STEP) * (STEP * D) + t % STEP
        q = tl.trans(tl.load(q_i[None, :] + d[:, None] * STEP))
        acc, linear, z1 = far_query_gradients(
            q, o, e, q_i, square_LCPDM, moments_LCR, some, rise, shift, D=D, M=M, STEP=STEP, BQ=BQ,
            PRECISION=PRECISION,
        )  # fmt: skip
        if gates_L5N is not None:
            linear = rise * (acc + shift * (linear + e[:, None] * z1[None, :]))
            s0 = tl.load(moments_LCR + D * M + D * D + m)
            ones = tl.sum(o * s0[None, :], 1) + e * tl.load(count_LC + lane * chunks + chunk)
            total = tl.sum(q * linear, 1) + lowest(shift, offset) * ones
    else:
        q = load_tokens(q_LGTD + row * T * D, t, T, D)
    if NEAR:
        k_ND, v_NM, up = k_LND + lane * N * D, v_LNM + lane * N * M, t[:, None] + 1
        begin = chunk * CHUNK
        edge = block * BQ if CAUSAL else N
        large = 0.0
        small = 0.0
        if real_LN is not None:
            real_LN += lane * N
        if gates_L5N is not None:
            gates_L5N += lane * 5 * N
            large, small = logs(gates_L5N, edge - 1, N)
            if FAR:
                past = left_since(gates_L5N, edge - 1, begin - 1, N)
                acc, total = acc * past, total * past
        acc, total = add_query_gradients(
            acc, total, q, o, e, 0, up, k_ND, v_NM, real_LN, gates_L5N, large, small, begin=begin,
            end=edge, N=N, rise=rise, shift=shift, offset=offset, D=D, M=M, BK=BK, GRANULE=GRANULE,
            EDGE=False, PRECISION=PRECISION,
        )  # fmt: skip
        if CAUSAL:
            if gates_L5N is not None:
                large_t, small_t = logs(gates_L5N, t, N)
                past = left(large_t, small_t, large, small)
                acc, total = acc * past[:, None], total * past
                large, small = large_t[:, None], small_t[:, None]
            end = tl.minimum(edge + BQ, N)
            acc, total = add_query_gradients(
                acc, total, q, o, e, 0, up, k_ND, v_NM, real_LN, gates_L5N, large, small,
                begin=edge, end=end, N=N, rise=rise, shift=shift, offset=offset, D=D, M=M, BK=BK,
                GRANULE=GRANULE, EDGE=True, PRECISION=PRECISION,
            )  # fmt: skip
    inverse = tl.load(inverse_LGT + row * T + t, mask=real, other=0.0)
    acc *= 2 * rise * inverse[:, None]
    dq = dq_LGTD + row * T * D + t[:, None] * D + d[None, :]
    tl.store(dq, acc.to(dq_LGTD.dtype.element_ty), mask=real[:, None])
    if total_LGT is not None:
        tl.store(total_LGT + row * T + t, total * inverse, mask=real)


@triton.jit
def against_output(o, out_LGTM, residue_LGTM, row, place, T, M: tl.constexpr):
    """Return e = -o.out for gradients o (BQ, M) of the outputs at `place` of a row."""
    out = load_tokens(out_LGTM + row * T * M, place, T, M).to(tl.float32)
    if residue_LGTM is not None:
        out += load_tokens(residue_LGTM + row * T * M, place, T, M).to(tl.float32)
    return -tl.sum(o.to(tl.float32) * out, 1)


@triton.jit
def far_query_gradients(
    q, o, e, q_i, square_PDM, moments_R, some, rise, shift,
    D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr, BQ: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return r of `query_gradients` (BQ, D), S1 o and Z1.

    q_i and `some` are as in `reading.read_halves`.
    """
    d, m = tl.arange(0, D), tl.arange(0, M)
    acc = rise * read_whole(o, q_i, square_PDM, some, D, M, STEP, BQ, True, PRECISION)
    s1 = tl.load(moments_R + d[:, None] * M + m[None, :])
    z2 = tl.load(moments_R + D * M + d[:, None] * D + d[None, :])
    z1 = tl.load(moments_R + D * M + D * D + M + d)
    slope = rise * tl.dot(q, z2.to(q.dtype), input_precision=PRECISION) + shift * z1[None, :]
    linear = tl.dot(o, tl.trans(s1.to(o.dtype)), input_precision=PRECISION)
    return acc + shift * linear + e[:, None] * slope, linear, z1


@triton.jit
def key_gradients(
    q_LGTD, k_LND, k_LBDS, v_LNM, dout_LGTM, e_LGT, inverse_LGT, square_LCPDM, moments_LCR,
    count_LC, gates_L5N, dk_LND, dv_LNM, total_LN,
    T, N, blocks, chunks, rows_at_once, rise, shift, offset,
    G: tl.constexpr, CHUNK: tl.constexpr, D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr, GRANULE: tl.constexpr, CAUSAL: tl.constexpr,
    FAR: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dk_j (D) = sum_i w_ij f'(d_ij) q_i, dv_j (M) = sum_i f(d_ij) o_i / z_i for BK keys j.

    Far queries come through R_b, R1, Y2, R0, Y1, the sums over (q, g) after the chunk: they give
    2 rise (rise (sum_b k_b (v R_b^T) + Y2 k) + shift (R1 v + Y1)) to dk, and
    rise^2 sum_b k_b (k R_b) + 2 rise shift k R1 + (shift^2 + offset) R0 to dv.
    With gates also sum_i p_ij is written, which is v_j.dv_j and, for normalisers,
    rise^2 k.Y2 k + 2 rise shift k.Y1 + (shift^2 + offset) Y0, where Y0 is the sums' count.
    """
    block, lane = scheduled(rows_at_once, LAST_FIRST=False, FAR=FAR)
    d, m = tl.arange(0, D), tl.arange(0, M)
    u = block * BK + tl.arange(0, BK)
    real = u < N
    at_k, at_v = u[:, None] * D + d[None, :], u[:, None] * M + m[None, :]
    v = load_tokens(v_LNM + lane * N * M, u, N, M)
    dk = tl.zeros((BK, D), tl.float32)
    dv = tl.zeros((BK, M), tl.float32)
    total = tl.zeros((BK,), tl.float32)
    chunk = block * BK // CHUNK if CAUSAL and FAR else 0
    if FAR:
        some = tl.where(chunk + 1 < chunks, 1, 0) if CAUSAL else 1
        square_LCPDM += (lane * chunks + chunk) * (3 * D // 4) * D * M
        moments_LCR += (lane * chunks + chunk) * (D * M + D * D + M + D)
        k_i = k_LBDS + lane * blocks * STEP * D + (u // STEP) * (STEP * D) + u % STEP
        k = tl.trans(tl.load(k_i[None, :] + d[:, None] * STEP))
        dk, dv, slope, y1 = far_key_gradients(
            k, v, k_i, square_LCPDM, moments_LCR, some, rise, shift, offset, D=D, M=M, STEP=STEP,
            BK=BK, PRECISION=PRECISION,
        )  # fmt: skip
        if gates_L5N is not None:
            slope = rise * (rise * slope + 2 * shift * y1[None, :])
            total = tl.sum(k * slope, 1) + tl.sum(v * dv, 1)
            total += lowest(shift, offset) * tl.load(count_LC + lane * chunks + chunk)
    else:
        k = load_tokens(k_LND + lane * N * D, u, N, D)
    if NEAR:
        begin = 0
        edge = 0
        end = T
        if CAUSAL:
            edge = block * BK
            begin = edge + BK
            if FAR:
                end = tl.minimum(chunk * CHUNK + CHUNK, T)
        large = 0.0
        small = 0.0
        if gates_L5N is not None:
            gates_L5N += lane * 5 * N
            large, small = logs(gates_L5N, begin - 1, N)
            if FAR:
                past = left_since(gates_L5N, end - 1, begin - 1, N)
                dk, dv, total = dk * past, dv * past, total * past
        for h in range(G):
            row = lane * G + h
            dk, dv, total = add_key_gradients(
                dk, dv, total, k, v, u[:, None], T, q_LGTD + row * T * D, dout_LGTM + row * T * M,
                e_LGT + row * T, inverse_LGT + row * T, gates_L5N, large, small, begin=begin,
                end=end, T=T, rise=rise, shift=shift, offset=offset, D=D, M=M, BQ=BQ,
                GRANULE=GRANULE, EDGE=False, PRECISION=PRECISION,
            )  # fmt: skip
        if gates_L5N is not None:
            large_u, small_u = logs(gates_L5N, u, N)
            past = left(large, small, large_u, small_u)
            dk, dv, total = dk * past[:, None], dv * past[:, None], total * past
            large, small = large_u[:, None], small_u[:, None]
        if CAUSAL:
            last = tl.minimum(begin, T)
            for h in range(G):
                row = lane * G + h
                dk, dv, total = add_key_gradients(
                    dk, dv, total, k, v, u[:, None], T, q_LGTD + row * T * D,
                    dout_LGTM + row * T * M, e_LGT + row * T, inverse_LGT + row * T, gates_L5N,
                    large, small, begin=edge, end=last, T=T, rise=rise, shift=shift, offset=offset,
                    D=D, M=M, BQ=BQ, GRANULE=GRANULE, EDGE=True, PRECISION=PRECISION,
                )  # fmt: skip
    dk_LND, dv_LNM = dk_LND + lane * N * D, dv_LNM + lane * N * M
    dk *= 2 * rise
    tl.store(dk_LND + at_k, dk.to(dk_LND.dtype.element_ty), mask=real[:, None])
    tl.store(dv_LNM + at_v, dv.to(dv_LNM.dtype.element_ty), mask=real[:, None])
    if total_LN is not None:
        tl.store(total_LN + lane * N + u, total, mask=real)


@triton.jit
def far_key_gradients(
    k, v, k_i, square_PDM, moments_R, some, rise, shift, offset,
    D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return what far queries give to dk / (2 rise) and dv of `key_gradients`, Y2 k, and Y1.

    k_i and `some` are as in `reading.read_halves`.
    """
    d, m = tl.arange(0, D), tl.arange(0, M)
    dk, dv = _read_both(k, v, k_i, square_PDM, some, D, M, STEP, BK, PRECISION)
    r1 = tl.load(moments_R + d[:, None] * M + m[None, :])
    y2 = tl.load(moments_R + D * M + d[:, None] * D + d[None, :])
    r0 = tl.load(moments_R + D * M + D * D + m)
    y1 = tl.load(moments_R + D * M + D * D + M + d)
    r1 = r1.to(k.dtype)
    linear = tl.dot(v, tl.trans(r1), input_precision=PRECISION) + y1[None, :]
    slope = tl.dot(k, y2.to(k.dtype), input_precision=PRECISION)
    dk = rise * (dk + slope) + shift * linear
    dv = rise * (rise * dv + 2 * shift * tl.dot(k, r1, input_precision=PRECISION))
    return dk, dv + lowest(shift, offset) * r0[None, :], slope, y1


@triton.jit
def _read_both(
    k, v, k_i, square_PDM, some,
    D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return sum_b k_b (v R_b^T), (ROWS, D), and sum_b k_b (k R_b), (ROWS, M), reading R once.

    k (ROWS, D), v (ROWS, M); k_i points at k_0 of every row, k_1 being STEP further on.
    """
    H: tl.constexpr = D // 2
    lower, upper, step = tiles(square_PDM, D, M)
    dk = tl.zeros((ROWS, D), tl.float32)
    dv = tl.zeros((ROWS, M), tl.float32)
    for b in tl.range(0, H * some):
        r = tl.load(lower + b * D * M)
        kb = tl.load(k_i + b * STEP).to(tl.float32)[:, None]
        dk += kb * tl.dot(v, tl.trans(r), input_precision=PRECISION)
        dv += kb * tl.dot(k, r, input_precision=PRECISION)
    for b in tl.range(0, H * some):
        r = tl.load(upper + b * step)
        kb = tl.load(k_i + (H + b) * STEP).to(tl.float32)[:, None]
        dk += kb * tl.dot(v, tl.trans(r), input_precision=PRECISION)
        dv += kb * tl.dot(k, r, input_precision=PRECISION)
    return dk, dv
