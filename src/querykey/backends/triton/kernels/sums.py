"""Sums over a chunk of tokens, and over all chunks before (or after) one: what far tokens leave.

For tokens x (D) and y (M), with a weight w per token, or 1 for each:

    square     S_ij (M) = sum x_i x_j y      in tiles, see `reading`, in the precision of the inputs
    moments    S1 (D, M) = sum x y^T, Z2 (D, D) = sum w x x^T, S0 (M) = sum y, Z1 (D) = sum w x,
               side by side in this order, in float32
    count      sum w, where there are weights

Forward x, y are k, v; backward, for what later queries ask of a key, they are q and g, and the
sums are called R, R1, Y2, R0, Y1, Y0. With gates, w and y are what is left of them at the chunk's
end, or, backward, what a chunk leaves of the past for them; see `gates`.
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from querykey.backends.triton.kernels.intervals import asked, is_moved, summed


@triton.jit
def transposed(x_LGTD, x_LGBDS, T, blocks, D: tl.constexpr, STEP: tl.constexpr):
    """Write x in blocks of STEP tokens with tokens last, (blocks, D, STEP), and zeros past T."""
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    d, tt = tl.arange(0, D), tl.arange(0, STEP)
    t = block * STEP + tt
    x_LGTD += row * T * D
    x = tl.load(x_LGTD + t[:, None] * D + d[None, :], mask=(t < T)[:, None], other=0.0)
    x_DS = x_LGBDS + (row * blocks + block) * D * STEP + d[:, None] * STEP + tt[None, :]
    tl.store(x_DS, tl.trans(x))


@triton.jit
def chunk_sums(
    x_LGTD, x_LGBDS, y_LGTM, w_LGT, square_LCPDM, moments_LCR, count_LC,
    x_sorted_LGTD, y_sorted_LGTM, low_ET, end_ET, facts_E2, T, blocks, chunks, heads, longest_near,
    G: tl.constexpr, CHUNK: tl.constexpr, D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr,
    TILES: tl.constexpr, FIRST: tl.constexpr, EVEN: tl.constexpr, WEIGHTED: tl.constexpr,
    BACKWARD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the sums of one chunk and lane over its tokens and G heads: programs 0 and 1 the
    moments, each other program S_ij for TILES pairs of octets of i and j, 1, 2 or 4.

    Chunks are counted from FIRST on; EVEN says that all of them are full. Of documents, whose low,
    end and facts are those of `intervals`, only the tokens are summed up that other chunks ask for,
    and nothing is written where there are none.
    """
    part, c, lane = tl.program_id(0), tl.program_id(1) + FIRST, tl.program_id(2).to(tl.int64)
    since = None
    until = T
    if facts_E2 is not None:
        e = lane // heads
        low_T, end_T = low_ET + e * T, end_ET + e * T
        since, until, _ = asked(low_T, end_T, c, T, longest_near, CHUNK, BACKWARD)
        if since >= until:
            return
        moved = is_moved(facts_E2, e)
        x_LGTD = tl.where(moved, x_sorted_LGTD, x_LGTD)
        if y_sorted_LGTM is not None:
            y_LGTM = tl.where(moved, y_sorted_LGTM, y_LGTM)
    x_LGBDS, y_LGTM = x_LGBDS + lane * G * blocks * STEP * D, y_LGTM + lane * G * T * M
    # As many steps as a chunk has, whole or not: products then need not wait for each other.
    begin, end = c * CHUNK, c * CHUNK + CHUNK
    square_LCPDM += (lane * chunks + c) * (3 * D // 4) * D * M
    moments_LCR += (lane * chunks + c) * (D * M + D * D + M + D)
    if part == 0:
        _write_moments_of_values(
            x_LGBDS, y_LGTM, moments_LCR, begin, end, since, until, T, blocks,
            G=G, D=D, M=M, STEP=STEP, PRECISION=PRECISION,
        )  # fmt: skip
    elif part == 1:
        x_LGTD += lane * G * T * D
        if WEIGHTED:
            w_LGT += lane * G * T
            count_LC += lane * chunks + c
        _write_moments_of_keys(
            x_LGTD, x_LGBDS, w_LGT, moments_LCR + D * M, count_LC, begin, end, since, until, T,
            blocks, G=G, D=D, M=M, STEP=STEP, WEIGHTED=WEIGHTED, PRECISION=PRECISION,
        )  # fmt: skip
    else:
        # Octets stand in a circle: each is paired with itself and the next ones, up to half way
        # round; those half way round from each other come last, as they would come twice.
        HALF: tl.constexpr = D // 16
        pair = (part - 2) * TILES
        if pair < 2 * HALF * HALF:
            first = pair // HALF
            _write_tiles(
                x_LGBDS, y_LGTM, square_LCPDM, begin, end, since, until, T, blocks, first,
                first + pair % HALF, G=G, D=D, M=M, STEP=STEP, TILES=TILES, SHARED=True,
                EVEN=EVEN, PRECISION=PRECISION,
            )  # fmt: skip
        else:
            first = pair - 2 * HALF * HALF
            _write_tiles(
                x_LGBDS, y_LGTM, square_LCPDM, begin, end, since, until, T, blocks, first,
                first + HALF, G=G, D=D, M=M, STEP=STEP, TILES=TILES, SHARED=False, EVEN=EVEN,
                PRECISION=PRECISION,
            )  # fmt: skip


@triton.jit
def _write_moments_of_values(
    x_GBDS, y_GTM, moments_R, begin, end, since, until, T, blocks,
    G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write S1 = sum x y^T and S0 = sum y over begin to end."""
    ROWS: tl.constexpr = D if D < 64 else 64
    d, m, tt = tl.arange(0, D), tl.arange(0, M), tl.arange(0, STEP)
    s1 = tl.zeros((D, M), tl.float32)
    # By products too, each row the same: what products and registers both read is not safe in
    # Triton's pipeline, see docs/dev/LOG.md.
    s0 = tl.zeros((ROWS, M), tl.float32)
    one = tl.full((ROWS, STEP), 1.0, y_GTM.dtype.element_ty)
    for h in range(G):
        x_BDS, y_TM = x_GBDS + h * blocks * STEP * D, y_GTM + h * T * M
        for t0 in range(begin, end, STEP):
            t = t0 + tt
            there = summed(t, since, until)[:, None]
            y = tl.load(y_TM + t[:, None] * M + m[None, :], mask=there, other=0.0)
            x_DS = tl.load(x_BDS + t0 * D + d[:, None] * STEP + tt[None, :])
            s1 = tl.dot(x_DS, y, s1, input_precision=PRECISION)
            s0 = tl.dot(one, y, s0, input_precision=PRECISION)
    tl.store(moments_R + d[:, None] * M + m[None, :], s1)
    tl.store(moments_R + D * M + D * D + m, tl.sum(s0, 0) / ROWS)


@triton.jit
def _write_moments_of_keys(
    x_GTD, x_GBDS, w_GT, moments_R, count, begin, end, since, until, T, blocks,
    G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr,
    WEIGHTED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write Z2 = sum w x x^T, Z1 = sum w x and the count, sum w, over begin to end."""
    ROWS: tl.constexpr = D if D < 64 else 64
    d, tt = tl.arange(0, D), tl.arange(0, STEP)
    z2 = tl.zeros((D, D), tl.float32)
    z1 = tl.zeros((ROWS, D), tl.float32)
    one = tl.full((ROWS, STEP), 1.0, x_GBDS.dtype.element_ty)
    weight = tl.zeros((STEP,), tl.float32)
    for h in range(G):
        x_TD, x_BDS = x_GTD + h * T * D, x_GBDS + h * blocks * STEP * D
        for t0 in range(begin, end, STEP):
            t = t0 + tt
            there = summed(t, since, until)
            x = tl.load(x_TD + t[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
            x_DS = tl.load(x_BDS + t0 * D + d[:, None] * STEP + tt[None, :])
            if WEIGHTED:
                w = tl.load(w_GT + h * T + t, mask=there, other=0.0)
                x = (x.to(tl.float32) * w[:, None]).to(x.dtype)
                weight += w
            z2 = tl.dot(x_DS, x, z2, input_precision=PRECISION)
            z1 = tl.dot(one, x, z1, input_precision=PRECISION)
    tl.store(moments_R + d[:, None] * D + d[None, :], z2)
    tl.store(moments_R + D * D + M + d, tl.sum(z1, 0) / ROWS)
    if WEIGHTED:
        tl.store(count, tl.sum(weight, 0))


@triton.jit
def _write_tiles(
    x_GBDS, y_GTM, square_PDM, begin, end, since, until, T, blocks, first, second,
    G: tl.constexpr, D: tl.constexpr, M: tl.constexpr, STEP: tl.constexpr, TILES: tl.constexpr,
    SHARED: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write S_ij = sum_t x_ti x_tj y_t^T for TILES pairs of octets, 8 entries each.

    j goes through octets from `second` on; i through those from `first` on, or, where SHARED,
    through that one alone.
    """
    m, tt = tl.arange(0, M), tl.arange(0, STEP)
    octet = tl.arange(0, 8)[:, None] * STEP + tt[None, :]
    a0 = tl.zeros((64, M), tl.float32)
    a1 = tl.zeros((64, M), tl.float32)
    a2 = tl.zeros((64, M), tl.float32)
    a3 = tl.zeros((64, M), tl.float32)
    for h in range(G):
        x_BDS, y_TM = x_GBDS + h * blocks * STEP * D, y_GTM + h * T * M
        for t0 in range(begin, end, STEP):
            t = t0 + tt
            if EVEN:
                y = tl.load(y_TM + t[:, None] * M + m[None, :])
            else:
                there = summed(t, since, until)[:, None]
                y = tl.load(y_TM + t[:, None] * M + m[None, :], mask=there, other=0.0)
            x = x_BDS + t0 * D + octet
            x0 = tl.load(x + first * 8 * STEP)
            a0 = tl.dot(_pairs(x0, x, second, D, STEP), y, a0, input_precision=PRECISION)
            if TILES > 1:
                x1 = x0 if SHARED else tl.load(x + (first + 1) * 8 * STEP)
                a1 = tl.dot(_pairs(x1, x, second + 1, D, STEP), y, a1, input_precision=PRECISION)
            if TILES > 2:
                x2 = x0 if SHARED else tl.load(x + (first + 2) * 8 * STEP)
                a2 = tl.dot(_pairs(x2, x, second + 2, D, STEP), y, a2, input_precision=PRECISION)
                x3 = x0 if SHARED else tl.load(x + (first + 3) * 8 * STEP)
                a3 = tl.dot(_pairs(x3, x, second + 3, D, STEP), y, a3, input_precision=PRECISION)
    step: tl.constexpr = 0 if SHARED else 1
    _store_tile(a0, square_PDM, first, second, D, M)
    if TILES > 1:
        _store_tile(a1, square_PDM, first + step, second + 1, D, M)
    if TILES > 2:
        _store_tile(a2, square_PDM, first + 2 * step, second + 2, D, M)
        _store_tile(a3, square_PDM, first + 3 * step, second + 3, D, M)


@triton.jit
def _pairs(xi, x_DS, octet, D: tl.constexpr, STEP: tl.constexpr):
    """Return x_i x_j (64, STEP) for all i of xi (8, STEP) and j of an octet, round the circle."""
    xj = tl.load(x_DS + octet % (D // 8) * 8 * STEP)
    return tl.reshape(xi[:, None, :] * xj[None, :, :], (64, STEP))


@triton.jit
def _store_tile(tile, square_PDM, first, second, D: tl.constexpr, M: tl.constexpr):
    """Store S_ij of two octets wherever `reading.tiles` says that it is held, as S_ji too."""
    H: tl.constexpr = D // 2
    r, m = tl.arange(0, 64), tl.arange(0, M)[None, :]
    i, j = first * 8 + r // 8, second % (D // 8) * 8 + r % 8
    held_ij = tl.where(i < H, i * D + j, H * D + (i - H) * H + j - H)[:, None]
    held_ji = tl.where(j < H, j * D + i, H * D + (j - H) * H + i - H)[:, None]
    tile = tile.to(square_PDM.dtype.element_ty)
    tl.store(square_PDM + held_ij * M + m, tile, mask=((i < H) | (j >= H))[:, None])
    apart = i // 8 != j // 8  # else all of S_ji is in the tile
    tl.store(square_PDM + held_ji * M + m, tile, mask=(apart & ((j < H) | (i >= H)))[:, None])
