"""Gradients that are zero outside one block, and stay small.

A loss that reads `out[:, 3, 0]` sends back a gradient that is zero almost everywhere. A Block keeps
the part that is not. The pulls in primitives.py are written once, for arrays: a Block answers to
the same operators by cutting its own part out of the other array. A pull that knows nothing of
blocks (its operation is not in SMALL) is given the dense array. A dense loss never makes a Block.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

SMALL = {
    *("add", "subtract", "multiply", "divide", "negative", "exp", "relu", "tanh"),
    *("sum", "softmax", "transpose", "matmul"),
}
WORTH = 4096  # below so many elements a dense array is quicker than the bookkeeping
ONE = slice(0, 1)


class Block(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of `shape` with `values` at `index`, one slice per axis, and zeros elsewhere."""

    __slots__ = ("index", "shape", "values")
    base = None

    def __init__(self, values: np.ndarray, index: tuple[slice, ...], shape: tuple[int, ...]):
        self.values, self.index, self.shape = values, index, shape

    ndim = property(lambda self: len(self.shape), doc="How many axes.")
    dtype = property(lambda self: self.values.dtype, doc="What an element is.")

    def dense(self) -> np.ndarray:
        """Return the whole array."""
        full = np.zeros(self.shape, self.dtype)
        full[self.index] = self.values
        return full

    def like(self, values: np.ndarray) -> Block:
        """Return other values in the same place."""
        return Block(values, self.index, self.shape)

    def __array_ufunc__(
        self,
        ufunc: Any,
        method: str,
        *inputs: Any,
        out: Any = None,
        axis: Any = None,
        keepdims: bool = False,
    ) -> Any:
        if method == "reduce" and ufunc is np.add:
            every = tuple(range(self.ndim))
            return self.sum(
                every if axis is None else normalize_axis_tuple(axis, self.ndim), keepdims
            )
        if ufunc is np.subtract:
            return added(inputs[0], -inputs[1])
        if ufunc is np.add:
            return added(*inputs, into=out[0] if out else None)
        others = [x for x in inputs if x is not self]
        if ufunc not in (np.multiply, np.divide, np.negative) or (
            any(isinstance(x, Block) for x in others)
            or (ufunc is np.divide and inputs[0] is not self)
        ):
            return NotImplemented
        return self.like(ufunc(*[self.cut(x) for x in inputs]))

    def cut(self, other: Any) -> Any:
        """Return this Block's part of a number or array that broadcasts to its shape."""
        if other is self:
            return self.values
        index = self.index[self.ndim - np.ndim(other) :]
        sizes = np.shape(other)
        return np.asarray(other)[
            tuple([ONE if n == 1 else s for s, n in zip(index, sizes, strict=True)])
        ]

    def sum(self, axis: tuple[int, ...], keepdims: bool = False) -> Block:
        """Return the sum over axes."""
        index, shape = list(self.index), list(self.shape)
        for i in sorted(axis, reverse=True):
            index[i : i + 1], shape[i : i + 1] = ([ONE], [1]) if keepdims else ([], [])
        return Block(self.values.sum(axis=axis, keepdims=keepdims), tuple(index), tuple(shape))

    def spread(self, shape: tuple[int, ...]) -> Block:
        """Return the Block repeated along its axes of size one, up to the shape."""
        if self.shape == shape:
            return self
        triples = zip(self.index, self.shape, shape, strict=True)
        index = tuple([s if n == full else slice(0, full) for s, n, full in triples])
        sizes = tuple([s.stop - s.start for s in index])
        return Block(np.broadcast_to(self.values, sizes), index, shape)

    def transpose(self, axes: tuple[int, ...]) -> Block:
        """Return the Block with its axes permuted."""
        index, shape = tuple(self.index[a] for a in axes), tuple(self.shape[a] for a in axes)
        return Block(self.values.transpose(axes), index, shape)

    def swapaxes(self, a: int, b: int) -> Block:
        """Return the Block with two axes exchanged."""
        axes = list(range(self.ndim))
        axes[a], axes[b] = axes[b], axes[a]
        return self.transpose(tuple(axes))


def block_of(g: np.ndarray, index: tuple, shape: tuple[int, ...]) -> Block | None:
    """Return the gradient of `x[index]` as a Block of x's shape, where it is one and worth it."""
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
    return Block(g.reshape(sizes), tuple(slices), shape)


def added(a: Any, b: Any, into: Any = None) -> Any:
    """Return a + b, where one or both are Blocks; a Block where both are the same one."""
    if isinstance(a, Block) and isinstance(b, Block):
        shape = np.broadcast_shapes(a.shape, b.shape)
        a, b = a.spread(shape), b.spread(shape)
        if a.index == b.index:
            return Block(a.values + b.values, a.index, shape)
        a = a.dense()
    block, full = (a, b) if isinstance(a, Block) else (b, a)
    if full is not into:
        full = np.array(np.broadcast_to(full, np.broadcast_shapes(full.shape, block.shape)))
    block = block.spread(full.shape)
    full[block.index] += block.values
    return full


def times(g: Block, w: np.ndarray) -> Block:
    """Return g @ w: the rows of g's Block, all columns; w has g's batch axes, or none."""
    batch, rows, inner = g.index[:-2], g.index[-2], g.index[-1]
    part = w[inner] if w.ndim == 2 else w[(*batch, inner)]
    columns = w.shape[-1]
    one = g.values.shape[-1] == 1  # an outer product is quicker without matmul
    values = g.values * part if one else g.values @ part
    return Block(values, (*batch, rows, slice(0, columns)), (*g.shape[:-1], columns))


def times_right(x: np.ndarray, g: Block) -> Block:
    """Return x @ g: all rows, the columns of g's Block; x has g's batch axes."""
    batch, inner, columns = g.index[:-2], g.index[-2], g.index[-1]
    values = x[(*batch, slice(None), inner)] @ g.values
    rows = x.shape[-2]
    return Block(values, (*batch, slice(0, rows), columns), (*g.shape[:-2], rows, g.shape[-1]))


def folded(rows: np.ndarray, g: Block) -> Block:
    """Return the sum over batches of x.mT @ g, in one product; x is given as rows."""
    width, values = rows.shape[-1], g.values
    part = rows.reshape(*g.shape[:-1], width)[g.index[:-1]]
    product = part.reshape(-1, width).T @ values.reshape(-1, values.shape[-1])
    return Block(product, (slice(0, width), g.index[-1]), (width, g.shape[-1]))
