"""Functions that take axes away, or run along one: each with its derivative beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from querykey.ag.errors import primitive
from querykey.ag.primitives import Axis, Function, axes_of, reshape, unreduced
from querykey.ag.protocols import as_floats, raw
from querykey.ag.tensor import Tensor, record


@primitive
def var(x: Any, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    """Return the average squared distance from the mean; `correction` is taken off the count."""
    v = np.asarray(raw(x))
    n = math.prod([v.shape[i] for i in axes_of(v.shape, axis)])
    left = n - correction if n > correction else 0
    scale = 2 / left if left else np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        centred = v - np.add.reduce(v, axis, keepdims=True) / n
        y = np.add.reduce(centred * centred, axis, keepdims=keepdims) / left
    to_x = lambda g: unreduced(g, v.shape, axis, keepdims) * centred * scale  # noqa: E731
    return record("var", y, (x, to_x))


@primitive
def norm(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the Euclidean length over axes; the gradient at length 0 is taken as 0."""
    v = np.asarray(raw(x))
    y = np.sqrt(np.add.reduce(v * v, axis, keepdims=True))
    out, unit = y if keepdims else np.squeeze(y, axis), lambda: v / np.where(y == 0, 1, y)
    return record("norm", out, (x, lambda g: unreduced(g, v.shape, axis, keepdims) * unit()))


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
