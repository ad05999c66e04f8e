"""The table: each primitive with its derivative beside it.

A primitive computes a value and records, for each input, how a gradient `g` of that value is pulled
back to the input. What broadcasting repeated, the walk sums (tensor.py): no pull says a word of it.
Inputs are Tensors, arrays or numbers; only Tensors receive gradients.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from querykey.ag.errors import misfit
from querykey.ag.extras.slices import Block, block_of, folded, times, times_right
from querykey.ag.special import added, bell, erf_of, normal_below, relu_of, sigmoid_of, zeros
from querykey.ag.tensor import Tensor, plain_index, raw, record, shrink

P = ParamSpec("P")
R = TypeVar("R")
Axis = int | tuple[int, ...] | None
Function = Callable[..., Any]


def primitive(function: Callable[P, R]) -> Callable[P, R]:
    """Make NumPy's errors name the operation, and every Tensor by label and shape."""

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
        v = x._data if isinstance(x, Tensor) else raw(x)
        y = f(v)
        return record(op, y, (x, pull), saved=(v, y))

    call.__name__ = call.__qualname__ = op
    call.__doc__ = f"{op} of every element."
    return call


def relu_gradient(g: Any, x: Any, y: Any) -> Any:
    """g where x is positive; a product with ones and zeros is much faster than np.where."""
    if type(g) is Block:
        return g.like(np.where(g.cut(y) > 0, g.values, 0))
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


quiet = np.errstate(over="ignore")
quiet_exp, quiet_sum = quiet(np.exp), quiet(added)
careful_product = np.errstate(invalid="raise")(np.multiply)
careless_mean = np.errstate(invalid="ignore")(np.mean)


def exp(x: Any) -> Tensor:
    """e ** x. It may overflow in silence: see `share`, which makes that harmless in a softmax."""
    if not isinstance(x, Tensor):
        x = record("constant", raw(x))
    y = quiet_exp(x._data)
    out = record("exp", y, (x, operator.mul), saved=(y,))
    out._of = x
    return out


# Of two inputs, a and b, which may broadcast: the value y, then the gradients of a and of b.


def binary(op: str, f: Function, pull_a: Function, pull_b: Function) -> Function:
    """A primitive of two inputs."""

    def call(a: Any, b: Any) -> Tensor:
        v = a._data if isinstance(a, Tensor) else raw(a)
        w = b._data if isinstance(b, Tensor) else raw(b)
        try:
            y = f(v, w)
        except ValueError as error:
            raise misfit(op, error, (a, b)) from None
        return record(op, y, (a, pull_a), (b, pull_b), saved=(v, w, y))

    call.__name__ = call.__qualname__ = op
    call.__doc__ = f"{op} of a and b, element by element."
    return call


def power_slope(a: Any, b: Any, y: Any) -> Any:
    """b * a ** (b - 1), and 0 where b is 0, whatever a is."""
    return b * np.power(a, np.where(np.equal(b, 0), 1, np.subtract(b, 1)), dtype=y.dtype)


def share(g: Any, mine: Any, other: Any) -> Any:
    """The whole gradient to the winner, half of it in a tie."""
    return np.where(mine == other, g / 2, np.where(mine > other, g, 0))


def safe_log(a: Any, y: Any) -> Any:
    """log(a), and 0 where a is 0."""
    return np.log(np.where(np.equal(a, 0), 1, a), dtype=y.dtype)


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
    lambda g, a, b, y: g * y * safe_log(a, y),
)
mod = binary("mod", np.mod, lambda g, a, b, y: g, lambda g, a, b, y: -g * np.floor_divide(a, b))
maximum = binary(
    "maximum", np.maximum, lambda g, a, b, y: share(g, a, b), lambda g, a, b, y: share(g, b, a)
)
minimum = binary(
    "minimum", np.minimum, lambda g, a, b, y: share(g, b, a), lambda g, a, b, y: share(g, a, b)
)


@primitive
def where(condition: Any, a: Any, b: Any) -> Tensor:
    """a where the condition holds, b elsewhere."""
    c = np.array(raw(condition), bool)  # its own, which nobody changes before backward
    to_a, to_b = lambda g: np.where(c, g, 0), lambda g: np.where(c, 0, g)
    return record("where", np.where(c, raw(a), raw(b)), (a, to_a), (b, to_b))


@primitive
def clip(x: Any, low: Any = None, high: Any = None) -> Tensor:
    """The nearest to x between low and high; the gradient goes to the one that it is."""
    v, lo, hi = raw(x), -np.inf if low is None else raw(low), np.inf if high is None else raw(high)
    y = v if low is None else np.maximum(v, lo)
    y = y if high is None else np.minimum(y, hi)
    to_x = lambda g: np.where((v >= lo) & (v <= hi), g, 0)  # noqa: E731
    to_low = lambda g: np.where((v < lo) & (lo <= hi), g, 0)  # noqa: E731
    to_high = lambda g: np.where((v > hi) | (lo > hi), g, 0)  # noqa: E731
    return record("clip", y, (x, to_x), (low, to_low), (high, to_high))


@primitive
def astype(x: Any, dtype: Any, copy: bool = True) -> Tensor:
    """x as another type; the gradient returns as x's own."""
    y = raw(x).astype(dtype, copy=copy)
    return record("astype", y, *([(x, lambda g: g)] if y.dtype.kind == "f" else []))


# Products


def matmul(a: Any, b: Any) -> Tensor:
    """a @ b over the last two axes; a vector is a row on the left, a column on the right."""
    x = a._data if isinstance(a, Tensor) else np.asarray(a)
    y = b._data if isinstance(b, Tensor) else np.asarray(b)
    try:
        if y.ndim == 2 and x.ndim > 1 and x.size and y.size:  # one matrix for the whole batch
            shape, to_a, to_b = x.shape, by_transposed, weight_gradient
            rows = x.reshape(-1, shape[-1])
            value, saved = rows.dot(y).reshape(shape[:-1] + y.shape[1:]), (rows, y, shape)
        elif x.ndim == 1:
            return getitem(matmul(getitem(a, None), b), (..., 0, slice(None)) if y.ndim > 1 else 0)
        elif y.ndim == 1:
            return getitem(matmul(a, getitem(b, (slice(None), None))), (..., 0))
        else:
            value, saved = product(x, y), (x, y)
            to_a, to_b = left_gradient, right_gradient
    except (ValueError, IndexError) as error:
        raise misfit("matmul", error, (a, b)) from None
    return record("matmul", value, (a, to_a), (b, to_b), saved=saved)


def left_gradient(g: Any, x: Any, y: Any) -> Any:
    """g @ y.mT."""
    return product(g, y.swapaxes(-1, -2))


def right_gradient(g: Any, x: Any, y: Any) -> Any:
    """x.mT @ g."""
    return product(x.swapaxes(-1, -2), g)


def by_transposed(g: Any, rows: Any, y: Any, shape: tuple[int, ...]) -> Any:
    """g @ y.T, the batch as rows of one matrix."""
    return times(g, y.T) if type(g) is Block else g.reshape(len(rows), -1).dot(y.T).reshape(shape)


def weight_gradient(g: Any, rows: Any, y: Any, shape: tuple[int, ...]) -> Any:
    """The sum over the batch of x.mT @ g, as one product."""
    return folded(rows, g) if type(g) is Block else rows.T.dot(g.reshape(len(rows), -1))


def product(x: Any, y: Any) -> Any:
    """x @ y for a batch of both; a transposed batch stays so, and a Block stays small."""
    if type(x) is Block:
        return times(x, y) if y.shape[:-2] == x.shape[:-2] else x.dense() @ y
    if type(y) is Block:
        return times_right(x, y) if x.shape[:-2] == y.shape[:-2] else x @ y.dense()
    if x.size <= 512 or x.strides[-2] >= x.strides[-1] or x.shape[:-2] != y.shape[:-2]:
        return x @ y
    # Whoever wrote x.mT @ y is about to transpose the result, which is then as it lies in memory.
    out = np.empty((*y.shape[:-2], y.shape[-1], x.shape[-2]), np.result_type(x, y))
    return np.matmul(x, y, out=out.swapaxes(-1, -2))


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


def sum(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The sum over axes."""
    v = x._data if isinstance(x, Tensor) else np.asarray(x)
    of_exp = isinstance(x, Tensor) and x.op == "exp"
    try:
        y = (quiet_sum if of_exp else added)(v, axis, keepdims)
    except ValueError as error:
        raise misfit("sum", error, (x,)) from None
    out = record("sum", y, (x, back), saved=(v.shape, axis, keepdims))
    if of_exp:
        out._of = x
    return out


@primitive
def mean(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The average over axes; of nothing, NaN."""
    v = np.asarray(raw(x))
    n = math.prod([v.shape[i] for i in axes_of(v.shape, axis)])
    options = {"axis": axis, "keepdims": keepdims}  # np.mean adds half precision up in float32
    y = careless_mean(v, **options) if n else np.sum(v, **options) * np.nan
    return record("mean", y, (x, lambda g: back(g, v.shape, axis, keepdims) / (n or 1)))


@primitive
def var(x: Any, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    """The average squared distance from the mean; `correction` is taken off the count."""
    v = np.asarray(raw(x))
    n = math.prod([v.shape[i] for i in axes_of(v.shape, axis)])
    left = n - correction if n > correction else 0
    scale = 2 / left if left else np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        centred = v - np.add.reduce(v, axis, keepdims=True) / n
        y = np.add.reduce(centred * centred, axis, keepdims=keepdims) / left
    return record("var", y, (x, lambda g: back(g, v.shape, axis, keepdims) * centred * scale))


@primitive
def norm(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The Euclidean length over axes; the gradient at length 0 is taken as 0."""
    v = np.asarray(raw(x))
    y = np.sqrt(np.add.reduce(v * v, axis, keepdims=True))
    out, unit = y if keepdims else np.squeeze(y, axis), lambda: v / np.where(y == 0, 1, y)
    return record("norm", out, (x, lambda g: back(g, v.shape, axis, keepdims) * unit()))


def extreme(op: str, f: Function) -> Callable[..., Tensor]:
    """Max or min."""

    def call(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
        v = np.asarray(raw(x))
        y = f(v, axis=axis, keepdims=True)

        def pull(g: Any) -> Any:
            best = v == y
            share = best / np.add.reduce(best, axis, keepdims=True)
            return back(g, v.shape, axis, keepdims) * share.astype(v.dtype)

        return record(op, y if keepdims else np.squeeze(y, axis), (x, pull))

    call.__name__ = call.__qualname__ = op
    call.__doc__ = f"The {op}imum over axes; equals share the gradient."
    return primitive(call)


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


# Shapes and places


@primitive
def reshape(x: Any, shape: int | Sequence[int]) -> Tensor:
    """The same elements in another shape."""
    v = np.asarray(raw(x))
    return record("reshape", v.reshape(shape), (x, lambda g: g.reshape(v.shape)))


@primitive
def transpose(x: Any, axes: Sequence[int] | None = None) -> Tensor:
    """The axes in another order; without one, reversed."""
    n = np.ndim(raw(x))
    return permuted(x, range(n)[::-1] if axes is None else [a + n if a < 0 else a for a in axes])


def swapped(x: Any, a: int, b: int) -> Tensor:
    """Two axes exchanged."""
    v = x._data if isinstance(x, Tensor) else np.asarray(x)
    return record("transpose", v.swapaxes(a, b), (x, operator.methodcaller("swapaxes", a, b)))


def permuted(x: Any, order: Sequence[int]) -> Tensor:
    """The axes in the order given, with none negative."""
    v = x._data if isinstance(x, Tensor) else np.asarray(x)
    return record("transpose", v.transpose(order), (x, permuted_back), saved=(order,))


def permuted_back(g: Any, order: Sequence[int]) -> Any:
    """The axes where they were."""
    return g.transpose([order.index(a) for a in range(len(order))])


@primitive
def broadcast_to(x: Any, shape: Sequence[int]) -> Tensor:
    """x repeated to a shape."""
    return record("broadcast_to", np.broadcast_to(raw(x), shape), (x, lambda g: g))


@primitive
def concatenate(xs: Sequence[Any], axis: int = 0) -> Tensor:
    """Arrays joined along an axis."""
    xs = list(xs)
    vs = [np.asarray(raw(x)) for x in xs]
    y = np.concatenate(vs, axis)
    stops = np.cumsum([v.shape[axis] for v in vs]).tolist()

    def part(stop: int, size: int) -> Function:
        index = (slice(None),) * (axis % y.ndim) + (slice(stop - size, stop),)
        return lambda g: g[index]

    pulls = [part(stop, v.shape[axis]) for stop, v in zip(stops, vs, strict=True)]
    return record("concatenate", y, *zip(xs, pulls, strict=True))


def getitem(x: Any, index: Any) -> Tensor:
    """x[index], for whatever NumPy takes as an index."""
    v, place = raw(x), plain_index(index)
    try:
        y = v[place]
    except IndexError as error:
        raise misfit("getitem", error, (x,)) from None
    return record("getitem", y, (x, put_back), saved=(place, v.shape))


def put_back(g: Any, place: Any, shape: tuple[int, ...]) -> Any:
    """Zeros, with the gradient of x[place] where it belongs."""
    parts = place if isinstance(place, tuple) else (place,)
    if any(isinstance(i, np.ndarray | list) for i in parts):
        full = np.zeros(shape, g.dtype)
        np.add.at(full, place, g)  # an index may name an element many times
    elif (full := block_of(g, parts, shape)) is None:
        full = np.zeros(shape, g.dtype)
        full[place] = g
    return full


@primitive
def tril(x: Any, k: int = 0) -> Tensor:
    """x with zeros above the k-th diagonal."""
    return record("tril", np.tril(raw(x), k), (x, lambda g: np.tril(g, k)))


@primitive
def triu(x: Any, k: int = 0) -> Tensor:
    """x with zeros below the k-th diagonal."""
    return record("triu", np.triu(raw(x), k), (x, lambda g: np.triu(g, k)))
