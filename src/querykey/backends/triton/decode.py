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

from querykey.backends.triton.layout import layout


@dataclass(frozen=True)
class Cut:
    """Columns of values to a program, rows of phi to a step, and how it runs."""

    columns: int
    rows: int
    warps: int
    stages: int


def cut(lanes: int, size: int) -> Cut:
    """Return the cut for so many lanes and sums of `size` bytes: narrow where lanes are few."""
    narrow = 32 // size  # what memory hands out at once
    return Cut(narrow, 128, 4, 3) if lanes < 264 else Cut(2 * narrow, 64, 4, 3)


@triton.jit
def token(
    Q, K, V, REAL, LETTERS, WEIGHTS, OUTER, TOTAL, OUT, OUTER_AFTER, TOTAL_AFTER, C,
    G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, COUNTED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Take one token of a lane into COLUMNS columns of its sums, and answer its G queries there."""
    lane, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    m = part * COLUMNS + tl.arange(0, COLUMNS)
    g = tl.arange(0, GROUP)
    v = tl.load(V + lane * M + m, mask=m < M, other=0.0).to(tl.float32)
    there = 1.0
    if COUNTED:
        there = tl.load(REAL + lane).to(tl.float32)
    Q, K = Q + (lane * G + g[:, None]) * D, K + lane * D
    OUTER, OUTER_AFTER = OUTER + lane * C * M, OUTER_AFTER + lane * C * M
    TOTAL, TOTAL_AFTER = TOTAL + lane * C, TOTAL_AFTER + lane * C
    n = tl.zeros((GROUP, ROWS, COLUMNS), tl.float32)
    z = tl.zeros((GROUP, ROWS), tl.float32)
    for r0 in tl.range(0, C, ROWS, num_stages=STAGES):
        r = r0 + tl.arange(0, ROWS)
        inside = r < C
        at = r[:, None] * M + m[None, :]
        here = inside[:, None] & (m < M)[None, :]
        sums = tl.load(OUTER + at, mask=here, other=0.0).to(tl.float32)
        total = tl.load(TOTAL + r, mask=inside, other=0.0).to(tl.float32)
        i = tl.load(LETTERS + r, mask=inside, other=D)
        j = tl.load(LETTERS + C + r, mask=inside, other=D)
        w = tl.load(WEIGHTS + r, mask=inside, other=0.0)
        k_i = tl.load(K + i, mask=i < D, other=1.0).to(tl.float32)
        k_j = tl.load(K + j, mask=j < D, other=1.0).to(tl.float32)
        q_i = tl.load(Q + i[None, :], mask=(g < G)[:, None] & (i < D)[None, :], other=1.0)
        q_j = tl.load(Q + j[None, :], mask=(g < G)[:, None] & (j < D)[None, :], other=1.0)
        phi_k = there * w * k_i * k_j
        phi_q = w[None, :] * q_i.to(tl.float32) * q_j.to(tl.float32)
        sums += phi_k[:, None] * v[None, :]
        total += phi_k
        tl.store(OUTER_AFTER + at, sums.to(OUTER_AFTER.dtype.element_ty), mask=here)
        if part == 0:
            tl.store(TOTAL_AFTER + r, total.to(TOTAL_AFTER.dtype.element_ty), mask=inside)
        n += phi_q[:, :, None] * sums[None, :, :]
        z += phi_q * total[None, :]
    norm = tl.sum(z, 1)[:, None]
    out = tl.where(norm == 0, 0.0, tl.sum(n, 1) / tl.where(norm == 0, 1.0, norm))
    at = (lane * G + g[:, None]) * M + m[None, :]
    here = (g < G)[:, None] & (m < M)[None, :]
    tl.store(OUT + at, out.to(OUT.dtype.element_ty), mask=here)


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
    plan = cut(lanes, outer.element_size())
    token[(lanes, triton.cdiv(value_dim, plan.columns))](
        q, k, v, real, made.letters, made.weights, outer, total, out, *after, width, group, key_dim,
        value_dim, triton.next_power_of_2(group), plan.columns, plan.rows, real is not None,
        plan.stages, num_warps=plan.warps,
    )  # fmt: skip
    return out, *after
