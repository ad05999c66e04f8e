"""The operators and methods of a Tensor: other names of the functions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from querykey.ag import division, elementary, functions, primitives, reductions, tensor
from querykey.ag.errors import REFUSALS, misfit, not_a_gradient
from querykey.ag.protocols import raw
from querykey.ag.tensor import Edge, Tensor
from querykey.errors import QuerykeyError, WrongTypeError

ARITHMETIC = {
    "add": primitives.add,
    "sub": primitives.subtract,
    "mul": primitives.multiply,
    "truediv": division.divide,
    "matmul": primitives.matmul,
    "pow": primitives.power,
    "mod": primitives.mod,
    "floordiv": elementary.floor_divide,
}
BITWISE = ("and", "or", "xor", "lshift", "rshift")
METHODS = {
    "sum": primitives.sum,
    "mean": primitives.mean,
    "var": reductions.var,
    "std": reductions.std,
    "prod": reductions.prod,
    "max": reductions.max,
    "min": reductions.min,
    "argmax": reductions.argmax,
    "astype": functions.astype,
    "exp": primitives.exp,
    "log": primitives.log,
    "sqrt": primitives.sqrt,
    "tanh": primitives.tanh,
    "squeeze": functions.squeeze,
    "swapaxes": functions.swapaxes,
    "__neg__": primitives.negative,
    "__pos__": lambda self: self,
    "__abs__": primitives.abs,
    "__getitem__": primitives.getitem,
    "T": property(primitives.transpose),
    "mT": property(lambda self: functions.swapaxes(self, -1, -2)),
}


def without_gradient(op: str, f: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return a function of one array that has no derivative: what it returns is no float."""

    def call(x: Any) -> Tensor:
        try:
            return tensor.record(op, f(raw(x)))
        except REFUSALS as error:
            raise misfit(op, error, (x,)) from None

    call.__name__, call.__doc__ = op, f"Return {op} of every element; it has no gradient."
    return call


def of_two_without_gradient(op: str, f: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return a function of two arrays that has no derivative: what it returns is no float."""

    def call(x1: Any, x2: Any) -> Tensor:
        try:
            return tensor.record(op, f(raw(x1), raw(x2)))
        except REFUSALS as error:
            raise misfit(op, error, (x1, x2)) from None

    call.__name__, call.__doc__ = op, f"Return {op} of x1 and x2; it has no gradient."
    return call


def record(op: str, value: Any, *edges: Edge, saved: tuple = ()) -> Tensor:
    """Return `value` as the Tensor that a primitive of your own computed, called `op`.

    An edge is (an input, its pull). A pull is called with the gradient of the value and with what
    was saved, and returns the gradient of its input. It need not undo broadcasting: the walk sums
    where an input was repeated, and repeats where it was summed.
    """
    checked = [(x, checked_pull(op, x, pull)) for x, pull in edges]
    return tensor.record(op, value, *checked, saved=saved)


def checked_pull(op: str, x: Any, pull: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pull that raises an error where what it returns can be no gradient of x."""

    def call(g: Any, *saved: Any) -> Any:
        new = pull(g, *saved)
        if new is g:
            return g
        # A copy: the walk adds to it, and the pull may have kept `new`.
        array = np.array(getattr(new, "_data", new))
        if array.dtype.kind not in "fiub":
            raise WrongTypeError(not_a_gradient(op, x, type(new).__name__, "an array of numbers"))
        try:
            np.broadcast_shapes(array.shape, x.shape)
        except ValueError:
            shape = f"shape {array.shape}"
            raise QuerykeyError(not_a_gradient(op, x, shape, str(x.shape))) from None
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
    for symbol in ("lt", "le", "gt", "ge", "eq", "ne", *BITWISE):
        f = of_two_without_gradient(symbol, getattr(operator, f"__{symbol}__"))
        setattr(Tensor, f"__{symbol}__", f)
        if symbol in BITWISE:
            setattr(Tensor, f"__r{symbol}__", flipped(f))
    invert = without_gradient("invert", np.invert)
    rest = {"__invert__": invert, "reshape": reshape, "transpose": transpose}
    for name, f in (METHODS | rest).items():
        setattr(Tensor, name, f)
