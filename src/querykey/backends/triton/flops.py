"""FLOPs of the GPU operators, for torch's registry: a multiply-add is 2, matrix products alone.

Counted is what the kernels multiply for the tokens that there are, sizes filled up included, zeros
that fill up a tile not. Within its chunk a query meets as many keys as the chunk has, those that
the causal order hides included; where there are no chunks it meets all, whatever documents hide.
All chunks leave sums and read sums, though nobody asks for those of the last one and there are none
before the first. Products with 1, which bring queries to where the next product wants them or add
up tokens, are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from querykey.backends.triton.plans import Plan, fitting, plan

Shape = Sequence[int]


def forward(
    q: Shape, k: Shape, v: Shape, real: Any, decay: Any, numbers: Any, causal: bool, keep: bool,
    **_: Any,
) -> int:  # fmt: skip
    """Every pair, or the sums of all keys, read by all queries, and the pairs of each chunk."""
    (lanes, group, queries, size), keys, width = q, k[1], v[2]
    cut = plan(size, width)
    if not cut.far(queries, keys, keep):
        return 2 * lanes * group * queries * keys * (size + width)
    met = 2 * group * _pairs(queries, cut) * (size + width) if causal else 0
    return lanes * (met + _read(group * queries, size, width) + _summed(keys, size, width))


def backward(
    g: Shape, out: Shape, more: Any, inverse: Any, q: Shape, k: Shape, v: Shape, square: Any,
    rest: Any, count: Any, gates: Any, real: Any, numbers: Any, causal: bool, **_: Any,
) -> int:  # fmt: skip
    """Gradients of queries by the sums of keys, those of keys and values by the sums of queries."""
    (lanes, group, queries, size), keys, width = q, k[1], v[2]
    cut, met = plan(size, width), 4 * size + 3 * width  # scores and weights twice; dq, dk and dv
    if not cut.far(queries, keys, True):
        return 2 * lanes * group * queries * keys * met
    near = 2 * group * _pairs(queries, cut) * met if causal else 0
    full, lower = size * size * width, _rest(size, width)
    by_query = 2 * group * queries * (full + lower)
    by_key = 2 * keys * (2 * full + lower + size * width)
    return lanes * (near + by_query + by_key + _summed(group * queries, size, width))


def documents_forward(
    q: Shape, k: Shape, v: Shape, order: Any, table: Any, facts: Any, numbers: Any, causal: bool,
    keep: bool, **_: Any,
) -> int:  # fmt: skip
    """One document of all tokens: as many operations as without documents."""
    if causal:
        return forward(q, k, v, None, None, numbers, causal, keep)
    return 2 * q[0] * q[1] * q[2] * k[1] * (q[3] + v[2])


def documents_backward(
    g: Shape, out: Shape, more: Any, inverse: Any, q: Shape, k: Shape, v: Shape, square: Any,
    moments: Any, order: Any, table: Any, facts: Any, numbers: Any, causal: bool, **_: Any,
) -> int:  # fmt: skip
    """One document of all tokens: as many operations as without documents."""
    if causal:
        return backward(
            g, out, more, inverse, q, k, v, square, moments, None, None, None, numbers, causal
        )
    return 2 * q[0] * q[1] * q[2] * k[1] * (4 * q[3] + 3 * v[2])


def decode(
    q: Shape, k: Shape, v: Shape, real: Any, decay: Any, outer: Shape, total: Shape, numbers: Any,
    **_: Any,
) -> int:  # fmt: skip
    """One product with phi(k) to join the sums, and one with phi(q) for each query."""
    return 2 * outer[0] * outer[1] * (outer[2] + 1) * (1 + q[1])


def extend(
    q: Shape, k: Shape, v: Shape, real: Any, decay: Any, outer: Shape, total: Shape, numbers: Any,
    **_: Any,
) -> int:  # fmt: skip
    """As forward, by way of the sums however few the tokens are."""
    size, width = fitting(q[3]), fitting(v[2])
    met = 2 * q[1] * _pairs(q[2], plan(size, width)) * (size + width)
    return q[0] * (met + _read(q[1] * q[2], size, width) + _summed(k[1], size, width))


def _summed(tokens: int, size: int, width: int) -> int:
    """Sums of degree 2, each pair of octets once, and the rest."""
    return 2 * tokens * (size * (size + 8) // 2 * width + _rest(size, width))


def _read(tokens: int, size: int, width: int) -> int:
    """The same read by queries; keys too small for half a tile read whole ones."""
    square = size * size if size < 32 else 3 * size * size // 4
    return 2 * tokens * (square * width + _rest(size, width))


def _rest(size: int, width: int) -> int:
    """Degree 1, and degree 2 of the normaliser."""
    return size * width + size * size


def _pairs(tokens: int, cut: Plan) -> int:
    """Pairs within chunks."""
    return tokens * min(tokens, cut.chunk)
