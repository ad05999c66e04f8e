"""Objects with parameters: how these are found, go out as arrays by their paths, and come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, ValuesView
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from querykey.ag.tensor import Tensor


def parts(thing: Any, prefix: str = "", outer: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield an object and everything inside it, by its path: attributes, elements, values.

    Any class will do, the course's too. Who holds a part, such as a parent, is not inside it.
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
    """Whether an object is a Tensor that something holds, and not one that it computed."""
    return isinstance(thing, Tensor) and not (thing.op and thing.requires_grad)


def is_float_array(thing: Any) -> bool:
    """Whether an object is an array of floats, such as a running average."""
    return isinstance(thing, np.ndarray) and thing.dtype.kind == "f"


def named_parameters(thing: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield every Tensor to train inside an object, by its path."""
    return ((path, x) for path, x in parts(thing) if is_state(x) and x.requires_grad)


def parameters(thing: Any) -> list[Tensor]:
    """Return every Tensor to train inside an object, or among several, each once."""
    thing = list(thing) if isinstance(thing, Iterator | ValuesView) else thing
    return list(dict.fromkeys(tensor for _, tensor in named_parameters(thing)))


class Module:
    """Something with parameters that can be called; they are its attributes, or theirs."""

    training = True

    def modules(self) -> Iterator[Module]:
        """Yield this Module and those inside it."""
        return (x for _, x in parts(self) if isinstance(x, Module))

    def parameters(self) -> list[Tensor]:
        """Return the Tensors to train."""
        return parameters(self)

    def train(self, training: bool = True) -> Module:
        """Set every Module inside to training, or to evaluation."""
        for module in self.modules():
            module.training = training
        return self

    def eval(self) -> Module:
        """Set every Module inside to evaluation."""
        return self.train(False)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for tensor in self.parameters():
            tensor.grad = None

    def astype(self, dtype: Any) -> Module:
        """Turn every parameter and running average into floats of another size; forget gradients.

        Layers are made in float64. An optimizer made before keeps what it remembers as it is.
        """
        if np.dtype(dtype).kind != "f":
            raise TypeError(f"parameters are floats, not {np.dtype(dtype)}")
        for _, each in parts(self):
            if is_state(each) and each._data.dtype.kind == "f":
                each._data, each.grad = each._data.astype(dtype), None
                each.touch()
            elif isinstance(each, Module):
                floats = [(k, v) for k, v in vars(each).items() if is_float_array(v)]
                vars(each).update({key: value.astype(dtype) for key, value in floats})
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return a copy of every parameter and running average, by its path."""
        return {key: read().copy() for key, (read, _) in slots(self).items()}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Take over every array of a state; the names and shapes must be ours."""
        ours = slots(self)
        check_state({key: read() for key, (read, _) in ours.items()}, state)
        for key, (read, write) in ours.items():
            write(np.array(state[key], dtype=read().dtype))


def check_state(ours: dict[str, np.ndarray], state: dict[str, np.ndarray]) -> None:
    """Refuse a state with other names or shapes than ours."""
    if ours.keys() != state.keys():
        missing, extra = sorted(ours.keys() - state.keys()), sorted(state.keys() - ours.keys())
        raise KeyError(f"the state lacks {missing} and has {extra} too many")
    for key, array in ours.items():
        if array.shape != np.shape(state[key]):
            raise ValueError(f"{key} has shape {array.shape}, in the state {np.shape(state[key])}")


Slot = tuple[Callable[[], np.ndarray], Callable[[np.ndarray], None]]


def slots(thing: Any) -> dict[str, Slot]:
    """Return, for every array a state holds, how to read and how to write it."""
    found: dict[str, Slot] = {}
    for path, value in parts(thing):
        if is_state(value):
            found[path] = (lambda v=value: v._data, lambda a, v=value: setattr(v, "data", a))
        elif isinstance(value, np.ndarray):
            found[path] = (lambda v=value: v, lambda a, v=value: np.copyto(v, a))
    return found
