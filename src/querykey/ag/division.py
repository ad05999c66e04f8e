"""The softmax, called by its name or written as exp(x) / sum(exp(x)), and so every division."""

from __future__ import annotations

from typing import Any

import numpy as np

from querykey.ag.errors import primitive
from querykey.ag.hooks import hooks
from querykey.ag.primitives import Axis, axes_of, fast_sum, quotient
from querykey.ag.protocols import as_floats
from querykey.ag.special import softmax_of, squares_stay_finite
from querykey.ag.tensor import Tensor, record


@primitive
def softmax(x: Any, axis: Axis = -1) -> Tensor:
    """Return exp(x) / sum(exp(x)) over an axis."""
    y = softmax_of(as_floats(x), axis)
    return record("softmax", y, (x, softmax_gradient), saved=(y, axis))


def softmax_gradient(g: Any, y: Any, axis: Axis, *_by_hand: Tensor) -> Any:
    """Return y * (g - sum(g * y)), the sum over the axis of the softmax."""
    if g.size < 1 << 17:
        total = fast_sum(g * y, axis, True)
    else:  # einsum is slow to begin, and then needs no memory for the products
        every, gone = range(g.ndim), tuple(axes_of(g.shape, axis))
        total = np.einsum(g, every, y, every, [i for i in every if i not in gone])
        total = np.expand_dims(total, gone)
    out = g - total
    out *= y
    return out


def divide(x1: Any, x2: Any) -> Tensor:
    """Return x1 / x2; where that is exp(x) / sum(exp(x)), it is the softmax even if exp overflows.

    The two exponentials may be one Tensor or two, of the same x.
    """
    if isinstance(x2, Tensor) and x2._operand is not None:
        e = x2._operand
        if e is x1 or (isinstance(x1, Tensor) and same_exponentials(x1, e)):
            return softmax_by_hand(e, x2)
    return quotient(x1, x2)


def same_exponentials(one: Tensor, other: Tensor) -> bool:
    """Return whether two Tensors are exp(x) of one x, which was not changed between them."""
    x, y = one._operand, other._operand
    if one.op != "exp" or x is None or y is None or one.label is not None:
        return False
    if hooks.watch.lent:
        hooks.watch.look([x])
    if x is y:
        return x.stamp < min(one.stamp, other.stamp)
    alike = x._data is y._data and not x.requires_grad and not y.requires_grad
    return alike and np.array_equal(one._data, other._data, equal_nan=True)


def softmax_by_hand(e: Tensor, total: Tensor) -> Tensor:
    """Return e / total, where total = sum(e) and e = exp(x).

    Raw exponentials leave the range of floats: at 89 in float32, at 710 in float64. Rows whose
    total is finite and not 0 keep their quotient, bit for bit; others get the stable softmax of x.
    The derivative is the softmax's own, straight to x: g / total and g * e leave the range even
    sooner. It passes e and total by, so where one is labelled they are divided like any others.
    """
    x, v, d = e._operand, e._data, total._data
    if hooks.watch.lent:
        hooks.watch.look([x])
    if x is None or x.stamp > e.stamp or d.ndim not in (0, v.ndim) or not d.size:
        return quotient(e, total)
    if total.saved:
        _, axis, _ = total.saved
    else:
        axis = tuple([i for i in range(v.ndim) if d.ndim == 0 or d.shape[i] == 1])
    if np.count_nonzero(d) == np.count_nonzero(np.isfinite(d)) == d.size:
        if (e.label, total.label) != (None, None) and squares_stay_finite(d):
            return quotient(e, total)
        y = v / d
    else:
        with np.errstate(all="ignore"):
            y, fine = v / d, (d > 0) & np.isfinite(d)
            if not fine.all():
                y = np.where(fine, y, softmax_of(x._data, axis))
    return record("divide", y, (x, softmax_gradient), saved=(y, axis, e, total))
