"""Products and decompositions of matrices over the last two axes, each with its derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from querykey.ag import primitives
from querykey.ag.errors import primitive
from querykey.ag.primitives import matmul, reshape, transpose
from querykey.ag.protocols import raw
from querykey.ag.tensor import Tensor, record
from querykey.errors import QuerykeyError


def transposed(v: Any) -> Any:
    """Return an array with its last two axes exchanged."""
    return np.swapaxes(v, -1, -2)


@primitive
def tensordot(a: Any, b: Any, axes: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """Return the sum of products over some axes of each: the last and the first ones, or named."""
    v, w = np.asarray(raw(a)), np.asarray(raw(b))
    if isinstance(axes, int | np.integer):
        ours, theirs = tuple(range(v.ndim - axes, v.ndim)), tuple(range(axes))
    else:
        ours, theirs = axes
    ours, theirs = normalize_axis_tuple(ours, v.ndim), normalize_axis_tuple(theirs, w.ndim)
    if [v.shape[i] for i in ours] != [w.shape[i] for i in theirs]:
        raise QuerykeyError(f"axes {ours} of {v.shape} and {theirs} of {w.shape} differ in size")
    left = [i for i in range(v.ndim) if i not in ours]
    right = [i for i in range(w.ndim) if i not in theirs]
    many = int(np.prod([v.shape[i] for i in ours], dtype=int))
    rows, columns = [v.shape[i] for i in left], [w.shape[i] for i in right]
    height, breadth = int(np.prod(rows, dtype=int)), int(np.prod(columns, dtype=int))
    one = reshape(transpose(a, [*left, *ours]), (height, many))
    other = reshape(transpose(b, [*theirs, *right]), (many, breadth))
    return reshape(matmul(one, other), (*rows, *columns))


@primitive
def vecdot(a: Any, b: Any, axis: int = -1) -> Tensor:
    """Return the sum of products along an axis, in the type that the two arrays have together."""
    v, w = np.asarray(raw(a)), np.asarray(raw(b))
    if v.shape[axis] != w.shape[axis]:
        raise QuerykeyError(f"axis {axis} has {v.shape[axis]} elements and {w.shape[axis]}")
    dtype = np.result_type(v, w)
    if dtype.kind == "f":
        return primitives.sum(primitives.multiply(a, b), axis=axis)
    products = np.asarray(v * w)
    return record("vecdot", np.sum(products, axis=axis, dtype=dtype))


@primitive
def outer(a: Any, b: Any) -> Tensor:
    """Return all products of an element of one vector and an element of another."""
    return primitives.multiply(reshape(a, (-1, 1)), reshape(b, (1, -1)))


@primitive
def solve(a: Any, b: Any) -> Tensor:
    """Return x with a @ x = b; b is a vector where it has one axis, else one matrix or many."""
    v, w = np.asarray(raw(a)), np.asarray(raw(b))
    columns = w[:, None] if w.ndim == 1 else w
    x = np.linalg.solve(v, columns)

    def to_b(g: Any) -> Any:
        return np.linalg.solve(transposed(v), g[..., None] if w.ndim == 1 else g)

    out = x[..., 0] if w.ndim == 1 else x
    pull_b = (lambda g: to_b(g)[..., 0]) if w.ndim == 1 else to_b
    return record("solve", out, (a, lambda g: -to_b(g) @ transposed(x)), (b, pull_b))


@primitive
def inv(a: Any) -> Tensor:
    """Return the inverse of every matrix."""
    y = np.linalg.inv(np.asarray(raw(a)))
    return record("inv", y, (a, lambda g: -transposed(y) @ g @ transposed(y)))


@primitive
def det(a: Any) -> Tensor:
    """Return the determinant of every matrix; its derivative holds for singular ones too."""
    v = np.asarray(raw(a))
    return record("det", np.linalg.det(v), (a, lambda g: g[..., None, None] * cofactors(v)))


def cofactors(v: np.ndarray) -> np.ndarray:
    """Return the derivative of the determinant by every element, of singular matrices too."""
    u, s, vh = np.linalg.svd(v)
    n = s.shape[-1]
    table = np.where(np.eye(n, dtype=bool), 1, s[..., None, :])
    others = np.prod(table, axis=-1)  # the product of all singular values but one
    sign = np.linalg.det(u) * np.linalg.det(vh)
    return (sign[..., None, None] * u * others[..., None, :] @ vh).astype(v.dtype)


@primitive
def slogdet(a: Any) -> tuple[Tensor, Tensor]:
    """Return the sign of every determinant, a constant, and the logarithm of its size."""
    v = np.asarray(raw(a))
    sign, logarithm = np.linalg.slogdet(v)
    pull = lambda g: g[..., None, None] * transposed(np.linalg.inv(v))  # noqa: E731
    return record("sign of det", sign), record("slogdet", logarithm, (a, pull))


@primitive
def cholesky(a: Any, upper: bool = False) -> Tensor:
    """Return the lower (or upper) factor of symmetric matrices, of which one half is read.

    The derivative is symmetric, as if both halves had been read.
    """
    lower = np.linalg.cholesky(np.asarray(raw(a)))

    def to_a(g: Any) -> Any:
        g = transposed(g) if upper else g
        inner = np.tril(transposed(lower) @ np.tril(g))
        inner = inner - np.eye(inner.shape[-1]) * inner / 2
        half = np.linalg.solve(transposed(lower), inner)
        half = transposed(np.linalg.solve(transposed(lower), transposed(half)))
        return ((half + transposed(half)) / 2).astype(lower.dtype)

    return record("cholesky", transposed(lower) if upper else lower, (a, to_a))
