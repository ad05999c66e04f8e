"""Objects with parameters: how these are found, saved as arrays by their paths, and loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, ValuesView
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from querykey.ag.tensor import Tensor
from querykey.errors import QuerykeyError, WrongTypeError


def parts(thing: Any, prefix: str = "", outer: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield an object and everything inside it, by its path: attributes, elements, values.

    Any class will do, Module or not. An object that refers back to one around it, such as its
    parent, is not followed.
    """
    yield prefix, thing
    if isinstance(thing, list | tuple):
        items = enumerate(thing)
    elif isinstance(thing, dict):
        items = thing.items()
    elif hasattr(thing, "__dict__") and not isinstance(thing, type | ModuleType | FunctionType):
        items = vars(thing).items()
    else:
        return
    if id(thing) in outer:
        return
    for key, value in list(items):
        path = f"{prefix}.{key}" if prefix else str(key)
        yield from parts(value, path, (*outer, id(thing)))


def is_state(thing: Any) -> bool:
    """Return whether an object is a Tensor that belongs to a model, and not one it computed."""
    return isinstance(thing, Tensor) and not (thing.op and thing.requires_grad)


def is_float_array(thing: Any) -> bool:
    """Return whether an object is an array of floats, such as a running average."""
    return isinstance(thing, np.ndarray) and thing.dtype.kind == "f"


def named_parameters(thing: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield every Tensor to train inside an object, by its path."""
    return ((path, x) for path, x in parts(thing) if is_state(x) and x.requires_grad)


def parameters(thing: Any) -> list[Tensor]:
    """Return every Tensor to train inside an object, or among several, each once."""
    thing = list(thing) if isinstance(thing, Iterator | ValuesView) else thing
    return list(dict.fromkeys(tensor for _, tensor in named_parameters(thing)))


class Module:
    """A function with parameters, which are found among its attributes and inside these."""

    training = True

    def modules(self) -> Iterator[Module]:
        """Yield this Module and every Module inside it."""
        return (x for _, x in parts(self) if isinstance(x, Module))

    def parameters(self) -> list[Tensor]:
        """Return the Tensors to train, each once."""
        return parameters(self)

    def train(self, training: bool = True) -> Module:
        """Switch this Module and those inside it to training, or to evaluation."""
        for module in self.modules():
            module.training = training
        return self

    def eval(self) -> Module:
        """Switch this Module and those inside it to evaluation."""
        return self.train(False)

    def zero_grad(self) -> None:
        """Set the gradient of every parameter to None."""
        for tensor in self.parameters():
            tensor.grad = None

    def astype(self, dtype: Any) -> Module:
        """Turn every parameter and running average into floats of another size.

        Gradients are set to None. Layers begin in float64. An optimizer that was made before keeps
        what it remembers as it is.
        """
        if np.dtype(dtype).kind != "f":
            raise WrongTypeError(f"parameters are floats, not {np.dtype(dtype)}")
        for _, part in parts(self):
            if is_state(part) and part._data.dtype.kind == "f":
                part._data, part.grad = part._data.astype(dtype), None
                part.touch()
            elif isinstance(part, Module):
                averages = [(key, x) for key, x in vars(part).items() if is_float_array(x)]
                vars(part).update({key: x.astype(dtype) for key, x in averages})
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return a copy of every parameter and running average, by its path."""
        return {key: read().copy() for key, (read, _) in slots(self).items()}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Take over every array of a state, whose names and shapes must be those of this Module."""
        ours = slots(self)
        check_state({key: read() for key, (read, _) in ours.items()}, state)
        for key, (read, write) in ours.items():
            write(np.array(state[key], dtype=read().dtype))


def check_state(ours: dict[str, np.ndarray], state: dict[str, np.ndarray]) -> None:
    """Raise an error for a state with other names or shapes than ours."""
    if ours.keys() != state.keys():
        missing, extra = sorted(ours.keys() - state.keys()), sorted(state.keys() - ours.keys())
        raise QuerykeyError(f"the state lacks {missing} and has {extra} too many")
    for key, array in ours.items():
        if array.shape != np.shape(state[key]):
            raise QuerykeyError(
                f"{key} has shape {array.shape}, in the state {np.shape(state[key])}"
            )


Slot = tuple[Callable[[], np.ndarray], Callable[[np.ndarray], None]]


def slots(thing: Any) -> dict[str, Slot]:
    """Return how to read and how to write every array that a state holds, by its path."""
    by_path: dict[str, Slot] = {}
    for path, value in parts(thing):
        if is_state(value):
            by_path[path] = (lambda v=value: v._data, lambda a, v=value: setattr(v, "data", a))
        elif isinstance(value, np.ndarray):
            by_path[path] = (lambda v=value: v, lambda a, v=value: np.copyto(v, a))
    return by_path
