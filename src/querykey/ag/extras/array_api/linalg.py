"""The linear algebra of the array API; a decomposition without a derivative takes constants."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

from querykey.ag import functions, linalg, primitives, reductions
from querykey.ag.errors import primitive, refuse_tensors_that_want
from querykey.ag.extras.array_api.manipulation import matrix_transpose as matrix_transpose
from querykey.ag.extras.array_api.manipulation import tensordot as tensordot
from querykey.ag.extras.array_api.manipulation import vecdot as vecdot
from querykey.ag.primitives import Axis, getitem
from querykey.ag.primitives import matmul as matmul
from querykey.ag.protocols import raw
from querykey.ag.tensor import Tensor, record
from querykey.errors import QuerykeyError

SlogdetResult = namedtuple("SlogdetResult", "sign logabsdet")
QRResult = namedtuple("QRResult", "Q R")
EighResult = namedtuple("EighResult", "eigenvalues eigenvectors")
SVDResult = namedtuple("SVDResult", "U S Vh")

inv, det, outer = linalg.inv, linalg.det, linalg.outer


def solve(x1: Any, x2: Any, /) -> Tensor:
    """Return x with x1 @ x = x2."""
    return linalg.solve(x1, x2)


def cholesky(x: Any, /, *, upper: bool = False) -> Tensor:
    """Return the lower or upper factor of symmetric matrices."""
    return linalg.cholesky(x, upper)


def slogdet(x: Any, /) -> SlogdetResult:
    """Return the sign and the logarithm of the size of every determinant."""
    return SlogdetResult(*linalg.slogdet(x))


@primitive
def diagonal(x: Any, /, *, offset: int = 0) -> Tensor:
    """Return the elements of a diagonal of every matrix."""
    rows, columns = np.shape(raw(x))[-2:]
    count = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    place = np.arange(count)
    return getitem(x, (..., place - min(offset, 0), place + max(offset, 0)))


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """Return the sum of a diagonal of every matrix."""
    part = diagonal(x, offset=offset)
    return primitives.sum(part if dtype is None else functions.astype(part, dtype), -1)


@primitive
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Tensor:
    """Return the cross product of vectors of three elements along an axis."""
    a, b = functions.moveaxis(x1, axis, -1), functions.moveaxis(x2, axis, -1)
    if a.shape[-1] != 3 or b.shape[-1] != 3:
        raise QuerykeyError("a cross product is of vectors of three elements")
    after, before = np.array([1, 2, 0]), np.array([2, 0, 1])
    out = a[..., after] * b[..., before] - a[..., before] * b[..., after]
    return functions.moveaxis(out, -1, axis)


@primitive
def matrix_power(x: Any, n: int, /) -> Tensor:
    """Return the n-th power of every matrix; a negative one is of the inverse."""
    v = np.asarray(raw(x))
    base = inv(x) if n < 0 else x if isinstance(x, Tensor) else record("asarray", v)
    out = record("eye", np.broadcast_to(np.eye(v.shape[-1], dtype=v.dtype), v.shape).copy())
    for bit in bin(abs(n))[2:]:
        out = matmul(out, out)
        out = matmul(out, base) if bit == "1" else out
    return out


@primitive
def vector_norm(x: Any, /, *, axis: Axis = None, keepdims: Any = False, ord: Any = 2) -> Tensor:
    """Return the p-norm over axes; its gradient at length 0 is taken as 0."""
    if ord == 2:
        return reductions.norm(x, axis, keepdims)
    size = primitives.abs(x)
    if ord in (np.inf, -np.inf):
        return (reductions.max if ord > 0 else reductions.min)(size, axis, keepdims)
    if ord == 0:
        refuse_tensors_that_want("vector_norm of order 0", x)
        v = np.asarray(raw(x))
        counts = np.sum(v != 0, axis=axis, keepdims=keepdims, dtype=v.dtype)
        return record("vector_norm", counts)
    if ord == 1:
        return primitives.sum(size, axis, keepdims)
    return primitives.power(primitives.sum(primitives.power(size, ord), axis, keepdims), 1 / ord)


@primitive
def matrix_norm(x: Any, /, *, keepdims: Any = False, ord: Any = "fro") -> Tensor:
    """Return a norm of every matrix; those by singular values have no derivative."""
    if ord == "fro":
        return reductions.norm(x, (-2, -1), keepdims)
    if ord in (1, -1, np.inf, -np.inf):
        first, second = (-2, -1) if abs(ord) == 1 else (-1, -2)
        sums = primitives.sum(primitives.abs(x), first, keepdims=True)
        out = (reductions.max if ord > 0 else reductions.min)(sums, second, keepdims=True)
        return out if keepdims else functions.squeeze(out, (-2, -1))
    refuse_tensors_that_want(f"matrix_norm of order {ord}", x)
    return record("matrix_norm", np.linalg.matrix_norm(raw(x), keepdims=keepdims, ord=ord))


def decomposition(op: str, f: Callable[..., Any], kind: Any = None) -> Callable[..., Any]:
    """Return a function of one array that has no derivative here, and refuses to lose one."""

    def call(x: Any, /, **options: Any) -> Any:
        refuse_tensors_that_want(op, x)
        out = f(raw(x), **options)
        return record(op, out) if kind is None else kind(*[record(op, part) for part in out])

    call.__name__, call.__doc__ = op, f"Return {op} of every matrix; it has no derivative."
    return primitive(call)


_eigh = decomposition("eigh", np.linalg.eigh, EighResult)
eigvalsh = decomposition("eigvalsh", np.linalg.eigvalsh)
svdvals = decomposition("svdvals", np.linalg.svdvals)
_qr = decomposition("qr", np.linalg.qr, QRResult)
_svd = decomposition("svd", np.linalg.svd, SVDResult)
_pinv = decomposition("pinv", np.linalg.pinv)
_rank = decomposition("matrix_rank", np.linalg.matrix_rank)


def eigh(x: Any, /) -> EighResult:
    """Return eigenvalues and eigenvectors of symmetric matrices; they have no derivative."""
    return _eigh(x)


def qr(x: Any, /, *, mode: Any = "reduced") -> QRResult:
    """Return an orthogonal and an upper factor; they have no derivative."""
    return _qr(x, mode=mode)


def svd(x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """Return singular vectors and values; they have no derivative."""
    return _svd(x, full_matrices=full_matrices)


def pinv(x: Any, /, *, rtol: Any = None) -> Tensor:
    """Return the pseudo-inverse of every matrix; it has no derivative."""
    return _pinv(x) if rtol is None else _pinv(x, rtol=raw(rtol))


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Tensor:
    """Return the rank of every matrix."""
    return _rank(
        x.detach() if isinstance(x, Tensor) else x, rtol=None if rtol is None else raw(rtol)
    )
