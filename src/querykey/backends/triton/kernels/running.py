"""Running sums over chunks, from the first to the last or back, in place of each chunk's own.

Every program takes some entries of one of the tables of `sums` through all chunks: squares, moments
or counts. With gates, what a chunk leaves of the sums before it is a number of that chunk.
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from querykey.backends.triton.kernels.intervals import asked, longest
from querykey.backends.triton.kernels.pairs import lowest


@triton.jit
def running_sums(
    square_LCE, moments_LCR, count_LC, square_before_LE, moments_before_LR, count_before_L,
    square_after_LE, moments_after_LR, count_after_L, gates_L5N,
    other_square_LCE, other_moments_LCR, other_count_LC, borders_LAC, low_ET, end_ET, facts_E2,
    N, chunks, heads, longest_near, square_size, moments_size, rise, shift, offset,
    D: tl.constexpr, M: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    CARRIED: tl.constexpr, BACKWARD: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """Put sum over c' < c of S_c' in place of each chunk's S_c (c' > c where BACKWARD), in place.

    E counts the square_size entries of one square. Where TOTAL, the sum over all chunks is put into
    the first. Where CARRIED, sums begin with those before, and what all chunks come to is written
    to those after. Where there are `other` sums, of all keys before a chunk, the A programs of a
    lane share out what pairs of these and of all queries from the chunk on add up to: the sum of
    p of `gradients`, by chunk. Sums of documents, see `intervals`, are of one document each.
    """
    part, lane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    few = tl.cdiv(moments_size, BLOCK)
    if gates_L5N is not None:
        gates_L5N += lane * 5 * N
    if facts_E2 is not None:
        e = lane // heads
        low_ET, end_ET = low_ET + e * N, end_ET + e * N
        if longest(facts_E2, e) <= longest_near:
            return
    if borders_LAC is not None:
        borders_LAC += (lane * tl.num_programs(0) + part) * chunks
    c0, c1, c2 = lowest(shift, offset), 2 * rise * shift, rise * rise
    if part == 0:
        if count_LC is not None:
            _run(
                count_LC, count_before_L, count_after_L, other_count_LC,
                tl.full((1,), c0, tl.float32), borders_LAC, gates_L5N, low_ET, end_ET, longest_near,
                N, tl.arange(0, 1), lane, chunks, 1,
                CHUNK=CHUNK, CARRIED=CARRIED, BACKWARD=BACKWARD, TOTAL=TOTAL,
            )  # fmt: skip
    elif part <= few:
        r = (part - 1) * BLOCK + tl.arange(0, BLOCK)
        # Of S1, Z2, S0 and Z1, side by side.
        of_r = tl.where((r >= D * M) & (r < D * M + D * D), c2, c1)
        of_r = tl.where((r >= D * M + D * D) & (r < D * M + D * D + M), c0, of_r)
        _run(
            moments_LCR, moments_before_LR, moments_after_LR, other_moments_LCR, of_r,
            borders_LAC, gates_L5N, low_ET, end_ET, longest_near, N, r, lane, chunks, moments_size,
            CHUNK=CHUNK, CARRIED=CARRIED, BACKWARD=BACKWARD, TOTAL=TOTAL,
        )  # fmt: skip
    else:
        s = (part - few - 1) * BLOCK + tl.arange(0, BLOCK)
        # Of the square's tiles, see `reading.tiles`, the first half lack their mirror images.
        twice = (s // (D * M) < D // 2) & (s // M % D >= D // 2)
        _run(
            square_LCE, square_before_LE, square_after_LE, other_square_LCE,
            tl.where(twice, 2 * c2, c2), borders_LAC, gates_L5N, low_ET, end_ET, longest_near, N, s,
            lane, chunks, square_size, CHUNK=CHUNK, CARRIED=CARRIED, BACKWARD=BACKWARD, TOTAL=TOTAL,
        )  # fmt: skip


@triton.jit
def _run(
    sums_LCE, before_LE, after_LE, other_LCE, factor, borders_C, gates_5N, low_N, end_N,
    longest_near, N, at, lane, chunks, size,
    CHUNK: tl.constexpr, CARRIED: tl.constexpr, BACKWARD: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """Do as `running_sums` for the entries `at` of the `size` of one table."""
    inside = at < size
    first = lane * chunks * size + at
    last = (lane * 0 + chunks - 1) * size
    here = first + last if BACKWARD else first
    total = tl.zeros(at.shape, tl.float32)
    if CARRIED:
        total = tl.load(before_LE + lane * size + at, mask=inside, other=0.0)
    for turn in tl.range(0, chunks, num_stages=4):
        chunk = chunks - 1 - turn if BACKWARD else turn
        there = inside
        if low_N is not None:
            low, up, goes_on = asked(low_N, end_N, chunk, N, longest_near, CHUNK, BACKWARD)
            there = at < tl.where(low < up, size, 0)
        more = tl.load(sums_LCE + here, mask=there, other=0.0).to(tl.float32)
        if not TOTAL:
            tl.store(sums_LCE + here, total.to(sums_LCE.dtype.element_ty), mask=inside)
        if low_N is not None:
            total = tl.where(goes_on, total, 0.0)
        if gates_5N is not None:
            total *= tl.load(gates_5N + 4 * N + tl.minimum(chunk * CHUNK + CHUNK, N) - 1)
        total += more
        if other_LCE is not None:
            other = tl.load(other_LCE + here, mask=inside, other=0.0).to(tl.float32)
            # No key is before the first chunk, and nobody asked for the sums of its queries.
            pairs = tl.where(chunk > 0, factor * other * total, 0.0)
            tl.store(borders_C + chunk, tl.sum(tl.where(inside, pairs, 0.0), 0))
        here += -size if BACKWARD else size
    if TOTAL:
        tl.store(sums_LCE + first, total.to(sums_LCE.dtype.element_ty), mask=inside)
    if CARRIED:
        tl.store(after_LE + lane * size + at, total, mask=inside)
