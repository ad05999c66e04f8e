"""What the engine says when something is wrong: the operation, the shapes and the labels."""

from __future__ import annotations

from typing import Any

import numpy as np

LISTS = (list, tuple)


def name(tensor: Any) -> str:
    """Return what to call a Tensor in a sentence."""
    if not hasattr(tensor, "label"):
        return "a constant"
    if tensor.label:
        return tensor.label
    return f"the result of {tensor.op}" if tensor.op else "an unnamed Tensor"


def misfit(op: str, error: Exception, args: Any) -> Exception:
    """Return NumPy's complaint with the operation, and the label and shape of every array."""
    problem = getattr(error, "problem", str(error))  # where primitives nest, the outermost speaks
    lines = [f"{op} does not fit: {problem}"]
    for arg in args:
        for x in arg if isinstance(arg, list | tuple) else [arg]:
            if isinstance(x, np.ndarray) or hasattr(x, "label"):
                lines.append(f"  {name(x)}: shape {x.shape}, {x.dtype}")
    wrapped = (ValueError if isinstance(error, ValueError) else IndexError)("\n".join(lines))
    wrapped.__dict__["problem"] = problem
    return wrapped


def lost(op: str, x: Any) -> bool:
    """Complain of a list that holds Tensors with gradients; anything else is a constant: False."""
    if not isinstance(x, LISTS):
        return False
    for each in x:
        if getattr(each, "requires_grad", False) or lost(op, each):
            raise TypeError(
                f"{op} of a list of Tensors would lose the gradients of those in it: "
                f"join them first, with ag.stack or ag.concatenate"
            )
    return False


def pulled(op: str, x: Any, got: str, wanted: str) -> str:
    """Of a pull that returned what can be no gradient of its input."""
    return f"what pulls a gradient through {op} to {name(x)} returned {got}, not {wanted}"


def no_floats(label: str | None, dtype: Any) -> TypeError:
    """Of an integer Tensor that is asked to have a gradient."""
    return TypeError(
        f"{label or 'this Tensor'} holds {dtype}, and only floats have gradients: "
        f"give it an array of floats, or leave requires_grad out"
    )


def floats(tensor: Any) -> Any:
    """Return the dtype of a Tensor that has gradients, or complain where it can have none."""
    if tensor.dtype.kind != "f":
        raise no_floats(tensor.label, tensor.dtype)
    return tensor.dtype


def assignment(tensor: Any) -> TypeError:
    """Of `tensor[index] = value`, where a gradient would be lost."""
    return TypeError(
        f"{name(tensor)} needs a gradient, and an assignment into it has none: build the result "
        f"with ag.where, ag.concatenate or ag.stack; assign new weights to .data"
    )


def computed(tensor: Any) -> RuntimeError:
    """Of a change to what a primitive made and may have saved."""
    return RuntimeError(
        f"{name(tensor)}, {tensor.shape}, was computed, and its own derivative may need the value "
        f"that was changed in place: change a copy, or what it was computed from"
    )


def changed(source: Any, reader: Any) -> RuntimeError:
    """Of a value that is not any more what its reader saw."""
    return RuntimeError(
        f"{name(source)}, {source.shape}, was changed in place after {reader.op} read it, and its "
        f"derivative would be wrong: change values only after backward"
    )


def already_walked(tensor: Any) -> RuntimeError:
    """Of a second backward."""
    return RuntimeError(
        f"backward has already passed {name(tensor)}, {tensor.shape}, and freed what it needed: "
        f"compute it anew, or call backward(retain_graph=True) the first time"
    )


def nowhere_to_go(tensor: Any) -> RuntimeError:
    """Of a backward from a constant."""
    return RuntimeError(
        f"backward has nowhere to go: {name(tensor)}, {tensor.shape} {tensor.dtype}, was made from "
        f"constants and integers alone, and those have no gradients"
    )


def many_numbers(tensor: Any) -> ValueError:
    """Of a backward from more than one number."""
    return ValueError(
        f"backward starts from a single number, and {name(tensor)} has shape {tensor.shape}: "
        f"sum or average it first, or call backward(gradient) with an array of that shape"
    )
