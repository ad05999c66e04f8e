"""The output of every query: far keys through their sums, near keys one by one.

A similarity is c2 d^2 + c1 d + c0 at the plain dot product d = q.k, the kernel's scale being in the
coefficients; near keys take it as c2 (d + shift)^2 + rest. With S_i, S1, Z2, S0, Z1 of `states`,
the far keys of a query q give

    sum of values   c2 sum_i q_i (q S_i) + c1 q S1 + c0 S0
    normaliser      c2 q Z2 q + c1 q Z1 + c0 count
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from querykey.backends.triton.states import contracted, mirrored


@triton.jit
def outputs(
    Q, QT, K, V, S, P, SEEN, OUT, MORE, INVERSE, T, blocks, N, chunks, c0, c1, c2, shift, rest,
    G: tl.constexpr, L: tl.constexpr, D: tl.constexpr, M: tl.constexpr, W: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr,
    CAUSAL: tl.constexpr, FAR: tl.constexpr, NEAR: tl.constexpr, COUNTED: tl.constexpr,
    KEEP: tl.constexpr, CARRIED: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Write BQ queries' outputs, what rounding took from them, and their normalisers' inverses."""
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    lane = row // G
    d, m = tl.arange(0, D), tl.arange(0, M)
    t = block * BQ + tl.arange(0, BQ)
    real = t < T
    acc = tl.zeros((BQ, M), tl.float32)
    z = tl.zeros((BQ,), tl.float32)
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
        z = tl.sum(slope * q.to(tl.float32), 1)
    else:
        q = tl.load(Q + row * T * D + t[:, None] * D + d[None, :], mask=real[:, None], other=0.0)
    begin = chunk * L
    met = 0
    if NEAR:
        k_at, v_at = K + lane * N * D, V + lane * N * M
        if CAUSAL:
            edge, end = block * BQ, tl.minimum(block * BQ + BQ, N)
            met = t + 1 - begin
        else:
            edge, end = N // BK * BK, N
            met = N
        acc, z = _near(acc, z, q, t, k_at, v_at, begin, edge, N, c2, shift, rest, D, M, BK, False, CAUSAL, PREC)  # fmt: skip  # noqa: E501
        acc, z = _near(acc, z, q, t, k_at, v_at, edge, end, N, c2, shift, rest, D, M, BK, True, CAUSAL, PREC)  # fmt: skip  # noqa: E501
    if COUNTED:
        seen = tl.load(SEEN + lane * T + t, mask=real, other=0)
    else:
        seen = t + 1 if CAUSAL else tl.full((BQ,), 0, tl.int32) + N
    # Keys met one by one brought c0 each, padding too; those far away have not yet.
    z += c0 * (seen - met).to(tl.float32)
    inverse = tl.where((z == 0) | (seen == 0), 0.0, 1.0 / z)
    acc *= inverse[:, None]
    out = acc.to(OUT.dtype.element_ty)
    at = row * T * M + t[:, None] * M + m[None, :]
    tl.store(OUT + at, out, mask=real[:, None])
    if KEEP:
        more = (acc - out.to(tl.float32)).to(MORE.dtype.element_ty)
        tl.store(MORE + at, more, mask=real[:, None])
    tl.store(INVERSE + row * T + t, inverse, mask=real)


@triton.jit
def _near(
    acc, z, q, t, K, V, begin, end, N, c2, shift, rest, D: tl.constexpr, M: tl.constexpr,
    BK: tl.constexpr, EDGE: tl.constexpr, CAUSAL: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Add the keys from begin to end; only at the edge may some be hidden or missing."""
    d, m, kk = tl.arange(0, D), tl.arange(0, M), tl.arange(0, BK)
    for k0 in range(begin, end, BK):
        u = k0 + kk
        if EDGE:
            k = tl.load(K + u[:, None] * D + d[None, :], mask=(u < N)[:, None], other=0.0)
            v = tl.load(V + u[:, None] * M + m[None, :], mask=(u < N)[:, None], other=0.0)
        else:
            k = tl.load(K + u[:, None] * D + d[None, :])
            v = tl.load(V + u[:, None] * M + m[None, :])
        x = tl.dot(q, tl.trans(k), input_precision=PREC) + shift
        x = c2 * x * x + rest
        if EDGE:
            hidden = u[None, :] > t[:, None] if CAUSAL else (u >= N)[None, :]
            x = tl.where(hidden, 0.0, x)
            # Where few keys are seen, the normaliser adds up just what the product gets.
            x = x.to(v.dtype).to(tl.float32)
        z += tl.sum(x, 1)
        acc = tl.dot(x.to(v.dtype), v, acc, input_precision=PREC)
    return acc, z
