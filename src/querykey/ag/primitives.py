"""The operations that a network is made of, each with its derivative beside it.

A primitive computes a value and records, for each input, the pull that turns `g`, the gradient of
the value, into the gradient of that input. No pull undoes broadcasting: the walk does (tensor.py).
Inputs are Tensors, arrays or numbers; only Tensors receive gradients.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from querykey.ag.errors import REFUSALS, misfit, primitive
from querykey.ag.hooks import hooks
from querykey.ag.protocols import as_floats, plain_index, raw
from querykey.ag.special import (
    CACHED,
    bell,
    erf_of,
    normal_below,
    ones,
    relu_of,
    sigmoid_of,
    zeros,
)
from querykey.ag.tensor import Tensor, record, shrink

Axis = int | tuple[int, ...] | None
Function = Callable[..., Any]

careful_product = np.errstate(invalid="raise")(np.multiply)
careless_mean = np.errstate(invalid="ignore")(np.mean)
quiet = np.errstate(over="ignore")
quiet_exp = quiet(np.exp)


# Functions of one array, element by element: y = f(x), then the gradient of x.


def unary(op: str, f: Function, pull: Function) -> Function:
    """Return the primitive y = f(x), whose pull is called with g, x and y."""

    def call(x: Any) -> Tensor:
        v = x._data if isinstance(x, Tensor) else raw(x)
        try:
            y = f(v)
        except REFUSALS as error:
            raise misfit(op, error, (x,)) from None
        return record(op, y, (x, pull), saved=(v, y))

    call.__name__ = call.__qualname__ = op
    call.__doc__ = f"Return the {op} of every element."
    return call


def relu_gradient(g: Any, x: Any, y: Any) -> Any:
    """Return g where x is positive; a product with ones and zeros is quicker than np.where."""
    mask = np.asarray(y > zeros((), y.dtype)).astype(y.dtype)
    try:
        return careful_product(mask, g, mask)
    except FloatingPointError:  # 0 times infinity
        return np.where(y > 0, g, 0)


negative = unary("negative", operator.neg, lambda g, x, y: -g)
log = unary("log", np.log, lambda g, x, y: g / x)
sqrt = unary("sqrt", np.sqrt, lambda g, x, y: g / (2 * y))
abs = unary("abs", np.abs, lambda g, x, y: g * np.sign(x))
square = unary("square", np.square, lambda g, x, y: g * (2 * x))
sin = unary("sin", np.sin, lambda g, x, y: g * np.cos(x))
cos = unary("cos", np.cos, lambda g, x, y: -g * np.sin(x))
tanh = unary("tanh", np.tanh, lambda g, x, y: g * (1 - y * y))
sigmoid = unary("sigmoid", sigmoid_of, lambda g, x, y: g * (y * (1 - y)))
relu = unary("relu", relu_of, relu_gradient)
erf = unary("erf", erf_of, lambda g, x, y: g * (np.exp(-x * x) * (2 / math.sqrt(math.pi))))
gelu = unary(
    "gelu", lambda x: x * normal_below(x), lambda g, x, y: g * (normal_below(x) + x * bell(x))
)


def exp(x: Any) -> Tensor:
    """Return e ** x. It may overflow in silence: `softmax_by_hand` makes that harmless."""
    if not isinstance(x, Tensor):
        x = record("constant", raw(x))
    y = quiet_exp(x._data)
    out = record("exp", y, (x, operator.mul), saved=(y,))
    out._operand = x
    return out


# Functions of two arrays, which may broadcast: y = f(a, b), then the gradients of a and of b.


def binary(op: str, f: Function, pull_a: Function, pull_b: Function) -> Function:
    """Return the primitive y = f(a, b), whose pulls are called with g, a, b and y."""

    def call(x1: Any, x2: Any) -> Tensor:
        v = x1._data if isinstance(x1, Tensor) else raw(x1)
        w = x2._data if isinstance(x2, Tensor) else raw(x2)
        try:
            y = f(v, w)
        except REFUSALS as error:
            raise misfit(op, error, (x1, x2)) from None
        return record(op, y, (x1, pull_a), (x2, pull_b), saved=(v, w, y))

    call.__name__ = call.__qualname__ = op
    call.__doc__ = f"Return the {op} of x1 and x2, element by element."
    return call


def power_slope(a: Any, b: Any, y: Any) -> Any:
    """Return b * a ** (b - 1), and 0 where b is 0, whatever a is."""
    return b * np.power(a, np.where(np.equal(b, 0), 1, np.subtract(b, 1)), dtype=y.dtype)


def log_or_zero(a: Any, y: Any) -> Any:
    """Return log(a), and 0 where a is 0."""
    return np.log(np.where(np.equal(a, 0), 1, a), dtype=y.dtype)


def to_larger(g: Any, one: Any, other: Any) -> Any:
    """Return g where `one` is larger than `other`, and half of it where they are equal."""
    return np.where(one == other, g / 2, np.where(one > other, g, 0))


add = binary("add", operator.add, lambda g, a, b, y: g, lambda g, a, b, y: g)
subtract = binary("subtract", operator.sub, lambda g, a, b, y: g, lambda g, a, b, y: -g)
multiply = binary("multiply", operator.mul, lambda g, a, b, y: g * b, lambda g, a, b, y: g * a)
quotient = binary(
    "divide",
    operator.truediv,
    lambda g, a, b, y: g / b,
    lambda g, a, b, y: shrink(g * y, b.shape) / -b,  # the sum that broadcasting asks for, early
)
power = binary(
    "power",
    np.power,
    lambda g, a, b, y: g * power_slope(a, b, y),
    lambda g, a, b, y: g * y * log_or_zero(a, y),
)
mod = binary("mod", np.mod, lambda g, a, b, y: g, lambda g, a, b, y: -g * np.floor_divide(a, b))
maximum = binary(
    "maximum",
    np.maximum,
    lambda g, a, b, y: to_larger(g, a, b),
    lambda g, a, b, y: to_larger(g, b, a),
)
minimum = binary(
    "minimum",
    np.minimum,
    lambda g, a, b, y: to_larger(g, b, a),
    lambda g, a, b, y: to_larger(g, a, b),
)


# Products


def matmul(a: Any, b: Any) -> Tensor:
    """Return a @ b over the last two axes; a vector is a row on the left, a column on the right."""
    x = a._data if isinstance(a, Tensor) else np.asarray(raw(a))
    y = b._data if isinstance(b, Tensor) else np.asarray(raw(b))
    try:
        if y.ndim == 2 and x.ndim > 1 and x.size and y.size:  # one matrix for the whole batch
            shape, to_a, to_b = x.shape, rows_gradient, weight_gradient
            rows = x.reshape(-1, shape[-1])
            value, saved = rows.dot(y).reshape(shape[:-1] + y.shape[1:]), (rows, y, shape)
        elif x.ndim == 1:
            return getitem(matmul(getitem(a, None), b), (..., 0, slice(None)) if y.ndim > 1 else 0)
        elif y.ndim == 1:
            return getitem(matmul(a, getitem(b, (slice(None), None))), (..., 0))
        else:
            value, saved = product(x, y), (x, y)
            to_a, to_b = left_gradient, right_gradient
    except REFUSALS as error:
        raise misfit("matmul", error, (a, b)) from None
    return record("matmul", value, (a, to_a), (b, to_b), saved=saved)


def left_gradient(g: Any, x: Any, y: Any) -> Any:
    """Return g @ y.mT, the gradient of x in x @ y."""
    return product(g, y.swapaxes(-1, -2))


def right_gradient(g: Any, x: Any, y: Any) -> Any:
    """Return x.mT @ g, the gradient of y in x @ y."""
    return product(x.swapaxes(-1, -2), g)


def rows_gradient(g: Any, rows: Any, y: Any, shape: tuple[int, ...]) -> Any:
    """Return g @ y.T, the gradient of x, with the whole batch as the rows of one matrix."""
    return g.reshape(len(rows), -1).dot(y.T).reshape(shape)


def weight_gradient(g: Any, rows: Any, y: Any, shape: tuple[int, ...]) -> Any:
    """Return the sum over the batch of x.mT @ g, the gradient of y, as one product."""
    return rows.T.dot(g.reshape(len(rows), -1))


def product(x: Any, y: Any) -> Any:
    """Return x @ y for a batch of both; the result is stored transposed where x is."""
    if x.size <= 512 or x.strides[-2] >= x.strides[-1] or x.shape[:-2] != y.shape[:-2]:
        return x @ y
    # Whoever wrote x.mT @ y is about to transpose the result, which is then as it lies in memory.
    out = np.empty((*y.shape[:-2], y.shape[-1], x.shape[-2]), np.result_type(x, y))
    return np.matmul(x, y, out=out.swapaxes(-1, -2))


# Sums and averages; reductions.py has the other functions that take axes away


def fast_sum(v: np.ndarray, axis: Any, keepdims: bool = False) -> Any:
    """Return the sum over axes, by a matrix product where that is quicker."""
    if v.dtype.kind == "f":
        last_but_one = v.ndim > 1 and axis in (v.ndim - 2, -2)
        if last_but_one and v.flags.c_contiguous and v.shape[-2] <= CACHED:
            y = ones((1, v.shape[-2]), v.dtype) @ v
            return y if keepdims else y[..., 0, :]
        if axis is None and not keepdims and v.size <= CACHED:
            return v.ravel().dot(ones(v.size, v.dtype))
    return np.add.reduce(v, axis, keepdims=keepdims)


quiet_sum = quiet(fast_sum)


def sum(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the sum over axes."""
    v = x._data if isinstance(x, Tensor) else np.asarray(raw(x))
    of_exp = isinstance(x, Tensor) and x.op == "exp"
    try:
        y = (quiet_sum if of_exp else fast_sum)(v, axis, keepdims)
    except REFUSALS as error:
        raise misfit("sum", error, (x,)) from None
    out = record("sum", y, (x, unreduced), saved=(v.shape, axis, keepdims))
    if of_exp:
        out._operand = x
    return out


@primitive
def mean(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the average over axes; the average of no elements is NaN."""
    v = np.asarray(raw(x))
    n = math.prod([v.shape[i] for i in axes_of(v.shape, axis)])
    options = {"axis": axis, "keepdims": keepdims}  # np.mean adds half precision up in float32
    y = careless_mean(v, **options) if n else np.sum(v, **options) * np.nan
    return record("mean", y, (x, lambda g: unreduced(g, v.shape, axis, keepdims) / (n or 1)))


def unreduced(g: Any, shape: tuple[int, ...], axis: Axis, keepdims: bool) -> Any:
    """Return a gradient with the axes that a reduction took away put back, of size one."""
    if keepdims:
        return g
    axes = axes_of(shape, axis)
    return g.reshape([1 if i in axes else n for i, n in enumerate(shape)])


def axes_of(shape: tuple[int, ...], axis: Axis) -> Sequence[int]:
    """Return the axes that a reduction takes away, none of them negative."""
    return range(len(shape)) if axis is None else normalize_axis_tuple(axis, len(shape))


# The loss of two classes


def binary_cross_entropy(logits: Any, y: Any) -> Tensor:
    """Return the mean of -log p(y), where p = sigmoid(logits); logits of any size are safe."""
    z, target = as_floats(logits), np.asarray(raw(y))
    target = target.astype(z.dtype, copy=False)
    e = np.asarray(np.abs(z))
    np.exp(np.negative(e, e), e)
    terms = relu_of(z) + np.log1p(e)
    terms -= z * target

    def to_logits(g: Any) -> Any:
        """Return (sigmoid(z) - target) * g / z.size; sigmoid is 1 or e, over 1 + e."""
        p = np.maximum((z >= zeros((), z.dtype)).astype(z.dtype), e)
        p /= e + ones((), z.dtype)
        p -= target
        p *= g / z.size
        return p

    loss, to_y = fast_sum(terms, None) / z.size, lambda g: z * (g / -z.size)
    if isinstance(y, Tensor):
        return record("bce", loss, (logits, to_logits), (y, to_y))
    return record("bce", loss, (logits, to_logits))


# Axes and places


@primitive
def reshape(x: Any, shape: int | Sequence[int]) -> Tensor:
    """Return the same elements in another shape."""
    v = np.asarray(raw(x))
    return record("reshape", v.reshape(shape), (x, lambda g: g.reshape(v.shape)))


@primitive
def transpose(x: Any, axes: Sequence[int] | None = None) -> Tensor:
    """Return the axes in another order, or reversed where none is given."""
    n = np.ndim(raw(x))
    return permuted(x, range(n)[::-1] if axes is None else [a + n if a < 0 else a for a in axes])


def permuted(x: Any, order: Sequence[int]) -> Tensor:
    """Return the axes in this order, in which none is negative."""
    v = x._data if isinstance(x, Tensor) else np.asarray(x)
    return record("transpose", v.transpose(order), (x, permuted_back), saved=(order,))


def permuted_back(g: Any, order: Sequence[int]) -> Any:
    """Return the axes of a gradient in the order that they had before `permuted`."""
    return g.transpose([order.index(a) for a in range(len(order))])


def swapped(x: Any, a: int, b: int) -> Tensor:
    """Return x with two axes exchanged."""
    v = x._data if isinstance(x, Tensor) else np.asarray(x)
    return record("transpose", v.swapaxes(a, b), (x, swapped_back), saved=(a, b))


def swapped_back(g: Any, a: int, b: int) -> Any:
    """Return a gradient with the two axes exchanged again."""
    return g.swapaxes(a, b)


def getitem(x: Any, index: Any) -> Tensor:
    """Return x[index], for whatever NumPy takes as an index."""
    v, place = raw(x), plain_index(index)
    try:
        y = v[place]
    except REFUSALS as error:
        raise misfit("getitem", error, (x,)) from None
    return record("getitem", y, (x, put_back), saved=(place, v.shape))


def put_back(g: Any, place: Any, shape: tuple[int, ...]) -> Any:
    """Return zeros with the gradient of x[place] where it belongs."""
    parts = place if isinstance(place, tuple) else (place,)
    if any(isinstance(i, np.ndarray | list) for i in parts):
        full = np.zeros(shape, g.dtype)
        np.add.at(full, place, g)  # an index may name an element many times
    elif (full := hooks.small_gradient(g, parts, shape)) is None:
        full = np.zeros(shape, g.dtype)
        full[place] = g
    return full
