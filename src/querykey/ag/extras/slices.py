"""Gradients that are zero outside one slice per axis, and stay small on their way back.

A loss that reads `out[:, 3, 0]` sends back a gradient that is zero almost everywhere. A
SliceGradient keeps the part that is not, and knows for the pulls in RULES how that part goes
through them. Any other pull is called with the whole array. A loss that reads every output never
makes a SliceGradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from querykey.ag import division, primitives
from querykey.ag.tensor import Tensor

WORTH = 4096  # below so many elements a whole array is quicker than the bookkeeping
ONE = slice(0, 1)


class SliceGradient(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of `shape` with `values` at `index`, one slice per axis, and zeros elsewhere."""

    __slots__ = ("index", "shape", "values")
    base = None

    def __init__(self, values: np.ndarray, index: tuple[slice, ...], shape: tuple[int, ...]):
        self.values, self.index, self.shape = values, index, shape

    ndim = property(lambda self: len(self.shape), doc="The number of axes of the whole array.")
    dtype = property(lambda self: self.values.dtype, doc="The type of an element, as in NumPy.")

    def pulled(self, pull: Callable[..., Any], saved: tuple, shape: tuple[int, ...]) -> Any:
        """Return what `pull(g, *saved)` returns for the whole array g, for an input of `shape`."""
        rule = RULES.get(pull)
        return pull(self.dense(), *saved) if rule is None else rule(self, pull, saved, shape)

    def dense(self) -> np.ndarray:
        """Return the whole array, zeros included."""
        full = np.zeros(self.shape, self.dtype)
        full[self.index] = self.values
        return full

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.dense().astype(dtype or self.dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None) -> Any:
        if ufunc is not np.add or method != "__call__":
            return NotImplemented
        return added(*inputs, into=out[0] if out else None)

    def like(self, values: np.ndarray) -> SliceGradient:
        """Return other values in the same place."""
        return SliceGradient(values, self.index, self.shape)

    def cut(self, other: Any) -> Any:
        """Return this gradient's part of a number or array that broadcasts to its shape."""
        if not isinstance(other, np.ndarray):
            return other
        index = self.index[self.ndim - other.ndim :]
        sizes = zip(index, other.shape, strict=True)
        return other[tuple([ONE if n == 1 else s for s, n in sizes])]

    def sum(self, axes: tuple[int, ...], keepdims: bool = False) -> SliceGradient:
        """Return the sum over axes, none of which is negative."""
        index, shape = list(self.index), list(self.shape)
        for i in sorted(axes, reverse=True):
            index[i : i + 1], shape[i : i + 1] = ([ONE], [1]) if keepdims else ([], [])
        values = self.values.sum(axis=axes, keepdims=keepdims)
        return SliceGradient(values, tuple(index), tuple(shape))

    def spread(self, shape: tuple[int, ...]) -> SliceGradient:
        """Return the gradient repeated along its axes of size one, up to the shape."""
        if self.shape == shape:
            return self
        triples = zip(self.index, self.shape, shape, strict=True)
        index = tuple([s if n == full else slice(0, full) for s, n, full in triples])
        sizes = tuple([s.stop - s.start for s in index])
        return SliceGradient(np.broadcast_to(self.values, sizes), index, shape)

    def fitted(self, shape: tuple[int, ...]) -> SliceGradient:
        """Return the sum over the axes along which an input of this shape was repeated."""
        extra = self.ndim - len(shape)
        g = self.sum(tuple(range(extra))) if extra else self
        axes = tuple([i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1])
        return g.sum(axes, keepdims=True) if axes else g

    def transpose(self, axes: tuple[int, ...]) -> SliceGradient:
        """Return the gradient with its axes permuted."""
        index, shape = tuple(self.index[a] for a in axes), tuple(self.shape[a] for a in axes)
        return SliceGradient(self.values.transpose(axes), index, shape)

    def swapaxes(self, a: int, b: int) -> SliceGradient:
        """Return the gradient with two axes exchanged."""
        axes = list(range(self.ndim))
        axes[a], axes[b] = axes[b], axes[a]
        return self.transpose(tuple(axes))


def slice_gradient(g: np.ndarray, index: tuple, shape: tuple[int, ...]) -> SliceGradient | None:
    """Return the gradient of `x[index]`, x of this shape, or None where an array is better."""
    size = math.prod(shape)
    if size < WORTH or size < 4 * g.size or not g.size or len(index) > len(shape):
        return None
    slices = []
    for i, n in zip(index + (slice(None),) * (len(shape) - len(index)), shape, strict=True):
        if type(i) is int:
            slices.append(slice(i % n, i % n + 1))
        elif type(i) is slice and i.step in (None, 1):
            slices.append(slice(*i.indices(n)[:2]))
        else:
            return None
    sizes = tuple([max(s.stop - s.start, 0) for s in slices])
    return SliceGradient(g.reshape(sizes), tuple(slices), shape)


def added(a: Any, b: Any, into: Any = None) -> Any:
    """Return a + b, where one or both are SliceGradients; one of these where both lie alike."""
    if isinstance(a, SliceGradient) and isinstance(b, SliceGradient):
        if a.index == b.index:
            return a.like(a.values + b.values)
        a = a.dense()
    small, array = (a, b) if isinstance(a, SliceGradient) else (b, a)
    full: Any = array if array is into else np.array(array)
    full[small.index] += small.values
    return full


# How a SliceGradient goes through a pull: the gradient, the pull, what was saved, and the shape of
# the input whose gradient is returned.


def through_itself(g: SliceGradient, pull: Any, saved: tuple, shape: tuple) -> Any:
    """Call the pull, which permutes axes, with the SliceGradient in place of the array."""
    return pull(g, *saved)


def through_sum_of_two(g: SliceGradient, pull: Any, saved: tuple, shape: tuple) -> Any:
    """Return the gradient of one of two arrays that were added."""
    return g.fitted(shape)


def through_elements(g: SliceGradient, pull: Any, saved: tuple, shape: tuple) -> Any:
    """Call the pull of an elementwise function with the part of each array that matters."""
    values = pull(g.values, *[g.cut(x) for x in saved])
    if values.shape == g.values.shape:
        return g.like(values).fitted(shape)
    lead = g.ndim - len(shape)  # the pull has summed already what broadcasting repeated
    index = [ONE if n == 1 else s for n, s in zip(shape, g.index[lead:], strict=True)]
    return SliceGradient(values, tuple(index), shape)


def through_reduction(g: SliceGradient, pull: Any, saved: tuple, shape: tuple) -> Any:
    """Return the gradient of what was summed: the same number for all that went into one sum."""
    return g.spread(shape) if g.ndim == len(shape) else pull(g.dense(), *saved)


def through_softmax(g: SliceGradient, pull: Any, saved: tuple, shape: tuple) -> Any:
    """Return y * g - y * sum(y * g), of which the first part is small."""
    y, axis = saved[:2]
    first = g.like(g.values * g.cut(y))
    total = first.sum(tuple(primitives.axes_of(g.shape, axis)), keepdims=True).spread(g.shape)
    return first + total.like(-total.values * total.cut(y))


def through_rows(g: SliceGradient, pull: Any, saved: tuple, shape: tuple) -> Any:
    """Return g @ y.T, for one matrix y and a batch of rows."""
    return times(g, saved[1].T)


def through_weight(g: SliceGradient, pull: Any, saved: tuple, shape: tuple) -> Any:
    """Return the sum over the batch of x.mT @ g in one product; x was saved as rows."""
    rows, values = saved[0], g.values
    width = rows.shape[-1]
    part = rows.reshape(*g.shape[:-1], width)[g.index[:-1]]
    product = part.reshape(-1, width).T @ values.reshape(-1, values.shape[-1])
    return SliceGradient(product, (slice(0, width), g.index[-1]), (width, g.shape[-1]))


def through_left(g: SliceGradient, pull: Any, saved: tuple, shape: tuple) -> Any:
    """Return g @ y.mT, small where y has the batch axes of g."""
    y = saved[1]
    if y.shape[:-2] != g.shape[:-2]:
        return pull(g.dense(), *saved)
    return times(g, y.swapaxes(-1, -2)).fitted(shape)


def through_right(g: SliceGradient, pull: Any, saved: tuple, shape: tuple) -> Any:
    """Return x.mT @ g, small where x has the batch axes of g: all rows, the columns of g."""
    x = saved[0].swapaxes(-1, -2)
    if x.shape[:-2] != g.shape[:-2]:
        return pull(g.dense(), *saved)
    batch, inner, columns = g.index[:-2], g.index[-2], g.index[-1]
    values, rows = x[(*batch, slice(None), inner)] @ g.values, x.shape[-2]
    full = (*g.shape[:-2], rows, g.shape[-1])
    return SliceGradient(values, (*batch, slice(0, rows), columns), full).fitted(shape)


def times(g: SliceGradient, w: np.ndarray) -> SliceGradient:
    """Return g @ w: the rows of g, all columns; w has the batch axes of g, or none."""
    batch, rows, inner = g.index[:-2], g.index[-2], g.index[-1]
    part = w[inner] if w.ndim == 2 else w[(*batch, inner)]
    columns = w.shape[-1]
    outer = g.values.shape[-1] == 1  # an outer product is quicker without matmul
    values = g.values * part if outer else g.values @ part
    return SliceGradient(values, (*batch, rows, slice(0, columns)), (*g.shape[:-1], columns))


def pulls_of(function: Callable[..., Tensor], inputs: int) -> list[Callable[..., Any]]:
    """Return the pulls of a primitive, read off a graph that it made."""
    return [pull for _, pull in function(*[Tensor(1.0) for _ in range(inputs)]).edges]


UNARY = (primitives.negative, primitives.exp, primitives.relu, primitives.tanh)
BINARY = (primitives.subtract, primitives.multiply, primitives.quotient)
RULES = {
    **{pull: through_elements for function in UNARY for pull in pulls_of(function, 1)},
    **{pull: through_elements for function in BINARY for pull in pulls_of(function, 2)},
    **dict.fromkeys(pulls_of(primitives.add, 2), through_sum_of_two),
    primitives.unreduced: through_reduction,
    division.softmax_gradient: through_softmax,
    primitives.permuted_back: through_itself,
    primitives.swapped_back: through_itself,
    primitives.left_gradient: through_left,
    primitives.right_gradient: through_right,
    primitives.rows_gradient: through_rows,
    primitives.weight_gradient: through_weight,
}
