"""The softmax family, and the rescue of one written with raw exponentials."""

from __future__ import annotations

from typing import Any

import numpy as np

from querykey.ag.extras.aliasing import LENT, look
from querykey.ag.extras.slices import Block
from querykey.ag.primitives import Axis, axes_of, back, primitive, quotient
from querykey.ag.special import added
from querykey.ag.tensor import Tensor, raw, record


def floats(x: Any) -> np.ndarray:
    """x as an array of floats."""
    v = np.asarray(raw(x))
    return v if v.dtype.kind == "f" else v.astype(float)


def stable_softmax(v: np.ndarray, axis: Axis) -> np.ndarray:
    """exp(v) / sum(exp(v)), shifted so that the largest exponential is 1."""
    e = np.exp(v - np.max(v, axis=axis, keepdims=True, initial=-np.inf))
    return e / np.add.reduce(e, axis, keepdims=True)


def softmax_gradient(g: Any, y: Any, axis: Axis, *_written: Tensor) -> Any:
    """y * (g - sum(g * y)) over the axis of the softmax."""
    if type(g) is Block:
        gy = g * y
        total: Any = np.add.reduce(gy, axis, keepdims=True)
        return gy - y * total.spread(gy.shape)
    if g.size < 1 << 17:
        total = added(g * y, axis, True)
    else:  # einsum is slow to begin, and then needs no memory for the products
        every, gone = range(g.ndim), tuple(axes_of(g.shape, axis))
        total = np.einsum(g, every, y, every, [i for i in every if i not in gone])
        total = np.expand_dims(total, gone)
    out = g - total
    out *= y
    return out


@primitive
def softmax(x: Any, axis: Axis = -1) -> Tensor:
    """exp(x) / sum(exp(x)) over an axis."""
    y = stable_softmax(floats(x), axis)
    return record("softmax", y, (x, softmax_gradient), saved=(y, axis))


@primitive
def logsumexp(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over axes."""
    v = floats(x)
    top = np.max(v, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        y = np.log(np.add.reduce(np.exp(v - top), axis, keepdims=True)) + top
    out, weights = y if keepdims else np.squeeze(y, axis), lambda: np.exp(v - y)
    return record("logsumexp", out, (x, lambda g: back(g, v.shape, axis, keepdims) * weights()))


@primitive
def log_softmax(x: Any, axis: Axis = -1) -> Tensor:
    """log(softmax(x)), without the loss of digits."""
    v = floats(x)
    y = v - logsumexp(v, axis, keepdims=True)._data
    total = lambda g: np.add.reduce(g, axis, keepdims=True)  # noqa: E731
    return record("log_softmax", y, (x, lambda g: g - np.exp(y) * total(g)))


def share(e: Tensor, total: Tensor) -> Tensor:
    """e / total, where total = sum(e) and e = exp(x).

    Raw exponentials leave the range of floats: at 89 in float32, at 710 in float64. Rows whose
    total is finite and not 0 keep their quotient, bit for bit; others get the stable softmax of x.
    The derivative is the softmax's own, straight to x: g / total and g * e leave the range even
    sooner. It passes e and total by, so where one is labelled they are divided like any others.
    """
    x, v, d = e._of, e._data, total._data
    if LENT:
        look([x])
    if x is None or x.stamp > e.stamp or d.ndim not in (0, v.ndim) or not d.size:
        return quotient(e, total)
    if total.saved:
        _, axis, _ = total.saved
    else:
        axis = tuple([i for i in range(v.ndim) if d.ndim == 0 or d.shape[i] == 1])
    if np.count_nonzero(d) == np.count_nonzero(np.isfinite(d)) == d.size:
        if (e.label, total.label) != (None, None) and tame(d):
            return quotient(e, total)
        y = v / d
    else:
        with np.errstate(all="ignore"):
            y, fine = v / d, (d > 0) & np.isfinite(d)
            if not fine.all():
                y = np.where(fine, y, stable_softmax(x._data, axis))
    return record("divide", y, (x, softmax_gradient), saved=(y, axis, e, total))


def tame(d: np.ndarray) -> bool:
    """Whether 1 / d, squared, is a number too."""
    info = np.finfo(d.dtype)
    return bool(d.min() > float(info.tiny) ** 0.5 and d.max() < float(info.max) ** 0.5)


def divide(a: Any, b: Any) -> Tensor:
    """a / b; where that is exp(x) / sum(exp(x)) and exp overflowed, the softmax it stands for."""
    return share(a, b) if isinstance(b, Tensor) and b._of is a else quotient(a, b)
