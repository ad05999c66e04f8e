"""Reductions of the array API, and its functions that search, sort and find what is unique."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

from querykey.ag import functions, primitives, reductions
from querykey.ag.errors import primitive
from querykey.ag.extras.array_api.creation import astype
from querykey.ag.primitives import Axis, reshape
from querykey.ag.protocols import raw
from querykey.ag.tensor import Tensor, record
from querykey.errors import QuerykeyError


def sum(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: Any = False) -> Tensor:
    """Return the sum over axes."""
    if dtype is None:
        return primitives.sum(x, axis, keepdims)
    return astype(primitives.sum(astype(x, dtype), axis, keepdims), dtype)


def prod(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: Any = False) -> Tensor:
    """Return the product over axes."""
    if dtype is None:
        return reductions.prod(x, axis, keepdims)
    return astype(reductions.prod(astype(x, dtype), axis, keepdims), dtype)


def mean(x: Any, /, *, axis: Axis = None, keepdims: Any = False) -> Tensor:
    """Return the average over axes."""
    return primitives.mean(x, axis, keepdims)


def var(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: Any = False) -> Tensor:
    """Return the variance over axes."""
    return reductions.var(x, axis, keepdims, correction)


def std(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: Any = False) -> Tensor:
    """Return the standard deviation over axes."""
    return reductions.std(x, axis, keepdims, correction)


def max(x: Any, /, *, axis: Axis = None, keepdims: Any = False) -> Tensor:
    """Return the largest over axes."""
    return reductions.max(x, axis, keepdims)


def min(x: Any, /, *, axis: Axis = None, keepdims: Any = False) -> Tensor:
    """Return the smallest over axes."""
    return reductions.min(x, axis, keepdims)


def cumulative(op: str, f: Callable[..., Tensor], first: int) -> Callable[..., Tensor]:
    """Return a running sum or product, which starts from `first` if that is asked for."""

    def call(
        x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: Any = False
    ) -> Tensor:
        v = np.asarray(raw(x))
        if axis is None:
            if v.ndim != 1:
                raise QuerykeyError(f"{op} wants an axis for an array of {v.ndim} axes")
            axis = 0
        out = f(x, axis) if dtype is None else astype(f(astype(x, dtype), axis), dtype)
        if not include_initial:
            return out
        shape = list(out.shape)
        shape[axis] = 1
        return functions.concatenate([np.full(shape, first, out.dtype), out], axis)

    call.__name__, call.__doc__ = op, f"Return the {op} along an axis; one axis needs no name."
    return primitive(call)


cumulative_sum = cumulative("cumulative_sum", reductions.cumsum, 0)
cumulative_prod = cumulative("cumulative_prod", reductions.cumprod, 1)


def diff(
    x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None
) -> Tensor:
    """Return the differences of neighbours along an axis, taken n times."""
    parts = [part for part in (prepend, x, append) if part is not None]
    whole = x if len(parts) == 1 else functions.concatenate(parts, axis)
    return reductions.diff(whole, n, axis)


def reduction(op: str, f: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return a reduction without a derivative: what it returns is no float."""

    def call(x: Any, /, *, axis: Axis = None, keepdims: Any = False) -> Tensor:
        return record(op, f(raw(x), axis=axis, keepdims=keepdims))

    call.__name__, call.__doc__ = op, f"Return {op} over axes; it has no gradient."
    return primitive(call)


any, all = reduction("any", np.any), reduction("all", np.all)
argmax, argmin = reduction("argmax", np.argmax), reduction("argmin", np.argmin)
count_nonzero = reduction("count_nonzero", np.count_nonzero)


@primitive
def nonzero(x: Any, /) -> tuple[Tensor, ...]:
    """Return the places of the elements that are not 0, one array for each axis."""
    return tuple(record("nonzero", places) for places in np.nonzero(raw(x)))


@primitive
def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Tensor:
    """Return where the elements of x2 would stand in x1, which is in order."""
    order: Any = None if sorter is None else raw(sorter)
    if side not in ("left", "right"):
        raise QuerykeyError(f'side is "left" or "right"; got {side!r}')
    return record("searchsorted", np.searchsorted(raw(x1), raw(x2), side, order))  # type: ignore[call-overload]


@primitive
def argsort(x: Any, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Tensor:
    """Return the places of the elements in order."""
    v = raw(x)
    order = np.argsort(np.flip(v, axis) if descending else v, axis, stable=True)
    last = v.shape[axis] - 1 if v.ndim else 0
    return record("argsort", np.flip(last - order, axis) if descending else order)


def sort(x: Any, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Tensor:
    """Return the elements in order; each takes its gradient along."""
    order = argsort(x, axis=axis, descending=descending)
    return functions.take_along_axis(x, order, axis)


UniqueAll = namedtuple("UniqueAll", "values indices inverse_indices counts")
UniqueCounts = namedtuple("UniqueCounts", "values counts")
UniqueInverse = namedtuple("UniqueInverse", "values inverse_indices")


@primitive
def unique_all(x: Any, /) -> UniqueAll:
    """Return the different elements, where each is first, which each place has, and how often."""
    v = np.asarray(raw(x))
    _, *rest = np.unique_all(v)
    places, inverse, counts = (record("unique", part) for part in rest)
    return UniqueAll(functions.take(reshape(x, -1), places), places, inverse, counts)


def unique_counts(x: Any, /) -> UniqueCounts:
    """Return the different elements, and how often each is there."""
    uniques = unique_all(x)
    return UniqueCounts(uniques.values, uniques.counts)


def unique_inverse(x: Any, /) -> UniqueInverse:
    """Return the different elements, and which of them each place has."""
    uniques = unique_all(x)
    return UniqueInverse(uniques.values, uniques.inverse_indices)


def unique_values(x: Any, /) -> Tensor:
    """Return the different elements."""
    return unique_all(x).values
