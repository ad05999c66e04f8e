"""Numbers that stand for states, by which two runs are compared."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn


def random_state() -> int:
    """Return a number for the states of the random generators of torch, NumPy and Python."""
    keys, position = np.random.get_state()[1:3]  # type: ignore[index]
    torch_state = torch.get_rng_state().numpy().tobytes()
    return hash((torch_state, keys.tobytes(), position, random.getstate()))  # type: ignore[union-attr]


def values_of(module: nn.Module) -> float:
    """Return a number for all values of a module's parameters and buffers."""
    return _number([*module.parameters(), *module.buffers()])


def memory_of(optimizer: torch.optim.Optimizer) -> float:
    """Return a number for all that an optimizer remembers."""
    return _number(
        value
        for group in optimizer.param_groups
        for parameter in group["params"]
        for value in optimizer.state.get(parameter, {}).values()
        if isinstance(value, torch.Tensor)
    )


def _number(tensors: Iterable[torch.Tensor]) -> float:
    """Return a sum in which the place of every tensor and the size of every value counts."""
    total = 0.0
    for place, tensor in enumerate(tensors):
        if not (tensor.is_meta or tensor.is_complex()):
            values = tensor.detach().double()
            total += (1 + place % 7) * float(values.abs().sum() + 0.5 * values.sum())
    return total
