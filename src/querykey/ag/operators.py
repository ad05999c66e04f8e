"""The operators and methods of a Tensor: other names of the primitives."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from querykey.ag import functions, primitives, tensor
from querykey.ag.errors import misfit, pulled
from querykey.ag.extras.slices import Block
from querykey.ag.reductions import divide
from querykey.ag.tensor import Edge, Tensor, raw

ARITHMETIC = {
    "add": primitives.add,
    "sub": primitives.subtract,
    "mul": primitives.multiply,
    "truediv": divide,
    "matmul": primitives.matmul,
    "pow": primitives.power,
    "mod": primitives.mod,
}
METHODS = [
    "sum",
    "mean",
    "var",
    "max",
    "min",
    "argmax",
    "astype",
    "exp",
    "log",
    "sqrt",
    "tanh",
]


def flat(op: str, f: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return a function without a derivative: it compares, counts or rounds."""

    def call(*args: Any) -> Tensor:
        try:
            return tensor.record(op, f(*[raw(x) for x in args]))
        except ValueError as error:
            raise misfit(op, error, args) from None

    call.__name__, call.__doc__ = op, f"{op} of every element; it has no gradient."
    return call


def record(op: str, value: Any, *edges: Edge, saved: tuple = ()) -> Tensor:
    """Return `value` as the Tensor that a primitive of your own made, called `op`.

    An edge is (an input, what pulls a gradient back to it). A pull is called with the gradient and
    what was saved; it returns the gradient of its input. It may leave broadcasting alone: the walk
    sums what was spread, and spreads what was summed.
    """
    checked = [(x, _checked(op, x, pull)) for x, pull in edges]
    return tensor.record(op, value, *checked, saved=saved)


def _checked(op: str, x: Any, pull: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pull that is given arrays, whatever primitive it is called like, and returns one."""

    def call(g: Any, *saved: Any) -> Any:
        g = g.dense() if isinstance(g, Block) else g
        new = pull(g, *saved)
        if new is g:
            return g
        array = np.array(raw(new))  # its own: the walk adds to it, and the pull may have kept `new`
        if array.dtype.kind not in "fiub":
            raise TypeError(pulled(op, x, type(new).__name__, "an array of numbers"))
        try:
            np.broadcast_shapes(array.shape, x.shape)
        except ValueError:
            raise ValueError(pulled(op, x, f"shape {array.shape}", str(x.shape))) from None
        return array

    return call


def flipped(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator of an array on the left and a Tensor on the right."""
    return lambda self, other: f(other, self)


def reshape(self: Tensor, *shape: Any) -> Tensor:
    """Return the same elements in another shape, given as one tuple or number by number."""
    return primitives.reshape(self, shape[0] if len(shape) == 1 else shape)


def transpose(self: Tensor, *axes: Any) -> Tensor:
    """Return the axes in another order, given as one tuple or number by number."""
    return primitives.transpose(self, (axes[0] if len(axes) == 1 else axes) or None)


def give_operators() -> None:
    """Give the class Tensor its operators and methods."""
    for symbol, f in ARITHMETIC.items():
        setattr(Tensor, f"__{symbol}__", f)
        setattr(Tensor, f"__r{symbol}__", flipped(f))
    for symbol in ("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "floordiv"):
        f = flat(symbol, getattr(operator, f"__{symbol}__"))
        setattr(Tensor, f"__{symbol}__", f)
        if symbol in ("and", "or", "xor", "floordiv"):
            setattr(Tensor, f"__r{symbol}__", flipped(f))
    for name in METHODS:
        setattr(Tensor, name, getattr(primitives, name))
    rest: dict[str, Any] = {
        "__neg__": primitives.negative,
        "__pos__": lambda self: self,
        "__abs__": primitives.abs,
        "__invert__": flat("invert", np.invert),
        "__getitem__": primitives.getitem,
        "reshape": reshape,
        "transpose": transpose,
        "squeeze": functions.squeeze,
        "swapaxes": functions.swapaxes,
        "T": property(primitives.transpose),
        "mT": property(lambda self: functions.swapaxes(self, -1, -2)),
    }
    for name, f in rest.items():
        setattr(Tensor, name, f)
