"""The gradients of queries, keys and values, by the same split into far and near tokens.

With the output n / z, its gradient o and the similarity f(d), d = q.k:

    e = -o.out,   w_ij = (o_i.v_j + e_i) / z_i,   dv_j = sum_i f(d_ij) o_i / z_i
    dq_i = sum_j w_ij f'(d_ij) k_j,   dk_j = sum_i w_ij f'(d_ij) q_i

Far keys come through the sums over (k, v) before a chunk, far queries through those over (q, g),
g = o / z, with weights a = -g.out, after it. Near tokens get o and 1 / z apart: where few keys are
seen w may nearly vanish, and what rounding o / z adds would not. As f = x^2 + rest with
x = rise d + shift, f' is 2 rise x; dq and dk get the factor 2 rise at last.
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from querykey.backends.triton.kernels.pairs import from_keys, from_queries, tokens, turn
from querykey.backends.triton.kernels.sums import mirrored, tiles


@triton.jit
def scaled(
    DOUT, OUT, MORE, INVERSE, E, GRAD, A, rows,
    M: tl.constexpr, KEPT: tl.constexpr, FAR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write e of BLOCK queries, and g and a of those that are summed up."""
    m = tl.arange(0, M)
    t = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = t < rows
    at = t[:, None] * M + m[None, :]
    given = tl.load(DOUT + at, mask=real[:, None], other=0.0).to(tl.float32)
    out = tl.load(OUT + at, mask=real[:, None], other=0.0).to(tl.float32)
    if KEPT:
        out += tl.load(MORE + at, mask=real[:, None], other=0.0).to(tl.float32)
    tl.store(E + t, -tl.sum(given * out, 1), mask=real)
    if FAR:
        g = given * tl.load(INVERSE + t, mask=real, other=0.0)[:, None]
        g = g.to(GRAD.dtype.element_ty)
        tl.store(GRAD + at, g, mask=real[:, None])
        # Of the g that is stored: g.v + a is a difference, and vanishes where it should.
        tl.store(A + t, -tl.sum(g.to(tl.float32) * out, 1), mask=real)


@triton.jit
def query_gradients(
    Q, QT, K, V, DOUT, E, INVERSE, S, P, DQ, T, blocks, N, chunks, together, rise, shift,
    G: tl.constexpr, L: tl.constexpr, D: tl.constexpr, M: tl.constexpr, W: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr,
    CAUSAL: tl.constexpr, FAR: tl.constexpr, NEAR: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Write the gradients of BQ queries."""
    block, row = turn(together, CAUSAL, FAR)
    lane = row // G
    d, m = tl.arange(0, D), tl.arange(0, M)
    t = block * BQ + tl.arange(0, BQ)
    real = t < T
    o = tokens(DOUT + row * T * M, t, T, M)
    e = tl.load(E + row * T + t, mask=real, other=0.0)
    acc = tl.zeros((BQ, D), tl.float32)
    chunk = block * BQ // L if CAUSAL and FAR else 0
    if FAR:
        some = tl.where(chunk > 0, 1, 0) if CAUSAL else 1
        S += (lane * chunks + chunk) * (3 * D // 4) * D * M
        qt = QT + row * blocks * W * D + (t // W) * (W * D) + t % W
        q = tl.trans(tl.load(qt[None, :] + d[:, None] * W))
        acc = rise * mirrored(o, qt, S, some, D, M, W, BQ, True, PREC)
        P += (lane * chunks + chunk) * (D * M + D * D + M + D)
        s1 = tl.load(P + d[:, None] * M + m[None, :])
        z2 = tl.load(P + D * M + d[:, None] * D + d[None, :])
        z1 = tl.load(P + D * M + D * D + M + d)
        slope = rise * tl.dot(q, z2.to(q.dtype), input_precision=PREC) + shift * z1[None, :]
        linear = tl.dot(o, tl.trans(s1.to(o.dtype)), input_precision=PREC)
        acc += shift * linear + e[:, None] * slope
    else:
        q = tokens(Q + row * T * D, t, T, D)
    if NEAR:
        k_at, v_at, up = K + lane * N * D, V + lane * N * M, t[:, None] + 1
        begin = chunk * L
        edge = block * BQ if CAUSAL else N
        acc = from_keys(acc, q, o, e, 0, up, k_at, v_at, begin, edge, N, rise, shift, D, M, BK, False, PREC)  # fmt: skip  # noqa: E501
        if CAUSAL:
            end = tl.minimum(edge + BQ, N)
            acc = from_keys(acc, q, o, e, 0, up, k_at, v_at, edge, end, N, rise, shift, D, M, BK, True, PREC)  # fmt: skip  # noqa: E501
    inverse = tl.load(INVERSE + row * T + t, mask=real, other=0.0)
    acc *= 2 * rise * inverse[:, None]
    DQ += row * T * D
    tl.store(DQ + t[:, None] * D + d[None, :], acc.to(DQ.dtype.element_ty), mask=real[:, None])


@triton.jit
def key_gradients(
    Q, K, KT, V, DOUT, E, INVERSE, R, P, DK, DV, T, N, blocks, chunks, together,
    rise, shift, rest,
    G: tl.constexpr, L: tl.constexpr, D: tl.constexpr, M: tl.constexpr, W: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr,
    CAUSAL: tl.constexpr, FAR: tl.constexpr, NEAR: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Write the gradients of BK keys and their values."""
    block, lane = turn(together, False, FAR)
    d, m = tl.arange(0, D), tl.arange(0, M)
    u = block * BK + tl.arange(0, BK)
    real = u < N
    at_k, at_v = u[:, None] * D + d[None, :], u[:, None] * M + m[None, :]
    v = tokens(V + lane * N * M, u, N, M)
    dk = tl.zeros((BK, D), tl.float32)
    dv = tl.zeros((BK, M), tl.float32)
    chunk = block * BK // L if CAUSAL and FAR else 0
    if FAR:
        some = tl.where(chunk + 1 < chunks, 1, 0) if CAUSAL else 1
        R += (lane * chunks + chunk) * (3 * D // 4) * D * M
        kt = KT + lane * blocks * W * D + (u // W) * (W * D) + u % W
        k = tl.trans(tl.load(kt[None, :] + d[:, None] * W))
        dk, dv = _from_far(k, v, kt, R, some, D, M, W, BK, PREC)
        P += (lane * chunks + chunk) * (D * M + D * D + M + D)
        r1 = tl.load(P + d[:, None] * M + m[None, :])
        y2 = tl.load(P + D * M + d[:, None] * D + d[None, :])
        r0 = tl.load(P + D * M + D * D + m)
        y1 = tl.load(P + D * M + D * D + M + d)
        r1 = r1.to(k.dtype)
        linear = tl.dot(v, tl.trans(r1), input_precision=PREC) + y1[None, :]
        dk = rise * (dk + tl.dot(k, y2.to(k.dtype), input_precision=PREC)) + shift * linear
        dv = rise * (rise * dv + 2 * shift * tl.dot(k, r1, input_precision=PREC))
        dv += (shift * shift + rest) * r0[None, :]
    else:
        k = tokens(K + lane * N * D, u, N, D)
    if NEAR:
        for h in range(G):
            row = lane * G + h
            q_at, o_at = Q + row * T * D, DOUT + row * T * M
            e_at, i_at = E + row * T, INVERSE + row * T
            begin = 0
            end = T
            if CAUSAL:
                edge = block * BK
                begin = edge + BK
                if FAR:
                    end = tl.minimum(chunk * L + L, T)
                last = tl.minimum(begin, T)
                dk, dv = from_queries(dk, dv, k, v, u[:, None], T, q_at, o_at, e_at, i_at, edge, last, T, rise, shift, rest, D, M, BQ, True, PREC)  # fmt: skip  # noqa: E501
            dk, dv = from_queries(dk, dv, k, v, u[:, None], T, q_at, o_at, e_at, i_at, begin, end, T, rise, shift, rest, D, M, BQ, False, PREC)  # fmt: skip  # noqa: E501
    DK, DV = DK + lane * N * D, DV + lane * N * M
    dk *= 2 * rise
    tl.store(DK + at_k, dk.to(DK.dtype.element_ty), mask=real[:, None])
    tl.store(DV + at_v, dv.to(DV.dtype.element_ty), mask=real[:, None])


@triton.jit
def _from_far(
    k, v, KT, R, some,
    D: tl.constexpr, M: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Return sum_b k_b (v R_b^T) and sum_b k_b (k R_b): `mirrored` both ways, reading R once."""
    H: tl.constexpr = D // 2
    lower, upper, step = tiles(R, D, M)
    dk = tl.zeros((ROWS, D), tl.float32)
    dv = tl.zeros((ROWS, M), tl.float32)
    for b in tl.range(0, H * some):
        r = tl.load(lower + b * D * M)
        kb = tl.load(KT + b * W).to(tl.float32)[:, None]
        dk += kb * tl.dot(v, tl.trans(r), input_precision=PREC)
        dv += kb * tl.dot(k, r, input_precision=PREC)
    for b in tl.range(0, H * some):
        r = tl.load(upper + b * step)
        kb = tl.load(KT + (H + b) * W).to(tl.float32)[:, None]
        dk += kb * tl.dot(v, tl.trans(r), input_precision=PREC)
        dv += kb * tl.dot(k, r, input_precision=PREC)
    return dk, dv
