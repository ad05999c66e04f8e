"""Tokens that meet pair by pair, a tile at a time: the part of every kernel for near tokens.

A row of a tile sees the tokens from `low` to before `up`, columns or numbers; only at an edge of
the loop (EDGE) may some be hidden or missing. The similarity of a query and a key is
f = x^2 + offset with x = rise q.k + shift, without an offset where it is None; o, e and w are those
of `gradients`. With gates_5N, the table of `gates`, pairs are multiplied by what is left of the key
at the query at an edge; elsewhere by what is left between the tile's tokens and the sum G (large
and small) of the edge of the other side's block, and the caller sees to the rest. At an edge, large
and small are columns, of each row.
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from querykey.backends.triton.kernels.gates import (
    left,
    left_before_granule,
    left_of_granule,
    logs,
)


@triton.jit
def lowest(shift, offset):
    """Return the similarity at q.k = 0, shift^2 + offset."""
    return shift * shift if offset is None else shift * shift + offset


@triton.jit
def scheduled(rows_at_once, LAST_FIRST: tl.constexpr, FAR: tl.constexpr):
    """Return a program's block and its row, long loops first: short ones fill the gaps they leave.

    Rows take turns, `rows_at_once` of them at a time, whose keys a cache holds. Where keys are far,
    loops are alike, and one row comes after the other.
    """
    if FAR:
        return tl.program_id(0), tl.program_id(1).to(tl.int64)
    blocks, rows = tl.num_programs(0), tl.num_programs(1)
    first = tl.program_id(1) // rows_at_once * rows_at_once
    taking = tl.minimum(rows_at_once, rows - first)
    at = (tl.program_id(1) - first) * blocks + tl.program_id(0)
    block = at // taking
    if LAST_FIRST:
        block = blocks - 1 - block
    return block, (first + at % taking).to(tl.int64)


@triton.jit
def load_tokens(x_TW, t, T, WIDTH: tl.constexpr):
    """Return the tokens t of x (T, WIDTH); those past the last are zeros."""
    at = t[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.load(x_TW + at, mask=(t < T)[:, None], other=0.0)


@triton.jit
def is_hidden(u, low, up):
    """Return which of the tokens u each row does not see."""
    return (u < low) | (u >= up)


@triton.jit
def eighths(x):
    """Return the sums of every eighth column: threads need not meet."""
    return tl.sum(tl.reshape(x, (x.shape[0], x.shape[1] // 8, 8)), 1)


@triton.jit
def add_outputs(
    acc, z, q, low, up, k_ND, v_NM, real_N, gates_5N, large, small, begin, end, N,
    rise, shift, offset, D: tl.constexpr, M: tl.constexpr, BK: tl.constexpr,
    GRANULE: tl.constexpr, EDGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return acc_i + sum_j f_ij v_j and z_i + sum_j f_ij over the keys j from begin to end.

    acc (BQ, M), z (BQ,), q (BQ, D). real_N, if there is one, is 0 for padding.
    """
    d, m, kk = tl.arange(0, D), tl.arange(0, M), tl.arange(0, BK)
    some = tl.zeros((q.shape[0], 8), tl.float32)
    rest = 1.0
    if gates_5N is not None and not EDGE:
        rest = left_of_granule(gates_5N, begin, large, small, N, GRANULE)
    for k0 in range(begin, end, BK):
        u = k0 + kk
        if EDGE:
            k, v = load_tokens(k_ND, u, N, D), load_tokens(v_NM, u, N, M)
        else:
            k = tl.load(k_ND + u[:, None] * D + d[None, :])
            v = tl.load(v_NM + u[:, None] * M + m[None, :])
        x = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if EDGE or gates_5N is None:
            x = rise * x + shift
            f = x * x
            if offset is not None:
                f += offset
        else:
            root = tl.sqrt(rest) * tl.load(gates_5N + 2 * N + u)
            x = (rise * root)[None, :] * x + (shift * root)[None, :]
            f = x * x
            if offset is not None:
                f += (offset * root * root)[None, :]
            # For the next tile: nobody has to wait for it then.
            rest = left_of_granule(gates_5N, k0 + BK, large, small, N, GRANULE)
        if EDGE:
            if gates_5N is not None:
                large_u, small_u = logs(gates_5N, u, N)
                f *= left(large, small, large_u[None, :], small_u[None, :])
            f = tl.where(is_hidden(u[None, :], low, up), 0.0, f)
        if real_N is not None:
            f = tl.where(tl.load(real_N + u, mask=u < N, other=0)[None, :] == 0, 0.0, f)
        if EDGE:
            # Where few keys are seen, the normaliser adds up just what the product gets.
            f = f.to(v.dtype).to(tl.float32)
        some += eighths(f)
        acc = tl.dot(f.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, z + tl.sum(some, 1)


@triton.jit
def add_query_gradients(
    acc, total, q, o, e, low, up, k_ND, v_NM, real_N, gates_5N, large, small, begin, end, N,
    rise, shift, offset, D: tl.constexpr, M: tl.constexpr, BK: tl.constexpr,
    GRANULE: tl.constexpr, EDGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return acc_i + sum_j z_i w_ij x_ij k_j over the keys j from begin to end.

    acc (BQ, D), q (BQ, D), o (BQ, M), e (BQ,). Keys past the last are zeros. With gates also
    total_i + sum_j z_i w_ij f_ij, total (BQ,). real_N, if there is one, is 0 for padding.
    """
    some = tl.zeros((q.shape[0], 8), tl.float32)
    rest = 1.0
    if gates_5N is not None and not EDGE:
        rest = left_of_granule(gates_5N, begin, large, small, N, GRANULE)
    for k0 in range(begin, end, BK):
        u = k0 + tl.arange(0, BK)
        k, v = load_tokens(k_ND, u, N, D), load_tokens(v_NM, u, N, M)
        x = rise * tl.dot(q, tl.trans(k), input_precision=PRECISION) + shift
        y = tl.dot(o, tl.trans(v), input_precision=PRECISION) + e[:, None]
        if gates_5N is not None:
            if EDGE:
                large_u, small_u = logs(gates_5N, u, N)
                y *= left(large, small, large_u[None, :], small_u[None, :])
            else:
                root = tl.load(gates_5N + 2 * N + u)
                y *= (rest * root * root)[None, :]
                rest = left_of_granule(gates_5N, k0 + BK, large, small, N, GRANULE)
            if real_N is not None:
                y = tl.where(tl.load(real_N + u, mask=u < N, other=0)[None, :] == 0, 0.0, y)
        if EDGE:
            y = tl.where(is_hidden(u[None, :], low, up), 0.0, y)
        w = x * y
        if gates_5N is not None:
            p = w * x
            if offset is not None:
                p += offset * y
            some += eighths(p)
        acc = tl.dot(w.to(k.dtype), k, acc, input_precision=PRECISION)
    return acc, total + tl.sum(some, 1)


@triton.jit
def add_key_gradients(
    dk, dv, total, k, v, low, up, q_TD, dout_TM, e_T, inverse_T, gates_5N, large, small,
    begin, end, T, rise, shift, offset, D: tl.constexpr, M: tl.constexpr, BQ: tl.constexpr,
    GRANULE: tl.constexpr, EDGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return dk_j + sum_i w_ij x_ij q_i and dv_j + sum_i f_ij o_i / z_i over queries i.

    dk (BK, D), dv (BK, M), k (BK, D), v (BK, M); i goes from begin to end, past the last all are
    zeros. With gates also total_j + sum_i w_ij f_ij, total (BK,).
    """
    some = tl.zeros((k.shape[0], 8), tl.float32)
    rest = 1.0
    if gates_5N is not None and not EDGE:
        rest = left_before_granule(gates_5N, begin, large, small, T, GRANULE)
    for t0 in range(begin, end, BQ):
        t = t0 + tl.arange(0, BQ)
        q, o = load_tokens(q_TD, t, T, D), load_tokens(dout_TM, t, T, M)
        e = tl.load(e_T + t, mask=t < T, other=0.0)
        inverse = tl.load(inverse_T + t, mask=t < T, other=0.0)
        if gates_5N is not None and not EDGE:
            inverse *= rest * tl.load(gates_5N + 3 * T + t, mask=t < T, other=0.0)
            rest = left_before_granule(gates_5N, t0 + BQ, large, small, T, GRANULE)
        inverse = inverse[None, :]
        x = rise * tl.dot(k, tl.trans(q), input_precision=PRECISION) + shift
        y = x * inverse
        h = tl.dot(v, tl.trans(o), input_precision=PRECISION) + e[None, :]
        w = y * h
        f = y * x
        if offset is not None:
            f += offset * inverse
        if EDGE:
            if gates_5N is not None:
                large_t, small_t = logs(gates_5N, t, T)
                both = left(large_t[None, :], small_t[None, :], large, small)
                w, f = w * both, f * both
            w = tl.where(is_hidden(t[None, :], low, up), 0.0, w)
            f = tl.where(is_hidden(t[None, :], low, up), 0.0, f)
        if gates_5N is not None:
            some += eighths(f * h)
        dv = tl.dot(f.to(o.dtype), o, dv, input_precision=PRECISION)
        dk = tl.dot(w.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv, total + tl.sum(some, 1)


@triton.jit
def write_outputs(
    acc, z, out_LGTM, residue_LGTM, inverse_LGT, row, t, place, T,
    M: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Write out = acc / z, residue = acc / z - out, and 1 / z; zeros where z is 0.

    acc (BQ, M), z (BQ,). The residue is what rounding the output took from it. Token t has its
    1 / z at t, and its output and residue at `place`.
    """
    real, m = t < T, tl.arange(0, M)
    inverse = tl.where(z == 0, 0.0, 1.0 / z)
    acc *= inverse[:, None]
    out = acc.to(out_LGTM.dtype.element_ty)
    at = row * T * M + place[:, None] * M + m[None, :]
    tl.store(out_LGTM + at, out, mask=real[:, None])
    if KEEP:
        residue = (acc - out.to(tl.float32)).to(residue_LGTM.dtype.element_ty)
        tl.store(residue_LGTM + at, residue, mask=real[:, None])
    tl.store(inverse_LGT + row * T + t, inverse, mask=real)
