"""Tokens that meet pair by pair, a tile at a time: what every kernel does with those that are near.

A row of a tile sees the tokens from `low` to before `up`, columns or numbers; only at an edge of
the loop may some be hidden or missing. REAL, if given, is 0 for padding, whose k and v are zeros. A
similarity is f = x^2 + rest with x = rise q.k + shift; for o, e and w see `gradients`.
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def turn(together, LAST_FIRST: tl.constexpr, FAR: tl.constexpr):
    """Return a program's block and its row, long loops first: short ones fill the gaps they leave.

    Rows take turns, `together` of them at a time, whose keys a cache holds. Where keys are far,
    loops are alike, and one row comes after the other.
    """
    if FAR:
        return tl.program_id(0), tl.program_id(1).to(tl.int64)
    blocks, rows = tl.num_programs(0), tl.num_programs(1)
    first = tl.program_id(1) // together * together
    taking = tl.minimum(together, rows - first)
    at = (tl.program_id(1) - first) * blocks + tl.program_id(0)
    block = at // taking
    if LAST_FIRST:
        block = blocks - 1 - block
    return block, (first + at % taking).to(tl.int64)


@triton.jit
def tokens(X, t, T, WIDTH: tl.constexpr):
    """Return the tokens t of X (T, WIDTH); those past the last are zeros."""
    at = t[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.load(X + at, mask=(t < T)[:, None], other=0.0)


@triton.jit
def read(
    acc, z, q, low, up, K, V, REAL, begin, end, N, rise, shift, rest,
    D: tl.constexpr, M: tl.constexpr, BK: tl.constexpr, EDGE: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Add f v and f for the keys from begin to end."""
    d, m, kk = tl.arange(0, D), tl.arange(0, M), tl.arange(0, BK)
    some = tl.zeros((q.shape[0], 8), tl.float32)  # f of every eighth key: threads need not meet
    for k0 in range(begin, end, BK):
        u = k0 + kk
        if EDGE:
            k, v = tokens(K, u, N, D), tokens(V, u, N, M)
        else:
            k = tl.load(K + u[:, None] * D + d[None, :])
            v = tl.load(V + u[:, None] * M + m[None, :])
        x = rise * tl.dot(q, tl.trans(k), input_precision=PREC) + shift
        f = x * x + rest
        if EDGE:
            f = tl.where(hidden(u[None, :], low, up), 0.0, f)
        if REAL is not None:
            f = tl.where(tl.load(REAL + u, mask=u < N, other=0)[None, :] == 0, 0.0, f)
        if EDGE:
            # Where few keys are seen, the normaliser adds up just what the product gets.
            f = f.to(v.dtype).to(tl.float32)
        some += tl.sum(tl.reshape(f, (q.shape[0], BK // 8, 8)), 1)
        acc = tl.dot(f.to(v.dtype), v, acc, input_precision=PREC)
    return acc, z + tl.sum(some, 1)


@triton.jit
def from_keys(
    acc, q, o, e, low, up, K, V, begin, end, N, rise, shift, D: tl.constexpr, M: tl.constexpr,
    BK: tl.constexpr, EDGE: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Add z w x k for the keys from begin to end; those past the last are zeros."""
    for k0 in range(begin, end, BK):
        u = k0 + tl.arange(0, BK)
        k, v = tokens(K, u, N, D), tokens(V, u, N, M)
        x = rise * tl.dot(q, tl.trans(k), input_precision=PREC) + shift
        w = x * (tl.dot(o, tl.trans(v), input_precision=PREC) + e[:, None])
        if EDGE:
            w = tl.where(hidden(u[None, :], low, up), 0.0, w)
        acc = tl.dot(w.to(k.dtype), k, acc, input_precision=PREC)
    return acc


@triton.jit
def from_queries(
    dk, dv, k, v, low, up, Q, DOUT, E, INVERSE, begin, end, T, rise, shift, rest,
    D: tl.constexpr, M: tl.constexpr, BQ: tl.constexpr, EDGE: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Add w x q and f o / z for the queries from begin to end; past the last, all are zeros."""
    for t0 in range(begin, end, BQ):
        t = t0 + tl.arange(0, BQ)
        q, o = tokens(Q, t, T, D), tokens(DOUT, t, T, M)
        e = tl.load(E + t, mask=t < T, other=0.0)
        inverse = tl.load(INVERSE + t, mask=t < T, other=0.0)[None, :]
        x = rise * tl.dot(k, tl.trans(q), input_precision=PREC) + shift
        y = x * inverse
        w = y * (tl.dot(v, tl.trans(o), input_precision=PREC) + e[None, :])
        f = y * x + rest * inverse
        if EDGE:
            w = tl.where(hidden(t[None, :], low, up), 0.0, w)
            f = tl.where(hidden(t[None, :], low, up), 0.0, f)
        dv = tl.dot(f.to(o.dtype), o, dv, input_precision=PREC)
        dk = tl.dot(w.to(q.dtype), q, dk, input_precision=PREC)
    return dk, dv


@triton.jit
def hidden(u, low, up):
    """Return which tokens u, in a row, each row does not see."""
    return (u < low) | (u >= up)


@triton.jit
def settle(
    acc, z, OUT, MORE, INVERSE, row, t, T, M: tl.constexpr, KEEP: tl.constexpr
):  # fmt: skip
    """Write acc / z, what rounding takes from it, and 1 / z; 0 for those who see nothing."""
    real, m = t < T, tl.arange(0, M)
    inverse = tl.where(z == 0, 0.0, 1.0 / z)
    acc *= inverse[:, None]
    out = acc.to(OUT.dtype.element_ty)
    at = row * T * M + t[:, None] * M + m[None, :]
    tl.store(OUT + at, out, mask=real[:, None])
    if KEEP:
        more = (acc - out.to(tl.float32)).to(MORE.dtype.element_ty)
        tl.store(MORE + at, more, mask=real[:, None])
    tl.store(INVERSE + row * T + t, inverse, mask=real)
