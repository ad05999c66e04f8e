"""New arrays of the array API; they are constants, unless they are made of Tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from querykey.ag import functions
from querykey.ag.errors import primitive, refuse_lost_gradients, refuse_tensors_that_want
from querykey.ag.primitives import reshape
from querykey.ag.protocols import raw
from querykey.ag.tensor import Tensor, record
from querykey.errors import QuerykeyError

FLOAT = np.dtype(np.float64)


def on_the_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that makes an array: there is one device, and errors are ours."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        device = options.get("device")
        if device not in (None, "cpu"):
            raise QuerykeyError(f"a Tensor lives on the device 'cpu', not on {device!r}")
        return function(*args, **options)

    return primitive(call)


@on_the_cpu
def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Tensor:
    """Return a Tensor as it is, or as another type; anything else becomes a constant."""
    if isinstance(obj, Tensor):
        out = obj if dtype is None or obj.dtype == dtype else functions.astype(obj, dtype)
        if copy is False and out is not obj:
            raise QuerykeyError(f"{obj.dtype} does not become {np.dtype(dtype)} without a copy")
        if not copy:
            return out
        edges = [(out, lambda g: g)] if out.dtype.kind == "f" else []
        return record("copy", out._data.copy(), *edges)
    refuse_lost_gradients("asarray", obj)
    plain = obj if isinstance(obj, np.ndarray | np.generic) else raw(obj)
    if copy is False:
        return record("asarray", raw(np.asarray(plain, dtype=dtype, copy=False)))
    return record("asarray", raw(np.array(plain, dtype=dtype)))


def astype(x: Any, dtype: Any, /, *, copy: Any = True, device: Any = None) -> Tensor:
    """Return x as another type; the gradient returns as x's own."""
    return functions.astype(x, dtype, copy)


@on_the_cpu
def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return an array of zeros."""
    return record("zeros", raw(np.zeros(shape, dtype or FLOAT)))


@on_the_cpu
def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return an array of ones."""
    return record("ones", raw(np.ones(shape, dtype or FLOAT)))


@on_the_cpu
def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return an array with one value everywhere."""
    refuse_tensors_that_want("full", fill_value)
    return record("full", raw(np.full(shape, raw(fill_value), dtype)))


@on_the_cpu
def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return zeros: an uninitialised array saves nothing worth a surprise."""
    return zeros(shape, dtype=dtype)


@on_the_cpu
def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return zeros of x's shape and type."""
    return record("zeros", raw(np.zeros_like(raw(x), dtype)))


@on_the_cpu
def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return ones of x's shape and type."""
    return record("ones", raw(np.ones_like(raw(x), dtype)))


@on_the_cpu
def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return zeros of x's shape and type."""
    return zeros_like(x, dtype=dtype)


@on_the_cpu
def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return an array of x's shape and type, with one value everywhere."""
    refuse_tensors_that_want("full_like", fill_value)
    return record("full", raw(np.full_like(raw(x), raw(fill_value), dtype)))


@on_the_cpu
def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return start, start + step, ... up to stop; one number alone is the stop."""
    refuse_tensors_that_want("arange", start, stop, step)
    first, last = (0, start) if stop is None else (start, stop)
    return record("arange", raw(np.arange(raw(first), raw(last), raw(step), dtype=dtype)))


@on_the_cpu
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
    refuse_tensors_that_want("linspace", start, stop)
    line = np.linspace(raw(start), raw(stop), num, endpoint=endpoint, dtype=dtype)
    return record("linspace", raw(line))


@on_the_cpu
def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return ones on the k-th diagonal."""
    return record("eye", raw(np.eye(n_rows, n_cols, k, dtype or FLOAT)))


@on_the_cpu
def from_dlpack(x: Any, /, *, device: Any = None, copy: Any = None) -> Tensor:
    """Return another library's array as a constant, in the same memory unless a copy is wanted."""
    return record("from_dlpack", raw(np.from_dlpack(x, copy=copy)))


@primitive
def meshgrid(*arrays: Any, indexing: str = "xy") -> Sequence[Tensor]:
    """Return the coordinates of a grid, one array for each axis."""
    if indexing not in ("xy", "ij"):
        raise QuerykeyError(f'indexing is "xy" or "ij"; got {indexing!r}')
    vectors = [reshape(x, -1) for x in arrays]
    order = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        order[:2] = 1, 0
    shape = [vectors[i].size for i in order]
    grids = []
    for i, x in enumerate(vectors):
        sizes = [x.size if j == i else 1 for j in order]
        grids.append(functions.broadcast_to(reshape(x, sizes), shape))
    return grids


def tril(x: Any, /, *, k: int = 0) -> Tensor:
    """Return x with zeros above the k-th diagonal."""
    return functions.tril(x, k)


def triu(x: Any, /, *, k: int = 0) -> Tensor:
    """Return x with zeros below the k-th diagonal."""
    return functions.triu(x, k)
