"""How a query or key reads the sums S_ij of `sums`: as matrices, a tile at a time."""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tiles(square_PDM, D: tl.constexpr, M: tl.constexpr):
    """Return pointers to S_0, and to S_H with the step to the next; S_b holds S_ab for all a.

    S_ab = S_ba, so three quarters of the square are kept. With H = D / 2, tile i < H holds S_ij for
    every j; tile H + p holds those of i = H + 2 p and, below them, of i = H + 2 p + 1, for j >= H.
    """
    H: tl.constexpr = D // 2
    a, m = tl.arange(0, D)[:, None], tl.arange(0, M)[None, :]
    upper = tl.where(a < H, a * D + H, H * D + a - H)
    # Times M at last, so that Triton sees that rows begin where 16 bytes do.
    return square_PDM + a * M + m, square_PDM + upper * M + m, tl.where(a < H, 1, H) * M


@triton.jit
def held(x, PRECISION: tl.constexpr):
    """Return x in the registers that a product takes it from: its exact product with 1."""
    d = tl.arange(0, x.shape[1])
    one = (d[:, None] == d[None, :]).to(x.dtype)
    return tl.dot(x, one, input_precision=PRECISION).to(x.dtype)


@triton.jit
def read_halves(
    x, x_i, square_PDM, some,
    D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return sum_b x_b (x S_b), (ROWS, M), for x (ROWS, D) from half of the tiles b >= D / 2.

    x_i points at x_0 of every row, x_1 being STEP further on; zeros where `some` is 0. Products
    first, then each row times its x_b: as fast as the matrix units read S. S_ab = S_ba, so tile
    b < H counts twice for a >= H, and b >= H needs those alone.
    """
    H: tl.constexpr = D // 2
    d, h, m = tl.arange(0, D), tl.arange(0, H), tl.arange(0, M)
    acc = tl.zeros((ROWS, M), tl.float32)
    lower = square_PDM + d[:, None] * M + m[None, :]
    left = held(tl.where(d[None, :] < H, x, x + x), PRECISION)
    for b in tl.range(0, H * some, 2):
        s0 = tl.load(lower + b * D * M)
        s1 = tl.load(lower + b * D * M + D * M)
        x0 = tl.load(x_i + b * STEP).to(tl.float32)[:, None]
        x1 = tl.load(x_i + b * STEP + STEP).to(tl.float32)[:, None]
        acc += x0 * tl.dot(left, s0, input_precision=PRECISION)
        acc += x1 * tl.dot(left, s1, input_precision=PRECISION)
    upper = square_PDM + H * D * M + h[:, None] * M + m[None, :]
    right = held(tl.trans(tl.load(x_i[None, :] + (H + h)[:, None] * STEP)), PRECISION)
    for b in tl.range(0, H * some, 2):
        s0 = tl.load(upper + b * H * M)
        s1 = tl.load(upper + b * H * M + H * M)
        x0 = tl.load(x_i + (H + b) * STEP).to(tl.float32)[:, None]
        x1 = tl.load(x_i + (H + b + 1) * STEP).to(tl.float32)[:, None]
        acc += x0 * tl.dot(right, s0, input_precision=PRECISION)
        acc += x1 * tl.dot(right, s1, input_precision=PRECISION)
    return acc


@triton.jit
def read_whole(
    x, x_i, square_PDM, some,
    D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr,
    TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return sum_b x_b (x S_b), (ROWS, M), from whole tiles, as `read_halves` does from half ones.

    Where TRANSPOSED it is sum_b x_b (y S_b^T), (ROWS, D), with y (ROWS, M) in x's place.
    """
    H: tl.constexpr = D // 2
    lower, upper, step = tiles(square_PDM, D, M)
    acc = tl.zeros((ROWS, D if TRANSPOSED else M), tl.float32)
    for b in tl.range(0, H * some):  # two tiles a step: fewer waits
        s0 = tl.load(lower + b * D * M)
        s1 = tl.load(upper + b * step)
        x0 = tl.load(x_i + b * STEP).to(tl.float32)[:, None]
        x1 = tl.load(x_i + (H + b) * STEP).to(tl.float32)[:, None]
        acc += x0 * tl.dot(x, tl.trans(s0) if TRANSPOSED else s0, input_precision=PRECISION)
        acc += x1 * tl.dot(x, tl.trans(s1) if TRANSPOSED else s1, input_precision=PRECISION)
    return acc
