"""Optimizers: SGD and Adam. They write in place, which a graph that has read a value notices."""

from __future__ import annotations

from typing import Any

import numpy as np

from querykey.ag.modules import check_state, parameters
from querykey.ag.tensor import Tensor, tick
from querykey.errors import QuerykeyError
from querykey.words import number, share


class Optimizer:
    """The base of SGD and Adam: the parameters, and a state that is a flat dict of arrays."""

    remembers: tuple[str, ...] = ()  # the names under which arrays per parameter are kept

    def __init__(self, params: Any, lr: float):
        self.params: list[Tensor] = parameters(params)
        if not self.params:
            raise QuerykeyError(
                "there is nothing to train: no Tensor that wants a gradient was found"
            )
        self.lr = number("lr", lr)
        self.memory: dict[str, list[np.ndarray]] = {}

    def zero_grad(self) -> None:
        """Set the gradient of every parameter to None."""
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        """Change every parameter that has a gradient."""
        rate = np.array(self.lr)
        for i, p in enumerate(self.params):
            if p.grad is not None:
                value = p._data
                change = self.change(i, value, p.grad)
                if rate.dtype is not change.dtype:  # NumPy is slower with a number than with this
                    rate = np.array(self.lr, change.dtype)
                value -= rate * change
                p.stamp = tick()

    def change(self, i: int, value: np.ndarray, grad: np.ndarray) -> np.ndarray:
        """Return what is subtracted from the i-th parameter, before it is multiplied by lr."""
        raise NotImplementedError

    def remember(self, key: str) -> list[np.ndarray]:
        """Return the arrays that are kept under this name, one per parameter."""
        if key not in self.memory:
            self.memory[key] = self.zeros(key)
        return self.memory[key]

    def zeros(self, key: str) -> list[np.ndarray]:
        """Return the arrays that are kept under this name at first; steps are one number each."""
        return [np.zeros(()) if key == "steps" else np.zeros_like(p._data) for p in self.params]

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return a copy of every array that is kept."""
        return {path: array.copy() for path, array in by_path(self.memory).items()}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Take over a state of such an optimizer; an empty one is the state at the start."""
        memory = {key: self.zeros(key) for key in self.remembers} if state else {}
        ours = by_path(memory)
        check_state(ours, state)
        for key, array in ours.items():
            array[...] = state[key]
        self.memory = memory


def by_path(memory: dict[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    """Return lists of arrays as one flat dict, in which `mean.2` is the third of `mean`."""
    return {f"{key}.{i}": a for key, arrays in memory.items() for i, a in enumerate(arrays)}


class SGD(Optimizer):
    """SGD: p -= lr * (grad + weight_decay * p), or with momentum a running sum of that."""

    remembers = ("velocity",)

    def __init__(
        self, params: Any, lr: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0
    ):
        super().__init__(params, lr)
        self.momentum = share("momentum", momentum)
        self.weight_decay = number("weight_decay", weight_decay)

    def change(self, i: int, value: np.ndarray, grad: np.ndarray) -> np.ndarray:
        """Return the gradient, or its running sum with momentum."""
        if self.weight_decay:
            grad = grad + self.weight_decay * value
        if self.momentum:
            velocity = self.remember("velocity")[i]
            velocity *= self.momentum
            velocity += grad
            grad = velocity
        return grad


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), whose weight decay is added to the gradient."""

    remembers = ("mean", "square", "steps")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, lr)
        self.betas = share("beta", betas[0]), share("beta", betas[1])
        self.epsilon = number("epsilon", epsilon)
        self.weight_decay = number("weight_decay", weight_decay)

    def change(self, i: int, value: np.ndarray, grad: np.ndarray) -> np.ndarray:
        """Return mean / (sqrt(mean square) + epsilon), both corrected for their start at 0."""
        if self.weight_decay:
            grad = grad + self.weight_decay * value
        first, second = self.remember("mean")[i], self.remember("square")[i]
        (b1, b2), count = self.betas, self.remember("steps")[i]
        count += 1
        steps = int(count)
        first += (1 - b1) * (grad - first)
        second += (1 - b2) * (grad * grad - second)
        return first / (1 - b1**steps) / (np.sqrt(second / (1 - b2**steps)) + self.epsilon)
