"""Functions that take axes away, or run along one: each with its derivative beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from querykey.ag.errors import primitive
from querykey.ag.primitives import (
    Axis,
    Function,
    axes_of,
    getitem,
    reshape,
    subtract,
    unreduced,
)
from querykey.ag.protocols import as_floats, raw
from querykey.ag.tensor import Tensor, record
from querykey.words import whole


def spread(x: Any, axis: Axis, correction: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the variance, with its axes kept, the distances from the mean, and their count.

    Half precision is squared and added up in float32, as a square leaves its range at 256.
    """
    v = np.asarray(raw(x))
    v = v.astype(np.float32) if v.dtype == np.float16 else v
    n = math.prod([v.shape[i] for i in axes_of(v.shape, axis)])
    left = n - correction if n > correction else 0
    with np.errstate(invalid="ignore", divide="ignore"):
        centred = v - np.add.reduce(v, axis, keepdims=True) / n
        y = np.add.reduce(centred * centred, axis, keepdims=True) / left
    return y, centred, left or np.nan


def reduced(x: Any, y: np.ndarray, axis: Axis, keepdims: bool) -> np.ndarray:
    """Return a reduction of x, whose axes were kept, as it is asked for and in the type of x."""
    y = y if keepdims else np.squeeze(y, axis)
    dtype = np.asarray(raw(x)).dtype
    return y.astype(dtype, copy=False) if dtype.kind == "f" else y


@primitive
def var(x: Any, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    """Return the average squared distance from the mean; `correction` is taken off the count."""
    y, centred, left = spread(x, axis, correction)
    shape = centred.shape
    to_x = lambda g: unreduced(g, shape, axis, keepdims) * centred * (2 / left)  # noqa: E731
    return record("var", reduced(x, y, axis, keepdims), (x, to_x))


@primitive
def std(x: Any, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    """Return the root of the variance; the gradient at standard deviation 0 is taken as 0."""
    y, centred, left = spread(x, axis, correction)
    y, shape = np.sqrt(y), centred.shape
    unit = lambda: centred / (np.where(y == 0, np.inf, y) * left)  # noqa: E731
    to_x = lambda g: unreduced(g, shape, axis, keepdims) * unit()  # noqa: E731
    return record("std", reduced(x, y, axis, keepdims), (x, to_x))


@primitive
def norm(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the Euclidean length over axes; the gradient at length 0 is taken as 0."""
    v = np.asarray(raw(x))
    v = v.astype(np.float32) if v.dtype == np.float16 else v
    y, shape = np.sqrt(np.add.reduce(v * v, axis, keepdims=True)), v.shape
    unit = lambda: v / np.where(y == 0, 1, y)  # noqa: E731
    to_x = lambda g: unreduced(g, shape, axis, keepdims) * unit()  # noqa: E731
    return record("norm", reduced(x, y, axis, keepdims), (x, to_x))


def extreme(op: str, f: Function) -> Callable[..., Tensor]:
    """Return the primitive max or min."""

    def call(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
        v = np.asarray(raw(x))
        y = f(v, axis=axis, keepdims=True)

        def to_x(g: Any) -> Any:
            best = v == y
            weights = best / np.add.reduce(best, axis, keepdims=True)
            return unreduced(g, v.shape, axis, keepdims) * weights.astype(v.dtype)

        return record(op, y if keepdims else np.squeeze(y, axis), (x, to_x))

    call.__name__ = call.__qualname__ = op
    call.__doc__ = f"Return the {op}imum over axes; equal elements share the gradient."
    return primitive(call)


max, min = extreme("max", np.max), extreme("min", np.min)


@primitive
def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the index of the largest, the first among equals. It has no gradient."""
    return record("argmax", np.argmax(raw(x), axis=axis, keepdims=keepdims))


@primitive
def cumsum(x: Any, axis: int | None = None) -> Tensor:
    """Return the running sum along an axis, or of all elements in order."""
    if axis is None:
        return cumsum(reshape(x, -1), 0)
    y = np.cumsum(raw(x), axis)
    return record("cumsum", y, (x, lambda g: np.flip(np.cumsum(np.flip(g, axis), axis), axis)))


@primitive
def logsumexp(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return log(sum(exp(x))) over axes; its derivative is the softmax of x."""
    v = as_floats(x)
    top = np.max(v, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        y = np.log(np.add.reduce(np.exp(v - top), axis, keepdims=True)) + top
    out, weights = y if keepdims else np.squeeze(y, axis), lambda: np.exp(v - y)
    to_x = lambda g: unreduced(g, v.shape, axis, keepdims) * weights()  # noqa: E731
    return record("logsumexp", out, (x, to_x))


@primitive
def log_softmax(x: Any, axis: Axis = -1) -> Tensor:
    """Return log(softmax(x)), without the digits that softmax would lose."""
    v = as_floats(x)
    y = v - logsumexp(v, axis, keepdims=True)._data
    total = lambda g: np.add.reduce(g, axis, keepdims=True)  # noqa: E731
    return record("log_softmax", y, (x, lambda g: g - np.exp(y) * total(g)))


@primitive
def prod(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the product over axes."""
    v = np.asarray(raw(x))
    y = np.prod(v, axis=axis, keepdims=keepdims)

    def to_x(g: Any) -> Any:
        axes = axes_of(v.shape, axis)
        rest = [i for i in range(v.ndim) if i not in axes]
        table = v.transpose([*rest, *axes])
        others = products_of_others(table.reshape([*table.shape[: len(rest)], -1]))
        back = np.argsort([*rest, *axes])
        return unreduced(g, v.shape, axis, keepdims) * others.reshape(table.shape).transpose(back)

    return record("prod", y, (x, to_x))


def products_of_others(v: np.ndarray) -> np.ndarray:
    """Return, for every element, the product of the others along the last axis, zeros or not."""
    one = np.ones_like(v[..., :1])
    before = np.cumprod(np.concatenate([one, v[..., :-1]], -1), -1)
    behind = np.cumprod(np.concatenate([one, v[..., :0:-1]], -1), -1)[..., ::-1]
    return before * behind


@primitive
def cumprod(x: Any, axis: int | None = None) -> Tensor:
    """Return the running product along an axis, or of all elements in order."""
    if axis is None:
        return cumprod(reshape(x, -1), 0)
    v = np.asarray(raw(x))
    y = np.cumprod(v, axis)

    def to_x(g: Any) -> Any:
        later = lambda w: np.flip(np.cumsum(np.flip(w, axis), axis), axis)  # noqa: E731
        if np.all(v):
            return later(g * y) / v
        rows, slopes = np.moveaxis(v, axis, -1), np.moveaxis(g, axis, -1)
        out = np.empty_like(rows)
        for i in range(rows.shape[-1]):  # each of them as if it were 1; a quotient would be 0/0
            others = rows.copy()
            others[..., i] = 1
            out[..., i] = np.sum((slopes * np.cumprod(others, -1))[..., i:], -1)
        return np.moveaxis(out, -1, axis)

    return record("cumprod", y, (x, to_x))


@primitive
def diff(x: Any, n: int = 1, axis: int = -1) -> Tensor:
    """Return the differences of neighbours along an axis, taken n times."""
    v = np.asarray(raw(x))
    if v.dtype.kind == "b":
        return record("diff", np.diff(v, n, axis))
    lead = (slice(None),) * normalize_axis_index(axis, v.ndim)
    x = x if isinstance(x, Tensor) else record("diff", v)
    for _ in range(whole("n", n, least=0)):
        x = subtract(getitem(x, (*lead, slice(1, None))), getitem(x, (*lead, slice(None, -1))))
    return x
