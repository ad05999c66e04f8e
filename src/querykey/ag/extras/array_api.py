"""The Python array API namespace: what `x.__array_namespace__()` returns for a Tensor x.

Code written against the standard (or through array-api-compat) runs on Tensors, and its derivatives
come with it. Functions that have no derivative return constants. New arrays are constants too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from querykey.ag import functions, primitives, reductions
from querykey.ag.functions import broadcast_to, moveaxis, take_along_axis
from querykey.ag.operators import without_gradient
from querykey.ag.primitives import Axis, multiply, sqrt, unary
from querykey.ag.protocols import raw
from querykey.ag.tensor import Tensor, record

__array_api_version__ = "2024.12"

bool = np.dtype("bool")
int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float32, float64 = np.dtype("float32"), np.dtype("float64")
e, inf, nan, newaxis, pi = np.e, np.inf, np.nan, None, np.pi

abs, add, cos, divide = primitives.abs, primitives.add, primitives.cos, primitives.divide
exp, log, matmul, maximum = primitives.exp, primitives.log, primitives.matmul, primitives.maximum
mean, minimum, negative = primitives.mean, primitives.minimum, primitives.negative
sin, square, subtract, tanh = (
    primitives.sin,
    primitives.square,
    primitives.subtract,
    primitives.tanh,
)
logsumexp, max, min = reductions.logsumexp, reductions.max, reductions.min
clip, expand_dims, squeeze = functions.clip, functions.expand_dims, functions.squeeze
stack, take, where = functions.stack, functions.take, functions.where
absolute = primitives.abs  # the name under which np.abs calls us
concat, permute_dims = functions.concatenate, primitives.transpose
pow, remainder = primitives.power, primitives.mod
log1p = unary("log1p", np.log1p, lambda g, x, y: g / (1 + x))
expm1 = unary("expm1", np.expm1, lambda g, x, y: g * (1 + y))
reciprocal = unary("reciprocal", lambda x: 1 / x, lambda g, x, y: -g * (y * y))
equal = without_gradient("equal", np.equal)
not_equal = without_gradient("not_equal", np.not_equal)
less = without_gradient("less", np.less)
less_equal = without_gradient("less_equal", np.less_equal)
greater = without_gradient("greater", np.greater)
greater_equal = without_gradient("greater_equal", np.greater_equal)
isfinite = without_gradient("isfinite", np.isfinite)
isinf = without_gradient("isinf", np.isinf)
isnan = without_gradient("isnan", np.isnan)
signbit = without_gradient("signbit", np.signbit)
logical_and = without_gradient("logical_and", np.logical_and)
logical_or = without_gradient("logical_or", np.logical_or)
logical_not = without_gradient("logical_not", np.logical_not)
logical_xor = without_gradient("logical_xor", np.logical_xor)
bitwise_and = without_gradient("bitwise_and", np.bitwise_and)
bitwise_or = without_gradient("bitwise_or", np.bitwise_or)
bitwise_xor = without_gradient("bitwise_xor", np.bitwise_xor)
bitwise_invert = without_gradient("bitwise_invert", np.invert)
floor = without_gradient("floor", np.floor)
ceil = without_gradient("ceil", np.ceil)
trunc = without_gradient("trunc", np.trunc)
round = without_gradient("round", np.round)
sign = without_gradient("sign", np.sign)
floor_divide = without_gradient("floor_divide", np.floor_divide)


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Tensor:
    """Return a Tensor as it is, or as another type; anything else becomes a constant."""
    if isinstance(obj, Tensor) and not copy:
        return obj if dtype is None or obj.dtype == dtype else astype(obj, dtype)
    value = np.array(np.asarray(raw(obj)), dtype=dtype)
    if isinstance(obj, Tensor) and value.dtype.kind == "f":
        return record("copy", value, (obj, lambda g: g))
    return record("asarray", value)


def astype(x: Any, dtype: Any, /, *, copy: Any = True, device: Any = None) -> Tensor:
    """Return x as another type; the gradient returns as x's own."""
    return functions.astype(x, dtype, copy)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return an array of zeros."""
    return record("zeros", np.zeros(shape, dtype or float64))


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return an array of ones."""
    return record("ones", np.ones(shape, dtype or float64))


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return an array with one value everywhere."""
    return record("full", np.full(shape, raw(fill_value), dtype))


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return zeros: an uninitialised array saves nothing worth a surprise."""
    return zeros(shape, dtype=dtype)


def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return zeros of x's shape and type."""
    return record("zeros", np.zeros_like(raw(x), dtype))


def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return ones of x's shape and type."""
    return record("ones", np.ones_like(raw(x), dtype))


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return an array of x's shape and type, with one value everywhere."""
    return record("full", np.full_like(raw(x), raw(fill_value), dtype))


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return start, start + step, ... up to stop; one number alone is the stop."""
    first, last = (0, start) if stop is None else (start, stop)
    return record("arange", np.arange(raw(first), raw(last), raw(step), dtype=dtype))


def linspace(
    start: Any,
    stop: Any,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: Any = True,
) -> Tensor:
    """Return `num` evenly spaced numbers."""
    return record("linspace", np.linspace(start, stop, num, endpoint=endpoint, dtype=dtype))


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return ones on the k-th diagonal."""
    return record("eye", np.eye(n_rows, n_cols, k, dtype or float64))


def tril(x: Any, /, *, k: int = 0) -> Tensor:
    """Return x with zeros above the k-th diagonal."""
    return functions.tril(x, k)


def triu(x: Any, /, *, k: int = 0) -> Tensor:
    """Return x with zeros below the k-th diagonal."""
    return functions.triu(x, k)


def reshape(x: Any, /, shape: tuple[int, ...], *, copy: Any = None) -> Tensor:
    """Return the same elements in another shape."""
    return primitives.reshape(x, shape)


def matrix_transpose(x: Any, /) -> Tensor:
    """Return the last two axes exchanged."""
    return moveaxis(x, -1, -2)


def vecdot(a: Any, b: Any, /, *, axis: int = -1) -> Tensor:
    """Return the sum of products along an axis."""
    return primitives.sum(multiply(a, b), axis=axis)


def sum(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: Any = False) -> Tensor:
    """Return the sum over axes."""
    return primitives.sum(x if dtype is None else astype(x, dtype), axis, keepdims)


def var(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: Any = False) -> Tensor:
    """Return the variance over axes."""
    return reductions.var(x, axis, keepdims, correction)


def std(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: Any = False) -> Tensor:
    """Return the standard deviation over axes."""
    return sqrt(reductions.var(x, axis, keepdims, correction))


def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: Any = False
) -> Tensor:
    """Return the running sum along an axis, from 0 if that is asked for."""
    along = 0 if axis is None else axis
    out = reductions.cumsum(x if dtype is None else astype(x, dtype), along)
    if not include_initial:
        return out
    first = list(out.shape)
    first[along] = 1
    return concat([np.zeros(first, out.dtype), out], along)


def reduction(op: str, f: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return a reduction without a derivative."""

    def call(x: Any, /, *, axis: Axis = None, keepdims: Any = False) -> Tensor:
        return record(op, f(raw(x), axis=axis, keepdims=keepdims))

    call.__name__, call.__doc__ = op, f"Return {op} over axes; it has no gradient."
    return call


any, all = reduction("any", np.any), reduction("all", np.all)
argmax, argmin = reduction("argmax", np.argmax), reduction("argmin", np.argmin)
count_nonzero = reduction("count_nonzero", np.count_nonzero)


def argsort(x: Any, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Tensor:
    """Return the places of the elements in order."""
    v = raw(x)
    order = np.argsort(np.flip(v, axis) if descending else v, axis, stable=True)
    last = v.shape[axis] - 1 if v.ndim else 0
    return record("argsort", np.flip(last - order, axis) if descending else order)


def sort(x: Any, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Tensor:
    """Return the elements in order; each takes its gradient along."""
    return take_along_axis(x, argsort(x, axis=axis, descending=descending), axis)


def flip(x: Any, /, *, axis: Axis = None) -> Tensor:
    """Return the axes' elements in the opposite order."""
    return record("flip", np.flip(raw(x), axis), (x, lambda g: np.flip(g, axis)))


def roll(x: Any, /, shift: Any, *, axis: Axis = None) -> Tensor:
    """Return the elements moved around."""
    back = -shift if isinstance(shift, int) else tuple(-s for s in shift)
    return record("roll", np.roll(raw(x), shift, axis), (x, lambda g: np.roll(g, back, axis)))


def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Return every element, or slice along an axis, several times in a row."""
    size = np.shape(raw(x))[axis] if axis is not None else np.size(raw(x))
    return functions.take(x, np.repeat(np.arange(size), raw(repeats)), axis)


def tile(x: Any, repetitions: tuple[int, ...], /) -> Tensor:
    """Return x beside itself, so many times along each axis."""
    places = np.tile(np.arange(np.size(raw(x))).reshape(np.shape(raw(x))), repetitions)
    return functions.take(x, places)


def broadcast_arrays(*arrays: Any) -> list[Tensor]:
    """Return the arrays in their common shape."""
    shape = np.broadcast_shapes(*[np.shape(raw(x)) for x in arrays])
    return [broadcast_to(x, shape) for x in arrays]


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the slices along an axis."""
    return tuple(moveaxis(x, axis, 0))


def finfo(kind: Any, /) -> Any:
    """Return the limits of a floating type, or of an array's."""
    return np.finfo(getattr(kind, "dtype", kind))


def iinfo(kind: Any, /) -> Any:
    """Return the limits of an integer type, or of an array's."""
    return np.iinfo(getattr(kind, "dtype", kind))


def isdtype(dtype: Any, kind: Any) -> Any:
    """Return whether a type is of a kind, or of one of several."""
    return np.isdtype(dtype, kind)


def can_cast(from_: Any, to: Any, /) -> Any:
    """Return whether a type fits into another."""
    return np.can_cast(getattr(from_, "dtype", from_), to)


def result_type(*arrays_and_dtypes: Any) -> Any:
    """Return the type that an operation on all of these gives."""
    return np.result_type(*[raw(x) if isinstance(x, Tensor) else x for x in arrays_and_dtypes])


def meshgrid(*arrays: Any, indexing: str = "xy") -> Sequence[Tensor]:
    """Return coordinate arrays; they are constants."""
    return [record("meshgrid", m) for m in np.meshgrid(*map(raw, arrays), indexing=indexing)]  # type: ignore[arg-type]
