"""The output of every query: far keys through their sums, near keys one by one.

A similarity is c2 d^2 + c1 d + c0 at the plain dot product d = q.k, or (rise d + shift)^2 + rest.
With S_i, S1, Z2, S0, Z1 of `states`, the far keys of a query q give

    sum of values   c2 sum_i q_i (q S_i) + c1 q S1 + c0 S0
    normaliser      c2 q Z2 q + c1 q Z1 + c0 count
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from querykey.backends.triton.kernels.pairs import read, settle, tokens, turn
from querykey.backends.triton.kernels.sums import contracted, mirrored


@triton.jit
def outputs(
    Q, QT, K, V, S, P, REAL, COUNT, OUT, MORE, INVERSE, T, blocks, N, chunks, together,
    rise, shift, rest,
    G: tl.constexpr, L: tl.constexpr, D: tl.constexpr, M: tl.constexpr, W: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr,
    CAUSAL: tl.constexpr, FAR: tl.constexpr, NEAR: tl.constexpr, KEEP: tl.constexpr,
    CARRIED: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Write BQ queries' outputs, what rounding took from them, and their normalisers' inverses."""
    block, row = turn(together, CAUSAL, FAR)
    lane = row // G
    d, m = tl.arange(0, D), tl.arange(0, M)
    t = block * BQ + tl.arange(0, BQ)
    acc = tl.zeros((BQ, M), tl.float32)
    z = tl.zeros((BQ,), tl.float32)
    c0, c1, c2 = shift * shift + rest, 2 * rise * shift, rise * rise
    chunk = block * BQ // L if CAUSAL and FAR else 0
    if FAR:
        # Before the first chunk there is nothing to add up, unless a state was given.
        some = tl.where(chunk > 0, 1, 0) if CAUSAL and not CARRIED else 1
        S += (lane * chunks + chunk) * (3 * D // 4) * D * M
        # From here q_i, which the sums are read with one by one, is near at hand.
        qt = QT + row * blocks * W * D + (t // W) * (W * D) + t % W
        q = tl.trans(tl.load(qt[None, :] + d[:, None] * W))
        if D < 32:  # the least that a product can add up is 16
            acc = c2 * mirrored(q, qt, S, some, D, M, W, BQ, False, PREC)
        else:
            acc = c2 * contracted(q, qt, S, some, D, M, W, BQ, PREC)
        P += (lane * chunks + chunk) * (D * M + D * D + M + D)
        s1 = tl.load(P + d[:, None] * M + m[None, :])
        z2 = tl.load(P + D * M + d[:, None] * D + d[None, :])
        s0 = tl.load(P + D * M + D * D + m)
        z1 = tl.load(P + D * M + D * D + M + d)
        acc += c1 * tl.dot(q, s1.to(q.dtype), input_precision=PREC) + c0 * s0[None, :]
        slope = c2 * tl.dot(q, z2.to(q.dtype), input_precision=PREC) + c1 * z1[None, :]
        count = chunk * L if CAUSAL else N
        if COUNT is not None:
            count = tl.load(COUNT + lane * chunks + chunk)
        z = tl.sum(slope * q.to(tl.float32), 1) + c0 * count
    else:
        q = tokens(Q + row * T * D, t, T, D)
    if NEAR:
        if REAL is not None:
            REAL += lane * N
        k_at, v_at = K + lane * N * D, V + lane * N * M
        if CAUSAL:
            up, edge, end = t[:, None] + 1, block * BQ, tl.minimum(block * BQ + BQ, N)
        else:
            up, edge, end = N, N // BK * BK, N
        acc, z = read(acc, z, q, 0, up, k_at, v_at, REAL, chunk * L, edge, N, rise, shift, rest, D, M, BK, False, PREC)  # fmt: skip  # noqa: E501
        acc, z = read(acc, z, q, 0, up, k_at, v_at, REAL, edge, end, N, rise, shift, rest, D, M, BK, True, PREC)  # fmt: skip  # noqa: E501
    settle(acc, z, OUT, MORE, INVERSE, row, t, T, M, KEEP)
