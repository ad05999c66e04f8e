"""Shapes, orders and joins of the array API, and its questions about types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from querykey.ag import functions, primitives
from querykey.ag.errors import primitive
from querykey.ag.functions import broadcast_to, moveaxis
from querykey.ag.primitives import Axis
from querykey.ag.protocols import raw
from querykey.ag.tensor import Tensor, record


@primitive
def clip(x: Any, /, min: Any = None, max: Any = None) -> Tensor:
    """Return x, or the bound that it is beyond, in the type of x."""
    v = np.asarray(raw(x))
    x = x if isinstance(x, Tensor) else record("asarray", v)
    out = functions.clip(x, min, max)
    return out if out.dtype == v.dtype else functions.astype(out, v.dtype)


@primitive
def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Tensor:
    """Return arrays joined along an axis, or all their elements in order where it is None."""
    if axis is None:
        return functions.concatenate([primitives.reshape(x, -1) for x in arrays])
    return functions.concatenate(arrays, axis)


def reshape(x: Any, /, shape: tuple[int, ...], *, copy: Any = None) -> Tensor:
    """Return the same elements in another shape."""
    out = primitives.reshape(x, shape)
    return primitives.multiply(out, 1) if copy and out.dtype.kind != "b" else out


def matrix_transpose(x: Any, /) -> Tensor:
    """Return the last two axes exchanged."""
    return functions.swapaxes(x, -1, -2)


def permute_dims(x: Any, /, axes: tuple[int, ...]) -> Tensor:
    """Return the axes in another order."""
    return primitives.transpose(x, axes)


def expand_dims(x: Any, /, axis: Any) -> Tensor:
    """Return x with a new axis of size one."""
    return functions.expand_dims(x, axis)


def squeeze(x: Any, /, axis: Any) -> Tensor:
    """Return x without some axes of size one."""
    return functions.squeeze(x, axis)


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Tensor:
    """Return arrays joined along a new axis."""
    return functions.stack(arrays, axis)


@primitive
def flip(x: Any, /, *, axis: Axis = None) -> Tensor:
    """Return the axes' elements in the opposite order."""
    return record("flip", np.flip(raw(x), axis), (x, lambda g: np.flip(g, axis)))


@primitive
def roll(x: Any, /, shift: Any, *, axis: Axis = None) -> Tensor:
    """Return the elements moved around."""
    back = -shift if isinstance(shift, int) else tuple(-s for s in shift)
    return record("roll", np.roll(raw(x), shift, axis), (x, lambda g: np.roll(g, back, axis)))


@primitive
def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Return every element, or slice along an axis, several times in a row."""
    size = np.shape(raw(x))[axis] if axis is not None else np.size(raw(x))
    return functions.take(x, np.repeat(np.arange(size), raw(repeats)), axis)


@primitive
def tile(x: Any, repetitions: tuple[int, ...], /) -> Tensor:
    """Return x beside itself, so many times along each axis."""
    places = np.tile(np.arange(np.size(raw(x))).reshape(np.shape(raw(x))), repetitions)
    return functions.take(x, places)


@primitive
def broadcast_arrays(*arrays: Any) -> list[Tensor]:
    """Return the arrays in their common shape."""
    shape = np.broadcast_shapes(*[np.shape(raw(x)) for x in arrays])
    return [broadcast_to(x, shape) for x in arrays]


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the slices along an axis."""
    return tuple(moveaxis(x, axis, 0))


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Tensor:
    """Return the sum of products over some axes of each array."""
    from querykey.ag import linalg

    return linalg.tensordot(x1, x2, axes)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Tensor:
    """Return the sum of products along an axis."""
    from querykey.ag import linalg

    return linalg.vecdot(x1, x2, axis)


@dataclass(frozen=True)
class FloatLimits:
    """The limits of a floating type, as Python's numbers."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype


def finfo(type: Any, /) -> FloatLimits:
    """Return the limits of a floating type, or of an array's."""
    limits = np.finfo(getattr(type, "dtype", type))
    eps, largest = float(limits.eps), float(limits.max)
    least, normal = float(limits.min), float(limits.smallest_normal)
    return FloatLimits(limits.bits, eps, largest, least, normal, np.dtype(limits.dtype))


def iinfo(type: Any, /) -> Any:
    """Return the limits of an integer type, or of an array's."""
    return np.iinfo(getattr(type, "dtype", type))


def isdtype(dtype: Any, kind: Any) -> Any:
    """Return whether a type is of a kind, or of one of several."""
    return np.isdtype(dtype, kind)


def can_cast(from_: Any, to: Any, /) -> Any:
    """Return whether a type fits into another."""
    return np.can_cast(getattr(from_, "dtype", from_), to)


def result_type(*arrays_and_dtypes: Any) -> Any:
    """Return the type that an operation on all of these gives."""
    return np.result_type(*[raw(x) if isinstance(x, Tensor) else x for x in arrays_and_dtypes])
