"""Sums over a chunk of tokens, and over all chunks before (or after) one: what far tokens leave.

For tokens x (key_dim) and y (value_dim), with a weight w per token that is 1 for keys:

    degree 2   S_ij = sum x_i x_j y      in tiles, see `tiles`, in the precision of the inputs
    the rest   sum x y^T, sum w x x^T, sum y, sum w x     side by side in float32: the moments

Forward x, y are k, v; backward, for what later queries ask of a key, they are q and g.
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def turned(X, XT, T, blocks, D: tl.constexpr, W: tl.constexpr):
    """Write X in blocks of W tokens with tokens last, (blocks, D, W), and zeros past token T."""
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    d, tt = tl.arange(0, D), tl.arange(0, W)
    t = block * W + tt
    X += row * T * D
    x = tl.load(X + t[:, None] * D + d[None, :], mask=(t < T)[:, None], other=0.0)
    tl.store(XT + (row * blocks + block) * D * W + d[:, None] * W + tt[None, :], tl.trans(x))


@triton.jit
def states(
    X, XT, Y, WEIGHT, S, P, T, blocks, chunks,
    G: tl.constexpr, L: tl.constexpr, D: tl.constexpr, M: tl.constexpr, W: tl.constexpr,
    FIRST: tl.constexpr, EVEN: tl.constexpr, WEIGHTED: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Write the moments of a chunk, or four tiles of its degree 2, see `tiles`."""
    part, c, lane = tl.program_id(0), tl.program_id(1) + FIRST, tl.program_id(2).to(tl.int64)
    XT, Y = XT + lane * G * blocks * W * D, Y + lane * G * T * M
    # As many steps as a chunk has, whole or not: products then need not wait for each other.
    begin, end = c * L, c * L + L
    i = part * 4 - 4
    S += ((lane * chunks + c) * (3 * D // 4) + i) * D * M
    if part == 0:
        X += lane * G * T * D
        P += (lane * chunks + c) * (D * M + D * D + M + D)
        if WEIGHTED:
            WEIGHT += lane * G * T
        _moments(X, XT, Y, WEIGHT, P, begin, end, T, blocks, G, D, M, W, WEIGHTED, PREC)
    elif i < D // 2:
        _fourfold(XT, Y, S, begin, end, T, blocks, i, G, D, M, W, False, EVEN, PREC)
    else:
        i = 2 * i - D // 2
        _fourfold(XT, Y, S, begin, end, T, blocks, i, G, D, M, W, True, EVEN, PREC)


@triton.jit
def _moments(
    X, XT, Y, WEIGHT, P, begin, end, T, blocks,
    G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, W: tl.constexpr,
    WEIGHTED: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Write the moments of degree 0 and 1 and those of the normaliser."""
    d, m, tt = tl.arange(0, D), tl.arange(0, M), tl.arange(0, W)
    s1 = tl.zeros((D, M), tl.float32)
    z2 = tl.zeros((D, D), tl.float32)
    # By products too, each row the same: what products and registers both read is not safe in
    # Triton's pipeline, see docs/dev/LOG.md.
    s0 = tl.zeros((D, M), tl.float32)
    z1 = tl.zeros((D, D), tl.float32)
    one = tl.full((D, W), 1.0, Y.dtype.element_ty)
    for h in range(G):
        xs, xt, ys = X + h * T * D, XT + h * blocks * W * D, Y + h * T * M
        for t0 in range(begin, end, W):
            t = t0 + tt
            real = (t < T)[:, None]
            x = tl.load(xs + t[:, None] * D + d[None, :], mask=real, other=0.0)
            y = tl.load(ys + t[:, None] * M + m[None, :], mask=real, other=0.0)
            flipped = tl.load(xt + t0 * D + d[:, None] * W + tt[None, :])
            if WEIGHTED:
                w = tl.load(WEIGHT + h * T + t, mask=t < T, other=0.0)
                x = (x.to(tl.float32) * w[:, None]).to(x.dtype)
            s1 = tl.dot(flipped, y, s1, input_precision=PREC)
            z2 = tl.dot(flipped, x, z2, input_precision=PREC)
            s0 = tl.dot(one, y, s0, input_precision=PREC)
            z1 = tl.dot(one, x, z1, input_precision=PREC)
    tl.store(P + d[:, None] * M + m[None, :], s1)
    tl.store(P + D * M + d[:, None] * D + d[None, :], z2)
    tl.store(P + D * M + D * D + m, tl.sum(s0, 0) / D)
    tl.store(P + D * M + D * D + M + d, tl.sum(z1, 0) / D)


@triton.jit
def _fourfold(
    XT, Y, S, begin, end, T, blocks, first,
    G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, W: tl.constexpr,
    UPPER: tl.constexpr, EVEN: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Write x_i X Y^T for four i from the first on, or for four pairs of i."""
    H: tl.constexpr = D // 2
    r, m, tt = tl.arange(0, D), tl.arange(0, M), tl.arange(0, W)
    j = H + r % H if UPPER else r
    a0 = tl.zeros((D, M), tl.float32)
    a1 = tl.zeros((D, M), tl.float32)
    a2 = tl.zeros((D, M), tl.float32)
    a3 = tl.zeros((D, M), tl.float32)
    for h in range(G):
        xt, ys = XT + h * blocks * W * D, Y + h * T * M
        for t0 in range(begin, end, W):
            t = t0 + tt
            xs = xt + t0 * D + j[:, None] * W + tt[None, :]
            xi = xt + t0 * D + first * W + tt
            if EVEN:
                y = tl.load(ys + t[:, None] * M + m[None, :])
            else:
                y = tl.load(ys + t[:, None] * M + m[None, :], mask=(t < T)[:, None], other=0.0)
            if UPPER:
                # From loads alone: with a `where` the factors would go through shared memory.
                low = tl.load(xs, mask=(r < H)[:, None], other=0.0)
                high = tl.load(xs, mask=(r >= H)[:, None], other=0.0)
                x0 = low * tl.load(xi)[None, :] + high * tl.load(xi + W)[None, :]
                x1 = low * tl.load(xi + 2 * W)[None, :] + high * tl.load(xi + 3 * W)[None, :]
                x2 = low * tl.load(xi + 4 * W)[None, :] + high * tl.load(xi + 5 * W)[None, :]
                x3 = low * tl.load(xi + 6 * W)[None, :] + high * tl.load(xi + 7 * W)[None, :]
            else:
                x = tl.load(xs)
                x0 = x * tl.load(xi)[None, :]
                x1 = x * tl.load(xi + W)[None, :]
                x2 = x * tl.load(xi + 2 * W)[None, :]
                x3 = x * tl.load(xi + 3 * W)[None, :]
            a0 = tl.dot(x0, y, a0, input_precision=PREC)
            a1 = tl.dot(x1, y, a1, input_precision=PREC)
            a2 = tl.dot(x2, y, a2, input_precision=PREC)
            a3 = tl.dot(x3, y, a3, input_precision=PREC)
    S += r[:, None] * M + m[None, :]
    tl.store(S, a0.to(S.dtype.element_ty))
    tl.store(S + D * M, a1.to(S.dtype.element_ty))
    tl.store(S + 2 * D * M, a2.to(S.dtype.element_ty))
    tl.store(S + 3 * D * M, a3.to(S.dtype.element_ty))


@triton.jit
def tiles(S, D: tl.constexpr, M: tl.constexpr):
    """Return pointers to S_0, and to S_H with the step to the next; S_b holds S_ab for all a.

    S_ab = S_ba, so three quarters of the square are kept. With H = D / 2, tile i < H holds S_ij for
    every j; tile H + p holds those of i = H + 2 p and, below them, of i = H + 2 p + 1, for j >= H.
    """
    H: tl.constexpr = D // 2
    a, m = tl.arange(0, D)[:, None], tl.arange(0, M)[None, :]
    upper = tl.where(a < H, a * D + H, H * D + a - H)
    # Times M at last, so that Triton sees that rows begin where 16 bytes do.
    return S + a * M + m, S + upper * M + m, tl.where(a < H, 1, H) * M


@triton.jit
def held(x, PREC: tl.constexpr):
    """Return x in the registers that a product takes it from: its exact product with 1."""
    d = tl.arange(0, x.shape[1])
    one = (d[:, None] == d[None, :]).to(x.dtype)
    return tl.dot(x, one, input_precision=PREC).to(x.dtype)


@triton.jit
def contracted(
    x, XT, S, some,
    D: tl.constexpr, M: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Return sum_b x_b (x S_b) for the rows x, of which XT points at x_0, x_1 being W further on.

    Products first, then each row times its x_b: as fast as the matrix units read S. S_ab = S_ba, so
    tile b < H counts twice for a >= H, and b >= H needs those alone.
    """
    H: tl.constexpr = D // 2
    d, h, m = tl.arange(0, D), tl.arange(0, H), tl.arange(0, M)
    acc = tl.zeros((ROWS, M), tl.float32)
    lower = S + d[:, None] * M + m[None, :]
    left = held(tl.where(d[None, :] < H, x, x + x), PREC)
    for b in tl.range(0, H * some, 2):
        s0 = tl.load(lower + b * D * M)
        s1 = tl.load(lower + b * D * M + D * M)
        x0 = tl.load(XT + b * W).to(tl.float32)[:, None]
        x1 = tl.load(XT + b * W + W).to(tl.float32)[:, None]
        acc += x0 * tl.dot(left, s0, input_precision=PREC)
        acc += x1 * tl.dot(left, s1, input_precision=PREC)
    upper = S + H * D * M + h[:, None] * M + m[None, :]
    right = held(tl.trans(tl.load(XT[None, :] + (H + h)[:, None] * W)), PREC)
    for b in tl.range(0, H * some, 2):
        s0 = tl.load(upper + b * H * M)
        s1 = tl.load(upper + b * H * M + H * M)
        x0 = tl.load(XT + (H + b) * W).to(tl.float32)[:, None]
        x1 = tl.load(XT + (H + b + 1) * W).to(tl.float32)[:, None]
        acc += x0 * tl.dot(right, s0, input_precision=PREC)
        acc += x1 * tl.dot(right, s1, input_precision=PREC)
    return acc


@triton.jit
def mirrored(
    x, XT, S, some,
    D: tl.constexpr, M: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, TURN: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """Return the same from whole tiles; where TURN, sum_b x_b (y S_b^T) with y in x's place."""
    H: tl.constexpr = D // 2
    lower, upper, step = tiles(S, D, M)
    acc = tl.zeros((ROWS, D if TURN else M), tl.float32)
    for b in tl.range(0, H * some):  # two tiles a step: fewer waits
        s0 = tl.load(lower + b * D * M)
        s1 = tl.load(upper + b * step)
        x0 = tl.load(XT + b * W).to(tl.float32)[:, None]
        x1 = tl.load(XT + (H + b) * W).to(tl.float32)[:, None]
        acc += x0 * tl.dot(x, tl.trans(s0) if TURN else s0, input_precision=PREC)
        acc += x1 * tl.dot(x, tl.trans(s1) if TURN else s1, input_precision=PREC)
    return acc


@triton.jit
def running(
    S, P, FIRST, FIRST_REST, LAST, LAST_REST, chunks, size, rest,
    BLOCK: tl.constexpr, CARRIED: tl.constexpr, BACKWARD: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """Put in place of each chunk's sums those of all before it (or after), or all in the first.

    Where CARRIED they begin with FIRST, and what all chunks come to is LAST.
    """
    part, lane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    few = tl.cdiv(rest, BLOCK)
    if part < few:
        _run(P, FIRST_REST, LAST_REST, part, lane, chunks, rest, BLOCK, CARRIED, BACKWARD, TOTAL)
    else:
        _run(S, FIRST, LAST, part - few, lane, chunks, size, BLOCK, CARRIED, BACKWARD, TOTAL)


@triton.jit
def _run(
    S, FIRST, LAST, part, lane, chunks, size,
    BLOCK: tl.constexpr, CARRIED: tl.constexpr, BACKWARD: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    at = part * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    first = S + lane * chunks * size + at
    here = first + (chunks - 1) * size.to(tl.int64) if BACKWARD else first
    total = tl.zeros((BLOCK,), tl.float32)
    if CARRIED:
        total = tl.load(FIRST + lane * size + at, mask=inside, other=0.0)
    for _ in tl.range(0, chunks, num_stages=4):
        more = tl.load(here, mask=inside, other=0.0).to(tl.float32)
        if not TOTAL:
            tl.store(here, total.to(S.dtype.element_ty), mask=inside)
        total += more
        here += -size if BACKWARD else size
    if TOTAL:
        tl.store(first, total.to(S.dtype.element_ty), mask=inside)
    if CARRIED:
        tl.store(LAST + lane * size + at, total, mask=inside)
