"""The engine's error messages: each names the operation, the shapes and the labels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from querykey.errors import GraphError, QuerykeyError, WrongIndexError, WrongTypeError

P = ParamSpec("P")
R = TypeVar("R")
LISTS = (list, tuple)


def name(tensor: Any) -> str:
    """Return what to call a Tensor in a sentence."""
    if not hasattr(tensor, "label"):
        return "a constant"
    if tensor.label:
        return tensor.label
    return f"the result of {tensor.op}" if tensor.op else "an unnamed Tensor"


# What NumPy raises about arguments that do not fit.
REFUSALS = (
    ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError,
    MemoryError,
    RuntimeError,  # of torch, whose tensors have no truth value
)  # fmt: skip


def misfit(op: str, error: Exception, args: Any) -> Exception:
    """Return NumPy's error with the operation, and the label and shape of every array."""
    if isinstance(error, GraphError) or (type(error) is WrongTypeError and not vars(error)):
        return error  # ours, which says it all
    problem = getattr(error, "problem", str(error))  # where primitives nest, the outermost speaks
    lines = [f"{op} does not fit: {problem}"]
    for arg in args:
        for x in arg if isinstance(arg, LISTS) else [arg]:
            if isinstance(x, np.ndarray) or hasattr(x, "label"):
                lines.append(f"  {name(x)}: shape {x.shape}, {x.dtype}")
    kind = WrongTypeError if isinstance(error, TypeError) else QuerykeyError
    if isinstance(error, IndexError):
        kind = WrongIndexError
    wrapped = kind("\n".join(lines))
    wrapped.__dict__["problem"] = problem
    return wrapped


def primitive(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation: NumPy's errors in it become those of `misfit`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except REFUSALS as error:
            raise misfit(function.__name__, error, args) from None

    return call


def refuse_lost_gradients(op: str, x: Any) -> None:
    """Raise an error where x is a list that holds Tensors with gradients, at any depth."""
    if not isinstance(x, LISTS):
        return
    for element in x:
        if getattr(element, "requires_grad", False):
            raise WrongTypeError(
                f"{op} of a list of Tensors would lose the gradients of those in it: "
                f"join them first, with ag.stack or ag.concatenate"
            )
        refuse_lost_gradients(op, element)


def refuse_tensors_that_want(op: str, *values: Any) -> None:
    """Raise an error where an operation without a derivative gets a Tensor that wants one."""
    for value in values:
        if getattr(value, "requires_grad", False):
            raise WrongTypeError(
                f"{op} has no derivative, and {name(value)} wants a gradient: give it a constant, "
                f"x.detach(), or write the primitive with ag.record"
            )
        refuse_lost_gradients(op, value)


def not_a_gradient(op: str, x: Any, got: str, wanted: str) -> str:
    """Return the text about a pull that returned what can be no gradient of its input."""
    return f"what pulls a gradient through {op} to {name(x)} returned {got}, not {wanted}"


def no_floats(label: str | None, dtype: Any) -> WrongTypeError:
    """Return the error for an integer Tensor that is asked to have a gradient."""
    return WrongTypeError(
        f"{label or 'this Tensor'} holds {dtype}, and only floats have gradients: "
        f"give it an array of floats, or leave requires_grad out"
    )


def assignment(tensor: Any) -> WrongTypeError:
    """Return the error for `tensor[index] = value`, where a gradient would be lost."""
    return WrongTypeError(
        f"{name(tensor)} needs a gradient, and an assignment into it has none: build the result "
        f"with ag.where, ag.concatenate or ag.stack; assign new weights to .data"
    )


def other_shape(tensor: Any, what: str, shape: tuple[int, ...]) -> QuerykeyError:
    """Return the error for data or a gradient that has not the shape of its Tensor."""
    return QuerykeyError(f"{name(tensor)} has shape {tensor.shape}, {what} {shape}")


def computed(tensor: Any) -> GraphError:
    """Return the error for a change to what a primitive computed, and may have saved."""
    return GraphError(
        f"{name(tensor)}, {tensor.shape}, was computed, and its own derivative may need the value "
        f"that was changed in place: change a copy, or what it was computed from"
    )


def changed(source: Any, reader: Any) -> GraphError:
    """Return the error for a value that was changed after another Tensor was computed from it."""
    return GraphError(
        f"{name(source)}, {source.shape}, was changed in place after {reader.op} read it, and its "
        f"derivative would be wrong: change values only after backward"
    )


def already_walked(tensor: Any) -> GraphError:
    """Return the error for a backward() into a part of the graph that an earlier one has freed."""
    return GraphError(
        f"backward has already passed {name(tensor)}, {tensor.shape}, and freed what it needed: "
        f"compute it anew, or call backward(retain_graph=True) the first time"
    )


def nowhere_to_go(tensor: Any) -> GraphError:
    """Return the error for a backward() from a constant."""
    return GraphError(
        f"backward has nowhere to go: {name(tensor)}, {tensor.shape} {tensor.dtype}, was made from "
        f"constants and integers alone, and those have no gradients"
    )


def many_numbers(tensor: Any) -> QuerykeyError:
    """Return the error for a backward() from more than one number."""
    return QuerykeyError(
        f"backward starts from a single number, and {name(tensor)} has shape {tensor.shape}: "
        f"sum or average it first, or call backward(gradient) with an array of that shape"
    )
