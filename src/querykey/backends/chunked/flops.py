"""FLOPs of the chunked operators, for torch's registry: a multiply-add is 2, matrix products alone.

Counted is what the passes multiply for the tokens that there are; zeros that fill up a last chunk
are not. Within its chunk a query meets as many keys as the chunk has, those included that the
causal order hides; in a last chunk that is not full it is counted as meeting a full one. It is the
linear form that is counted, also for few tokens, which meet pair by pair (see `pairs`). Gates of a
decay multiply entry by entry, in no matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from querykey.backends.chunked.features import row_count
from querykey.backends.chunked.passes import CHUNK, MANY

Shape = Sequence[Any]  # of whole numbers, or of symbols for them


def forward(
    q: Shape,
    k: Shape,
    v: Shape,
    real: Any,
    decay: Any,
    sums: Any,
    kind: str,
    numbers: Sequence[float],
    causal: bool,
    start: int,
    keep: bool,
    **_: Any,
) -> Any:
    """Keys join the sums, queries read them, and within a chunk every pair meets."""
    rows, met, wide, made = _sizes(q, v, kind, numbers)
    queries, seen, pairs = _counts(q, k, causal, start, rows)
    keys = k[1] if keep else seen
    through_sums = (2 * rows * wide + made) * (keys + queries)
    return q[0] * (through_sums + 2 * pairs * (met + wide))


def backward(
    g: Any,
    g_after: Any,
    out: Shape,
    inverse: Shape,
    q: Shape,
    k: Shape,
    v: Shape,
    real: Any,
    decay: Any,
    sums: Any,
    kind: str,
    numbers: Sequence[float],
    causal: bool,
    start: int,
    **_: Any,
) -> Any:
    """Sums of keys again, for the gradients of q; then sums of queries, for those of k and v."""
    rows, met, wide, made = _sizes(q, v, kind, numbers)
    queries, seen, pairs = _counts(q, k, causal, start, rows)
    through_sums = 2 * rows * wide * (seen + 2 * queries + 2 * k[1])
    # Features are made in both passes, and each gradient goes back through them once.
    features = made * (seen + 2 * queries + k[1]) + made * (queries + k[1])
    return q[0] * (through_sums + features + 2 * pairs * (4 * met + 3 * wide))


def _sizes(q: Shape, v: Shape, kind: str, numbers: Sequence[float]) -> tuple[Any, Any, Any, Any]:
    """Return the rows of phi, those that meet in a chunk, those of v', and FLOPs to make phi."""
    rows = row_count(q[3], kind, numbers)
    return rows, q[3] if kind == "series" else rows, v[2] + 1, _made(q, kind, rows)


def _made(q: Shape, kind: str, rows: int) -> Any:
    """Random features are a matrix product themselves."""
    return 2 * rows * q[3] if kind == "random" else 0


def _counts(q: Shape, k: Shape, causal: bool, start: int, rows: int) -> tuple[Any, Any, Any]:
    """Return the queries that look, of all heads; the keys that some see; the pairs in chunks."""
    group, queries, keys = q[1], q[2], k[1]
    if not causal:
        return group * queries, keys, 0
    blind, before = min(max(-start, 0), queries), min(max(start, 0), keys)
    both = min(queries - blind, keys - before)
    pairs = group * both * _least(CHUNK[rows >= MANY], both)
    return group * (queries - blind), before + both, pairs


def _least(a: int, b: Any) -> Any:
    """Return the smaller, for a whole number, torch's symbol for one, or sympy's."""
    if isinstance(b, int):
        return min(a, b)
    if isinstance(b, torch.SymInt):
        return torch.sym_min(a, b)
    import sympy

    return sympy.Min(a, b)
