"""One new token for every row: its key and value join the sums, and its queries read them.

A state is read once and written once, to new memory, so that the one before stays as it was; what
a token costs is that traffic. A program takes some columns of values through all rows of phi, so
none has to wait for another, and results do not depend on how they are spread out.
"""

# The kernel is in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from querykey.backends.triton.launches import start
from querykey.backends.triton.layout import layout
from querykey.backends.triton.plans import Launch


@dataclass(frozen=True)
class Cut:
    """Columns of values to a program, rows of phi to a step, and how it runs."""

    columns: int
    rows: int
    warps: int


def cut(lanes: int, group: int) -> Cut:
    """Return the cut for so many lanes with so many queries each: measured on an H200."""
    if lanes < 64:  # as many programs as there are multiprocessors, and much for each at a time
        return Cut(8, max(1024 // group, 64), 16)
    if lanes < 256:
        return Cut(32, max(128 // group, 32), 4)
    return Cut(64, max(256 // group, 32), 8)


@triton.jit
def token(
    Q, K, V, REAL, LETTERS, WEIGHTS, OUTER, TOTAL, OUT, OUTER_AFTER, TOTAL_AFTER, C,
    G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    """Take one token of a lane into COLUMNS columns of its sums, and answer its G queries there."""
    lane, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    m = part * COLUMNS + tl.arange(0, COLUMNS)
    g = tl.arange(0, GROUP)
    v = tl.load(V + lane * M + m, mask=m < M, other=0.0).to(tl.float32)
    there = 1.0
    if COUNTED:
        there = tl.load(REAL + lane).to(tl.float32)
    QS = Q + (lane * G + g[:, None]) * D
    Q, K = Q + lane * D, K + lane * D
    OUTER, OUTER_AFTER = OUTER + lane * C * M, OUTER_AFTER + lane * C * M
    TOTAL, TOTAL_AFTER = TOTAL + lane * C, TOTAL_AFTER + lane * C
    n = tl.zeros((ROWS, COLUMNS), tl.float32)
    z = tl.zeros((ROWS,), tl.float32)
    if GROUP > 1:
        many = tl.zeros((GROUP, ROWS, COLUMNS), tl.float32)
        norms = tl.zeros((GROUP, ROWS), tl.float32)
    r = tl.arange(0, ROWS)
    at = r[:, None] * M + m[None, :]
    column = (m < M)[None, :]
    # What comes next is on its way while this is worked on.
    next_sums = tl.load(OUTER + at, mask=(r < C)[:, None] & column, other=0.0)
    next_i = tl.load(LETTERS + r, mask=r < C, other=D)
    next_j = tl.load(LETTERS + C + r, mask=r < C, other=D)
    next_w = tl.load(WEIGHTS + r, mask=r < C, other=0.0)
    next_total = tl.load(TOTAL + r, mask=r < C, other=0.0)
    for _ in tl.range(0, C, ROWS, num_stages=1):
        sums, total, i, j, w = next_sums, next_total, next_i, next_j, next_w
        here, inside = at, r < C
        r += ROWS
        at += ROWS * M
        next_sums = tl.load(OUTER + at, mask=(r < C)[:, None] & column, other=0.0)
        next_i = tl.load(LETTERS + r, mask=r < C, other=D)
        next_j = tl.load(LETTERS + C + r, mask=r < C, other=D)
        next_w = tl.load(WEIGHTS + r, mask=r < C, other=0.0)
        next_total = tl.load(TOTAL + r, mask=r < C, other=0.0)
        k_i = tl.load(K + i, mask=i < D, other=1.0).to(tl.float32)
        k_j = tl.load(K + j, mask=j < D, other=1.0).to(tl.float32)
        phi_k = there * w * k_i * k_j
        new = sums.to(tl.float32) + phi_k[:, None] * v[None, :]
        total = total.to(tl.float32) + phi_k
        kept = new.to(OUTER_AFTER.dtype.element_ty)
        tl.store(OUTER_AFTER + here, kept, mask=inside[:, None] & column)
        if part == 0:
            old = r - ROWS
            tl.store(TOTAL_AFTER + old, total.to(TOTAL_AFTER.dtype.element_ty), mask=inside)
        if GROUP == 1:
            q_i = tl.load(Q + i, mask=i < D, other=1.0).to(tl.float32)
            q_j = tl.load(Q + j, mask=j < D, other=1.0).to(tl.float32)
            phi_q = w * q_i * q_j
            n += phi_q[:, None] * new
            z += phi_q * total
        else:
            known = (g < G)[:, None]
            q_i = tl.load(QS + i[None, :], mask=known & (i < D)[None, :], other=1.0)
            q_j = tl.load(QS + j[None, :], mask=known & (j < D)[None, :], other=1.0)
            phis = w[None, :] * q_i.to(tl.float32) * q_j.to(tl.float32)
            many += phis[:, :, None] * new[None, :, :]
            norms += phis * total[None, :]
    if GROUP == 1:
        norm = tl.sum(z, 0)
        out = tl.where(norm == 0, 0.0, tl.sum(n, 0) / tl.where(norm == 0, 1.0, norm))
        tl.store(OUT + lane * M + m, out.to(OUT.dtype.element_ty), mask=m < M)
    else:
        norm = tl.sum(norms, 1)[:, None]
        outs = tl.where(norm == 0, 0.0, tl.sum(many, 1) / tl.where(norm == 0, 1.0, norm))
        at = (lane * G + g[:, None]) * M + m[None, :]
        tl.store(OUT + at, outs.to(OUT.dtype.element_ty), mask=(g < G)[:, None] & column)


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    outer: Tensor,
    total: Tensor,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs (lanes, group, M) and the two sums after q (lanes, group, D), k and v."""
    lanes, group, key_dim = q.shape
    width, value_dim = outer.shape[1:]
    made = layout(key_dim, key_dim + key_dim % 2, numbers, q.device)
    out = q.new_empty((lanes, group, value_dim))
    after = outer.new_empty(outer.shape), total.new_empty(total.shape)
    padded = triton.next_power_of_2(group)
    plan = cut(lanes, padded)
    start(
        token, (lanes, triton.cdiv(value_dim, plan.columns)),
        q, k, v, real, made.letters, made.weights, outer, total, out, *after, width, group, key_dim,
        value_dim, padded, plan.columns, plan.rows, real is not None,
        launch=Launch(0, 0, plan.warps, 1),
    )  # fmt: skip
    return out, *after
