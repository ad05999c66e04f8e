"""One new token for every row: its key and value join the sums, and its queries read them.

A state is read once and written once, to new memory, so that the one before stays as it was; what
a token costs is that traffic. A program takes some columns of values through all rows of phi, so
none has to wait for another, and results do not depend on how they are spread out.
"""

# The kernel is in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode_token(
    q_LGD, k_LD, v_LM, real_L, decay_L, letters_2F, weights_F, outer_LFM, total_LF,
    out_LGM, outer_after_LFM, total_after_LF, F,
    G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    """Write the sums of one lane after its token, and the output of its G queries, COLUMNS columns.

    outer' (F, M) = gate outer + phi(k) v^T,  total' (F) = gate total + phi(k),
    out_g (M) = phi(q_g) outer' / (phi(q_g).total'),  phi_r(x) = weight_r x_i x_j

    with the letters i, j of feature r, where the letter D stands for the number 1; zeros where the
    denominator is 0. GROUP is G filled up to a power of two. ROWS features are taken at a time; if
    COUNTED, real_L is 0 for lanes whose token is padding; decay_L, if there is one, is the gates'
    logarithms, 0 for padding.
    """
    lane, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    m = part * COLUMNS + tl.arange(0, COLUMNS)
    g = tl.arange(0, GROUP)
    v = tl.load(v_LM + lane * M + m, mask=m < M, other=0.0).to(tl.float32)
    present = 1.0
    if COUNTED:
        present = tl.load(real_L + lane).to(tl.float32)
    gate = 1.0
    if decay_L is not None:
        gate = tl.exp(tl.load(decay_L + lane))
    queries = q_LGD + (lane * G + g[:, None]) * D
    q_D, k_D = q_LGD + lane * D, k_LD + lane * D
    outer_FM, outer_after_FM = outer_LFM + lane * F * M, outer_after_LFM + lane * F * M
    total_F, total_after_F = total_LF + lane * F, total_after_LF + lane * F
    n = tl.zeros((ROWS, COLUMNS), tl.float32)
    z = tl.zeros((ROWS,), tl.float32)
    if GROUP > 1:
        many = tl.zeros((GROUP, ROWS, COLUMNS), tl.float32)
        norms = tl.zeros((GROUP, ROWS), tl.float32)
    r = tl.arange(0, ROWS)
    at = r[:, None] * M + m[None, :]
    column = (m < M)[None, :]
    # What comes next is on its way while this is worked on.
    next_sums = tl.load(outer_FM + at, mask=(r < F)[:, None] & column, other=0.0)
    next_i = tl.load(letters_2F + r, mask=r < F, other=D)
    next_j = tl.load(letters_2F + F + r, mask=r < F, other=D)
    next_w = tl.load(weights_F + r, mask=r < F, other=0.0)
    next_total = tl.load(total_F + r, mask=r < F, other=0.0)
    for _ in tl.range(0, F, ROWS, num_stages=1):
        sums, total, i, j, w = next_sums, next_total, next_i, next_j, next_w
        here, inside = at, r < F
        r += ROWS
        at += ROWS * M
        next_sums = tl.load(outer_FM + at, mask=(r < F)[:, None] & column, other=0.0)
        next_i = tl.load(letters_2F + r, mask=r < F, other=D)
        next_j = tl.load(letters_2F + F + r, mask=r < F, other=D)
        next_w = tl.load(weights_F + r, mask=r < F, other=0.0)
        next_total = tl.load(total_F + r, mask=r < F, other=0.0)
        k_i = tl.load(k_D + i, mask=i < D, other=1.0).to(tl.float32)
        k_j = tl.load(k_D + j, mask=j < D, other=1.0).to(tl.float32)
        phi_k = present * w * k_i * k_j
        new = gate * sums.to(tl.float32) + phi_k[:, None] * v[None, :]
        total = gate * total.to(tl.float32) + phi_k
        kept = new.to(outer_after_FM.dtype.element_ty)
        tl.store(outer_after_FM + here, kept, mask=inside[:, None] & column)
        if part == 0:
            old = r - ROWS
            tl.store(total_after_F + old, total.to(total_after_F.dtype.element_ty), mask=inside)
        if GROUP == 1:
            q_i = tl.load(q_D + i, mask=i < D, other=1.0).to(tl.float32)
            q_j = tl.load(q_D + j, mask=j < D, other=1.0).to(tl.float32)
            phi_q = w * q_i * q_j
            n += phi_q[:, None] * new
            z += phi_q * total
        else:
            asking = (g < G)[:, None]
            q_i = tl.load(queries + i[None, :], mask=asking & (i < D)[None, :], other=1.0)
            q_j = tl.load(queries + j[None, :], mask=asking & (j < D)[None, :], other=1.0)
            phis = w[None, :] * q_i.to(tl.float32) * q_j.to(tl.float32)
            many += phis[:, :, None] * new[None, :, :]
            norms += phis * total[None, :]
    if GROUP == 1:
        norm = tl.sum(z, 0)
        out = tl.where(norm == 0, 0.0, tl.sum(n, 0) / tl.where(norm == 0, 1.0, norm))
        tl.store(out_LGM + lane * M + m, out.to(out_LGM.dtype.element_ty), mask=m < M)
    else:
        norm = tl.sum(norms, 1)[:, None]
        outs = tl.where(norm == 0, 0.0, tl.sum(many, 1) / tl.where(norm == 0, 1.0, norm))
        at = (lane * G + g[:, None]) * M + m[None, :]
        tl.store(out_LGM + at, outs.to(out_LGM.dtype.element_ty), mask=(g < G)[:, None] & column)
