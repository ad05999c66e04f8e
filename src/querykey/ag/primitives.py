"""The table: each primitive with its derivative beside it.

A primitive computes a value and records, for each input, how a gradient `g` of that value is pulled
back to the input. What broadcasting repeated, the walk sums (tensor.py), so no pull says a word about
it. Inputs are Tensors, arrays or numbers; only Tensors receive gradients.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from querykey.ag.blocks import Block, block_of, folded, times, times_right
from querykey.ag.tensor import Tensor, misfit, plain_index, raw, record

P, R = ParamSpec("P"), TypeVar("R")
Axis = int | tuple[int, ...] | None
Function = Callable[..., Any]


def primitive(function: Callable[P, R]) -> Callable[P, R]:
    """Make NumPy's complaints name the operation, and every Tensor by label and shape."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (ValueError, IndexError) as error:
            raise misfit(function.__name__, error, args) from None

    return call


# Element by element. Of one input, x: the value y, then the gradient of x from g, that of y.


def unary(op: str, f: Function, pull: Function) -> Function:
    """A primitive of one input."""

    def call(x: Any) -> Tensor:
        v = raw(x)
        y = f(v)
        return record(op, y, (x, lambda g: pull(g, v, y)))

    call.__name__, call.__doc__ = op, f"{op} of every element."
    return call


def sigmoid_of(x: Any) -> Any:
    """1 / (1 + exp(-x)), from an exponential that cannot overflow."""
    e = np.exp(-np.abs(x))
    return np.where(np.greater_equal(x, 0), 1, e) / (1 + e)


def erf_of(x: Any) -> Any:
    """The error function from Python's own math, one element at a time."""
    x = np.asarray(x)
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.result_type(x, np.float16))


def normal_below(x: Any) -> Any:
    """The share of a normal distribution that lies below x."""
    return (1 + erf_of(x * math.sqrt(0.5))) / 2


def bell(x: Any) -> Any:
    """exp(-x^2 / 2) / sqrt(2 pi), its density."""
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


negative = unary("negative", operator.neg, lambda g, x, y: -g)
log = unary("log", np.log, lambda g, x, y: g / x)
sqrt = unary("sqrt", np.sqrt, lambda g, x, y: g / (2 * y))
abs = unary("abs", np.abs, lambda g, x, y: g * np.sign(x))
square = unary("square", np.square, lambda g, x, y: g * (2 * x))
sin = unary("sin", np.sin, lambda g, x, y: g * np.cos(x))
cos = unary("cos", np.cos, lambda g, x, y: -g * np.sin(x))
tanh = unary("tanh", np.tanh, lambda g, x, y: g * (1 - y * y))
sigmoid = unary("sigmoid", sigmoid_of, lambda g, x, y: g * (y * (1 - y)))
relu = unary("relu", lambda x: np.maximum(x, 0), lambda g, x, y: g * (y > 0))
erf = unary("erf", erf_of, lambda g, x, y: g * (np.exp(-x * x) * (2 / math.sqrt(math.pi))))
gelu = unary(
    "gelu", lambda x: x * normal_below(x), lambda g, x, y: g * (normal_below(x) + x * bell(x))
)


def exp(x: Any) -> Tensor:
    """e ** x. It may overflow in silence: see `rescue`, which makes that harmless in a softmax."""
    with np.errstate(over="ignore"):
        y = np.exp(raw(x))
    out = record("exp", y, (x, lambda g: g * y))
    out._of = x if isinstance(x, Tensor) else record("constant", x)
    return out


# Of two inputs, a and b, which may broadcast: the value y, then the gradients of a and of b.


def binary(op: str, f: Function, pull_a: Function, pull_b: Function) -> Function:
    """A primitive of two inputs."""

    def call(a: Any, b: Any) -> Tensor:
        v, w = raw(a), raw(b)
        try:
            y = f(v, w)
        except ValueError as error:
            raise misfit(op, error, (a, b)) from None
        return record(op, y, (a, lambda g: pull_a(g, v, w, y)), (b, lambda g: pull_b(g, v, w, y)))

    call.__name__, call.__doc__ = op, f"{op} of a and b, element by element."
    return call


def power_slope(a: Any, b: Any, y: Any) -> Any:
    """b * a ** (b - 1), and 0 where b is 0, whatever a is."""
    return b * np.power(a, np.where(np.equal(b, 0), 1, np.subtract(b, 1)), dtype=y.dtype)


def share(g: Any, mine: Any, other: Any) -> Any:
    """The whole gradient to the winner, half of it in a tie."""
    return np.where(mine == other, g / 2, np.where(mine > other, g, 0))


def safe_log(a: Any) -> Any:
    """log(a), and 0 where a is 0."""
    return np.log(np.where(np.equal(a, 0), 1, a))


add = binary("add", operator.add, lambda g, a, b, y: g, lambda g, a, b, y: g)
subtract = binary("subtract", operator.sub, lambda g, a, b, y: g, lambda g, a, b, y: -g)
multiply = binary("multiply", operator.mul, lambda g, a, b, y: g * b, lambda g, a, b, y: g * a)
quotient = binary(
    "divide", operator.truediv, lambda g, a, b, y: g / b, lambda g, a, b, y: g * y / -b
)
power = binary(
    "power",
    np.power,
    lambda g, a, b, y: g * power_slope(a, b, y),
    lambda g, a, b, y: g * y * safe_log(a),
)
mod = binary("mod", np.mod, lambda g, a, b, y: g, lambda g, a, b, y: -g * np.floor_divide(a, b))
maximum = binary(
    "maximum", np.maximum, lambda g, a, b, y: share(g, a, b), lambda g, a, b, y: share(g, b, a)
)
minimum = binary(
    "minimum", np.minimum, lambda g, a, b, y: share(g, b, a), lambda g, a, b, y: share(g, a, b)
)


def divide(a: Any, b: Any) -> Tensor:
    """a / b; where that is exp(x) / sum(exp(x)) and exp overflowed, the softmax it stands for."""
    if isinstance(b, Tensor) and b._of is a and (rescued := rescue(a, b)) is not None:
        return rescued
    return quotient(a, b)


@primitive
def where(condition: Any, a: Any, b: Any) -> Tensor:
    """a where the condition holds, b elsewhere."""
    c = raw(condition)
    to_a, to_b = lambda g: np.where(c, g, 0), lambda g: np.where(c, 0, g)
    return record("where", np.where(c, raw(a), raw(b)), (a, to_a), (b, to_b))


@primitive
def clip(x: Any, low: Any = None, high: Any = None) -> Tensor:
    """The nearest to x between low and high; the gradient passes where x is between them."""
    v, low, high = raw(x), raw(low), raw(high)
    inside = lambda: (True if low is None else low <= v) & (True if high is None else v <= high)  # noqa: E731
    return record("clip", np.clip(v, low, high), (x, lambda g: g * inside()))


@primitive
def astype(x: Any, dtype: Any, copy: bool = True) -> Tensor:
    """x as another type; the gradient returns as x's own."""
    y = raw(x).astype(dtype, copy=copy)
    return record("astype", y, *([(x, lambda g: g)] if y.dtype.kind == "f" else []))


# Products


@primitive
def matmul(a: Any, b: Any) -> Tensor:
    """a @ b, with any batch axes before the last two; a vector is a row on the left, else a column."""
    x, y = raw(a), raw(b)
    if np.ndim(x) == 1 or np.ndim(y) == 1:
        row, column = np.ndim(x) == 1, np.ndim(y) == 1
        full = matmul(expand_dims(a, 0) if row else a, expand_dims(b, 1) if column else b)
        return squeeze(full, (-2,) * row + (-1,) * column)
    if y.ndim == 2:
        to_b = lambda g: weight_gradient(x, g)  # noqa: E731
    else:
        to_b = lambda g: product(x.swapaxes(-1, -2), g)  # noqa: E731
    return record("matmul", product(x, y), (a, lambda g: product(g, y.swapaxes(-1, -2))), (b, to_b))


def product(x: Any, y: Any) -> Any:
    """x @ y. One weight matrix for a whole batch is one product; a transposed batch stays transposed."""
    if isinstance(x, Block):
        return times(x, y) if y.ndim == 2 or y.shape[:-2] == x.shape[:-2] else x.dense() @ y
    if isinstance(y, Block):
        return times_right(x, y) if x.shape[:-2] == y.shape[:-2] else x @ y.dense()
    if x.dtype != y.dtype or x.ndim < 3 or not x.size:
        return x @ y
    if y.ndim == 2 and x.flags.c_contiguous and x.shape[-1] == y.shape[0]:
        out = np.empty((*x.shape[:-1], y.shape[1]), x.dtype)
        np.matmul(x.reshape(-1, x.shape[-1]), y, out=out.reshape(-1, y.shape[1]))
        return out
    if x.strides[-2] < x.strides[-1] and x.shape[:-2] == y.shape[:-2]:
        out = np.empty((*x.shape[:-2], y.shape[-1], x.shape[-2]), x.dtype).swapaxes(-1, -2)
        return np.matmul(x, y, out=out)  # whoever wrote x.mT @ y is about to transpose the result
    return x @ y


def weight_gradient(x: Any, g: Any) -> Any:
    """The sum over the batch of x.mT @ g, as one product."""
    if isinstance(g, Block):
        return folded(x, g)
    if x.ndim == 2 or not x.size:
        return x.swapaxes(-1, -2) @ g
    return x.reshape(-1, x.shape[-1]).T @ g.reshape(-1, g.shape[-1])


# Reductions


def axes_of(shape: tuple[int, ...], axis: Axis) -> Sequence[int]:
    """The axes that are reduced, none of them negative."""
    return range(len(shape)) if axis is None else normalize_axis_tuple(axis, len(shape))


def back(g: Any, shape: tuple[int, ...], axis: Axis, keepdims: bool) -> Any:
    """A gradient with the reduced axes put back, of size one."""
    if keepdims:
        return g
    axes, g = axes_of(shape, axis), g.dense() if isinstance(g, Block) else g
    return g.reshape([1 if i in axes else n for i, n in enumerate(shape)])


@primitive
def sum(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The sum over axes."""
    v = np.asarray(raw(x))
    with np.errstate(over="ignore"):
        y = np.add.reduce(v, axis, keepdims=keepdims)
    out = record("sum", y, (x, lambda g: back(g, v.shape, axis, keepdims)))
    out._of = x if isinstance(x, Tensor) and x.op == "exp" else None
    return out


@primitive
def mean(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The average over axes; of nothing, NaN."""
    v = np.asarray(raw(x))
    n = math.prod([v.shape[i] for i in axes_of(v.shape, axis)])
    with np.errstate(invalid="ignore", divide="ignore"):
        y = np.add.reduce(v, axis, keepdims=keepdims) / n
    return record("mean", y, (x, lambda g: back(g, v.shape, axis, keepdims) / n))


@primitive
def var(x: Any, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    """The average squared distance from the mean; `correction` is taken off the count."""
    v = np.asarray(raw(x))
    n = math.prod([v.shape[i] for i in axes_of(v.shape, axis)])
    left = n - correction if n > correction else 0
    with np.errstate(invalid="ignore", divide="ignore"):
        centred = v - np.add.reduce(v, axis, keepdims=True) / n
        y = np.add.reduce(centred * centred, axis, keepdims=keepdims) / left
    return record("var", y, (x, lambda g: back(g, v.shape, axis, keepdims) * centred * 2 / left))


@primitive
def norm(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The Euclidean length over axes; the gradient at length 0 is taken as 0."""
    v = np.asarray(raw(x))
    y = np.sqrt(np.add.reduce(v * v, axis, keepdims=True))
    out, unit = y if keepdims else np.squeeze(y, axis), lambda: v / np.where(y == 0, 1, y)
    return record("norm", out, (x, lambda g: back(g, v.shape, axis, keepdims) * unit()))


def extreme(op: str, f: Function) -> Callable[..., Tensor]:
    """Max or min."""

    @primitive
    def call(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
        v = np.asarray(raw(x))
        y = f(v, axis=axis, keepdims=True)

        def pull(g: Any) -> Any:
            best = v == y
            share = best / np.add.reduce(best, axis, keepdims=True)
            return back(g, v.shape, axis, keepdims) * share.astype(v.dtype)

        return record(op, y if keepdims else np.squeeze(y, axis), (x, pull))

    call.__name__, call.__doc__ = op, f"The {op}imum over axes; equals share the gradient."
    return call


max, min = extreme("max", np.max), extreme("min", np.min)


@primitive
def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the largest, the first among equals. It has no gradient."""
    return record("argmax", np.argmax(raw(x), axis=axis, keepdims=keepdims))


@primitive
def cumsum(x: Any, axis: int | None = None) -> Tensor:
    """The running sum along an axis, or of all elements in order."""
    if axis is None:
        return cumsum(reshape(x, -1), 0)
    y = np.cumsum(raw(x), axis)
    return record("cumsum", y, (x, lambda g: np.flip(np.cumsum(np.flip(g, axis), axis), axis)))


# The softmax family


def stable_softmax(v: np.ndarray, axis: Axis) -> np.ndarray:
    """exp(v) / sum(exp(v)), shifted so that the largest exponential is 1."""
    e = np.exp(v - np.max(v, axis=axis, keepdims=True, initial=-np.inf))
    return e / np.add.reduce(e, axis, keepdims=True)


def softmax_from(x: Any, y: np.ndarray, axis: Axis) -> Tensor:
    """The values y of a softmax of x, with its derivative."""
    dot = lambda g: np.add.reduce(g * y, axis, keepdims=True)  # noqa: E731
    return record("softmax", y, (x, lambda g: y * (g - dot(g))))


@primitive
def softmax(x: Any, axis: Axis = -1) -> Tensor:
    """exp(x) / sum(exp(x)) over an axis."""
    return softmax_from(x, stable_softmax(np.asarray(raw(x)), axis), axis)


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


def rescue(e: Tensor, total: Tensor) -> Tensor | None:
    """The softmax that e / total stands for, with e = exp(x) and total = sum(e); None if not needed.

    Raw exponentials leave the range of floats: at 89 in float32, at 710 in float64. Rows whose total
    is finite and not 0 keep their quotient, bit for bit; the other rows get the stable softmax of x.
    The derivative is then the softmax's own: g / total and g * e would leave the range even sooner.
    """
    x, d = e._of, total._data
    if x is None or d.ndim not in (0, x.ndim) or not d.size:
        return None
    low, high = RANGE[d.dtype.itemsize]
    if low < d.min() and d.max() < high:
        return None
    axis = tuple([i for i in range(x.ndim) if d.ndim == 0 or d.shape[i] == 1])
    with np.errstate(all="ignore"):
        y = np.where((d > 0) & np.isfinite(d), e._data / d, stable_softmax(x._data, axis))
    return softmax_from(x, y, axis)


RANGE = {
    t.itemsize: (float(np.finfo(t).tiny) ** 0.5, float(np.finfo(t).max) ** 0.5)
    for t in map(np.dtype, ("float16", "float32", "float64"))
}


# Shapes and places


@primitive
def reshape(x: Any, shape: int | Sequence[int]) -> Tensor:
    """The same elements in another shape."""
    v = np.asarray(raw(x))
    return record("reshape", v.reshape(shape), (x, lambda g: g.reshape(v.shape)))


@primitive
def expand_dims(x: Any, axis: int | tuple[int, ...]) -> Tensor:
    """New axes of size one."""
    return reshape(x, np.expand_dims(raw(x), axis).shape)


@primitive
def squeeze(x: Any, axis: Axis = None) -> Tensor:
    """Without axes of size one."""
    return reshape(x, np.squeeze(raw(x), axis).shape)


@primitive
def transpose(x: Any, axes: Sequence[int] | None = None) -> Tensor:
    """The axes in another order; without one, reversed."""
    v = np.asarray(raw(x))
    order = range(v.ndim)[::-1] if axes is None else [a + v.ndim if a < 0 else a for a in axes]
    inverse = lambda: sorted(range(v.ndim), key=order.__getitem__)  # noqa: E731
    return record("transpose", v.transpose(order), (x, lambda g: g.transpose(inverse())))


@primitive
def broadcast_to(x: Any, shape: Sequence[int]) -> Tensor:
    """x repeated to a shape."""
    return record("broadcast_to", np.broadcast_to(raw(x), shape), (x, lambda g: g))


@primitive
def concatenate(xs: Sequence[Any], axis: int = 0) -> Tensor:
    """Arrays joined along an axis."""
    vs = [np.asarray(raw(x)) for x in xs]
    y = np.concatenate(vs, axis)
    stops = np.cumsum([v.shape[axis] for v in vs]).tolist()

    def part(stop: int, size: int) -> Function:
        index = (slice(None),) * (axis % y.ndim) + (slice(stop - size, stop),)
        return lambda g: g[index]

    pulls = [part(stop, v.shape[axis]) for stop, v in zip(stops, vs, strict=True)]
    return record("concatenate", y, *zip(xs, pulls, strict=True))


@primitive
def getitem(x: Any, index: Any) -> Tensor:
    """x[index], for whatever NumPy takes as an index."""
    v, place = raw(x), plain_index(index)
    parts = place if isinstance(place, tuple) else (place,)
    once = all([i is None or i is ... or isinstance(i, int | slice | np.integer) for i in parts])

    def pull(g: Any) -> Any:
        if once and (block := block_of(g, parts, v.shape)) is not None:
            return block
        full = np.zeros(v.shape, g.dtype)
        if once:
            full[place] = g
        else:
            np.add.at(full, place, g)  # an index may name an element many times
        return full

    return record("getitem", v[place], (x, pull))


@primitive
def tril(x: Any, k: int = 0) -> Tensor:
    """x with zeros above the k-th diagonal."""
    return record("tril", np.tril(raw(x), k), (x, lambda g: np.tril(g, k)))


@primitive
def triu(x: Any, k: int = 0) -> Tensor:
    """x with zeros below the k-th diagonal."""
    return record("triu", np.triu(raw(x), k), (x, lambda g: np.triu(g, k)))
