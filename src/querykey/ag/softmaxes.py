"""The softmax family, and the rescue of one written with raw exponentials."""

from __future__ import annotations

from typing import Any

import numpy as np

from querykey.ag.blocks import Block
from querykey.ag.primitives import Axis, back, primitive, quotient
from querykey.ag.tensor import Tensor, raw, record


def stable_softmax(v: np.ndarray, axis: Axis) -> np.ndarray:
    """exp(v) / sum(exp(v)), shifted so that the largest exponential is 1."""
    e = np.exp(v - np.max(v, axis=axis, keepdims=True, initial=-np.inf))
    return e / np.add.reduce(e, axis, keepdims=True)


def softmax_gradient(g: Any, y: Any, axis: Axis) -> Any:
    """y * (g - sum(g * y)) over the axis of the softmax."""
    gy = g * y
    total = np.add.reduce(gy, axis, keepdims=True)
    return gy - y * (total.spread(gy.shape) if type(total) is Block else total)


@primitive
def softmax(x: Any, axis: Axis = -1) -> Tensor:
    """exp(x) / sum(exp(x)) over an axis."""
    y = stable_softmax(np.asarray(raw(x)), axis)
    return record("softmax", y, (x, softmax_gradient), saved=(y, axis))


@primitive
def logsumexp(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over axes."""
    v = np.asarray(raw(x))
    top = np.max(v, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        y = np.log(np.add.reduce(np.exp(v - top), axis, keepdims=True)) + top
    out, weights = y if keepdims else np.squeeze(y, axis), lambda: np.exp(v - y)
    return record("logsumexp", out, (x, lambda g: back(g, v.shape, axis, keepdims) * weights()))


@primitive
def log_softmax(x: Any, axis: Axis = -1) -> Tensor:
    """log(softmax(x)), without the loss of digits."""
    y = raw(x) - logsumexp(raw(x), axis, keepdims=True)._data
    total = lambda g: np.add.reduce(g, axis, keepdims=True)  # noqa: E731
    return record("log_softmax", y, (x, lambda g: g - np.exp(y) * total(g)))


def share_gradient(g: Any, e: Any, total: Any, y: Any, axis: Axis) -> Any:
    """(g - sum(g * y)) / total: the gradient of e both above the line and in the sum below it."""
    below = np.add.reduce(g * y, axis, keepdims=True)
    return (g - (below.spread(g.shape) if type(below) is Block else below)) / total


def share(e: Tensor, total: Tensor) -> Tensor:
    """e / total, where total = sum(e) and e = exp(x).

    Raw exponentials leave the range of floats: at 89 in float32, at 710 in float64. Rows whose
    total is finite and not 0 keep their quotient, bit for bit; others get the stable softmax of x.
    The derivative is then the softmax's own: g / total and g * e leave the range even sooner.
    """
    x, v, d = e._of, e._data, total._data
    if x is None or d.ndim not in (0, v.ndim) or not d.size:
        return quotient(e, total)
    axis, flat = tuple([i for i in range(v.ndim) if d.ndim == 0 or d.shape[i] == 1]), d.ravel()
    low, high = RANGE[d.dtype.itemsize]
    if low < np.minimum.reduce(flat) and np.maximum.reduce(flat) < high:
        if total.label is not None:
            return quotient(e, total)  # its own gradient is to be shown
        y = v / d
        out = record("divide", y, (e, share_gradient), saved=(v, d, y, axis))
        out.constants += (total,)
        return out
    with np.errstate(all="ignore"):
        y, fine = v / d, (d > 0) & np.isfinite(d)
        if not fine.all():
            y = np.where(fine, y, stable_softmax(x._data, axis))
    return record("softmax", y, (x, softmax_gradient), saved=(y, axis))


RANGE = {
    t.itemsize: (float(np.finfo(t).tiny) ** 0.5, float(np.finfo(t).max) ** 0.5)
    for t in map(np.dtype, ("float16", "float32", "float64"))
}


def divide(a: Any, b: Any) -> Tensor:
    """a / b; where that is exp(x) / sum(exp(x)) and exp overflowed, the softmax it stands for."""
    return share(a, b) if isinstance(b, Tensor) and b._of is a else quotient(a, b)
