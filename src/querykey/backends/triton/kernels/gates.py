"""Gates between tokens: a similarity is multiplied by exp(G_i - G_j), G being a running sum.

G_i sums up the logarithms of all gates up to token i, each at most 0, so that what is left of a key
at a later query is at most 1. Exponentials are taken of differences alone. The table of a lane,
(5, N), in logarithms to base 2 where they are logarithms:

    0, 1   G in two parts, the large one and what it lacks: a small difference behind a strong gate
           keeps its digits
    2      the root of what is left of a key at the end of its granule of GRANULE tokens
    3      what is left at a query of all that came before its granule
    4      what is left at a query of all that came before its chunk

Pairs of a tile of keys and a block of queries behind it get the product of three factors then: from
the key to the end of its granule, from there to the block, from there to the query. So only tiles
on the diagonal take an exponential for every pair.
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

# exp of less is 0 in float32; infinities would cancel to NaN.
FLOOR = tl.constexpr(-128.0)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def gate_tables(
    decay_LN, real_LN, gates_L5N, weights_LN, N,
    CHUNK: tl.constexpr, GRANULE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Write the table of one chunk and lane, and what is left of each key at the chunk's end.

    The latter, weights_LN, is 0 for padding, whose real_LN is 0 where there is any. Before it, the
    gates of all earlier chunks are summed up, STEP at a time.
    """
    chunk, lane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    decay_LN += lane * N
    begin = chunk * CHUNK
    earlier = tl.zeros((STEP,), tl.float64)
    for t0 in range(0, begin, STEP):
        t = t0 + tl.arange(0, STEP)
        earlier += _gates(decay_LN, t, tl.minimum(begin, N))
    t = begin + tl.arange(0, CHUNK)
    by_granule = tl.reshape(_gates(decay_LN, t, N), (CHUNK // GRANULE, GRANULE))
    inner, granules = tl.cumsum(by_granule, 1), tl.sum(by_granule, 1)
    since_chunk = inner + (tl.cumsum(granules, 0) - granules)[:, None]
    running = since_chunk + tl.sum(earlier, 0)
    large = running.to(tl.float32)
    small = (running - large.to(tl.float64)).to(tl.float32)
    to_granule = tl.exp2(0.5 * (granules[:, None] - inner).to(tl.float32))
    to_chunk = tl.exp2((tl.sum(granules, 0) - since_chunk).to(tl.float32))
    at = tl.reshape(t, (CHUNK // GRANULE, GRANULE))
    inside = at < N
    weights = to_chunk
    if real_LN is not None:
        real = tl.load(real_LN + lane * N + at, mask=inside, other=0)
        weights = tl.where(real == 0, 0.0, to_chunk)
    tl.store(weights_LN + lane * N + at, weights, mask=inside)
    gates = gates_L5N + lane * 5 * N + at
    tl.store(gates, large, mask=inside)
    tl.store(gates + N, small, mask=inside)
    tl.store(gates + 2 * N, to_granule, mask=inside)
    tl.store(gates + 3 * N, tl.exp2(inner.to(tl.float32)), mask=inside)
    tl.store(gates + 4 * N, tl.exp2(since_chunk.to(tl.float32)), mask=inside)


@triton.jit
def _gates(decay_N, t, end):
    """Return the logarithms of gates to base 2, of tokens t before end, and zeros for others."""
    decay = tl.load(decay_N + t, mask=t < end, other=0.0).to(tl.float64)
    return tl.maximum(decay, FLOOR) * LOG2_E


@triton.jit
def scaled_values(v_LNM, weights_LN, scaled_LNM, rows, M: tl.constexpr, BLOCK: tl.constexpr):
    """Write v times its weight, for BLOCK of the `rows` tokens of all lanes together."""
    t = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at, real = t[:, None] * M + tl.arange(0, M)[None, :], t < rows
    v = tl.load(v_LNM + at, mask=real[:, None], other=0.0).to(tl.float32)
    v *= tl.load(weights_LN + t, mask=real, other=0.0)[:, None]
    tl.store(scaled_LNM + at, v.to(scaled_LNM.dtype.element_ty), mask=real[:, None])


@triton.jit
def logs(gates_5N, t, N):
    """Return both parts of G at tokens t, zeros before the first, past the last those of it."""
    at = tl.minimum(t, N - 1)
    large = tl.load(gates_5N + at, mask=at >= 0, other=0.0)
    return large, tl.load(gates_5N + N + at, mask=at >= 0, other=0.0)


@triton.jit
def left(large, small, since_large, since_small):
    """Return exp(G - G') of two sums in two parts each, at most 1."""
    return tl.exp2(tl.minimum((large - since_large) + (small - since_small), 0.0))


@triton.jit
def left_since(gates_5N, t, since, N):
    """Return what is left at tokens t of what stands at tokens since, at most 1."""
    large, small = logs(gates_5N, t, N)
    since_large, since_small = logs(gates_5N, since, N)
    return left(large, small, since_large, since_small)


@triton.jit
def left_of_granule(gates_5N, begin, large, small, N, GRANULE: tl.constexpr):
    """Return what is left at a later sum G of the end of the granule that holds token begin."""
    end_large, end_small = logs(gates_5N, begin // GRANULE * GRANULE + GRANULE - 1, N)
    return left(large, small, end_large, end_small)


@triton.jit
def left_before_granule(gates_5N, begin, large, small, N, GRANULE: tl.constexpr):
    """Return what is left of an earlier sum G before the granule that holds token begin."""
    start_large, start_small = logs(gates_5N, begin // GRANULE * GRANULE - 1, N)
    return left(start_large, start_small, large, small)


@triton.jit
def gate_gradients(
    by_query_LGN, by_key_LN, borders_LAC, real_LN, gradient_LN, N, parts, chunks,
    G: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the logarithms of gates of one chunk and lane.

    That of token t is the sum of by_key less by_query over all tokens before t: these are the sums
    of p, see `gradients`, of all queries of a key and of all keys of a query. Where there are
    borders, whose `parts` add up to it before a chunk, it is counted anew from there, so that
    roundings do not add up along the sequence; else all earlier tokens are summed up.
    """
    chunk, lane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    by_query_LGN += lane * G * N
    by_key_LN += lane * N
    if real_LN is not None:
        real_LN += lane * N
    begin = chunk * CHUNK
    if borders_LAC is not None:
        a = tl.arange(0, PARTS)
        borders = borders_LAC + (lane * parts + a) * chunks + chunk
        before = tl.sum(tl.load(borders, mask=a < parts, other=0.0).to(tl.float64), 0)
    else:
        earlier = tl.zeros((STEP,), tl.float64)
        for t0 in range(0, begin, STEP):
            t = t0 + tl.arange(0, STEP)
            earlier += _gains(by_query_LGN, by_key_LN, real_LN, t, tl.minimum(begin, N), N, G)
        before = tl.sum(earlier, 0)
    t = begin + tl.arange(0, CHUNK)
    gains = _gains(by_query_LGN, by_key_LN, real_LN, t, N, N, G)
    gradient = before + tl.cumsum(gains, 0) - gains
    tl.store(gradient_LN + lane * N + t, gradient.to(tl.float32), mask=t < N)


@triton.jit
def _gains(by_query_GN, by_key_N, real_N, t, end, N, G: tl.constexpr):
    """Return by_key less by_query at tokens t before end, and zeros for others."""
    gains = tl.load(by_key_N + t, mask=t < end, other=0.0).to(tl.float64)
    if real_N is not None:
        gains = tl.where(tl.load(real_N + t, mask=t < end, other=0) == 0, 0.0, gains)
    for h in range(G):
        gains -= tl.load(by_query_GN + h * N + t, mask=t < end, other=0.0)
    return gains
