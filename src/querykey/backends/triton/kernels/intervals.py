"""Documents in one piece each: which tokens stand where, and which of them others ask for.

Tokens are sorted by document, at place t of a batch entry the token order_ET[t]. low_ET and end_ET
are the first place of its document and the one after the last. facts_E2 says of a batch entry how
long its longest document is, and whether any token has moved; where none has, copies in that order
are not made, and the tokens themselves are read.

Causal documents of more than longest_near tokens go through sums. At most one of them lies across
the border of two chunks, so a table of sums belongs to one document: a chunk adds to it the tokens
that the document has there, and begins it anew where no document comes in.
"""

# The kernels are in triton's own language, whose types are not Python's.
# pyright: reportMissingImports=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def longest(facts_E2, e):
    """Return how many tokens the longest document of batch entry e has."""
    return tl.load(facts_E2 + 2 * e)


@triton.jit
def is_moved(facts_E2, e):
    """Return whether a token of batch entry e stands elsewhere than its place."""
    return tl.load(facts_E2 + 2 * e + 1) != 0


@triton.jit
def asked(low_T, end_T, c, T, longest_near, CHUNK: tl.constexpr, BACKWARD: tl.constexpr):
    """Return the first of the tokens of chunk c that other chunks ask for, the one after the last,
    and whether what these ask for begins before the chunk, or BACKWARD goes on after it.

    These are keys of the document that goes on in the next chunk, or, BACKWARD, queries of the one
    that comes from the chunk before; none if it has no more than longest_near tokens.
    """
    border = c * CHUNK if BACKWARD else c * CHUNK + CHUNK
    low = tl.load(low_T + border, mask=border < T, other=0)
    end = tl.load(end_T + border, mask=border < T, other=0)
    far = (low < border) & (end - low > longest_near)
    if BACKWARD:
        first, last, more = border, tl.minimum(end, border + CHUNK), end > border + CHUNK
    else:
        first, last, more = tl.maximum(low, border - CHUNK), border, low < border - CHUNK
    return first, tl.where(far, last, first), far & more


@triton.jit
def summed(t, since, until):
    """Return which of the tokens t are summed up: those from since on, if it is given, to until."""
    return t < until if since is None else (t >= since) & (t < until)
