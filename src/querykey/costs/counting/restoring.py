"""A model after a pass is what it was before: its attributes, what they hold, and its gradients."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

OTHERS = {*sys.stdlib_module_names, "torch", "numpy"}  # whose objects are not a model's own


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put back whatever modules keep: attributes, what these hold at any depth, and `.grad`.

    A model may keep a table that it made in a pass; its tensors have no values, and may not stay.
    """
    restorers: dict[int, Callable[[], None]] = {}
    weights = {id(x) for x in (*model.parameters(), *model.buffers())}  # a pass takes others
    for module in model.modules():
        _remember(vars(module), restorers, weights)
    try:
        yield
    finally:
        for restore in restorers.values():
            restore()


def _remember(value: Any, restorers: dict[int, Callable[[], None]], weights: set[int]) -> None:
    """Note how to restore a container and everything in it, an array, a tensor's gradient."""
    if id(value) in restorers:
        return
    inner: Iterable[Any] = ()
    if isinstance(value, torch.Tensor):
        if value.requires_grad and value.is_leaf:
            restorers[id(value)] = _gradient_of(value)
        elif id(value) not in weights and not value.is_inference():
            restorers[id(value)] = _values_of(value)
    elif isinstance(value, np.ndarray):
        restorers[id(value)] = _entries_of(value)
    elif isinstance(value, dict):
        restorers[id(value)] = _items_of(value)
        inner = value.values()
    elif isinstance(value, list | set | deque):
        restorers[id(value)] = _elements_of(value)
        inner = value
    elif isinstance(value, tuple):
        inner = value
    elif not isinstance(value, nn.Module | type | FunctionType | ModuleType):
        own = type(value).__module__.partition(".")[0] not in OTHERS
        inner = [vars(value)] if own and hasattr(value, "__dict__") else ()
    for each in inner:
        _remember(each, restorers, weights)


def _values_of(tensor: torch.Tensor) -> Callable[[], None]:
    before, version = tensor.detach().clone(), tensor._version

    def restore() -> None:
        if tensor._version != version:
            with torch.no_grad():
                tensor.copy_(before)

    return restore


def _entries_of(array: np.ndarray) -> Callable[[], None]:
    before = array.copy()

    def restore() -> None:
        if array.flags.writeable:
            array[...] = before

    return restore


def _items_of(held: dict[Any, Any]) -> Callable[[], None]:
    before = list(held.items())

    def restore() -> None:
        if not _same([x for item in held.items() for x in item], [x for i in before for x in i]):
            held.clear()
            held.update(before)

    return restore


def _elements_of(held: list[Any] | set[Any] | deque[Any]) -> Callable[[], None]:
    before = list(held)

    def restore() -> None:
        if not _same(list(held), before):
            held.clear()
            held.update(before) if isinstance(held, set) else held.extend(before)

    return restore


def _gradient_of(tensor: torch.Tensor) -> Callable[[], None]:
    # It is taken away meanwhile: a pass would add to it in place.
    before, tensor.grad = tensor.grad, None

    def restore() -> None:
        if tensor.grad is not before:
            tensor.grad = before

    return restore


def _same(now: list[Any], before: list[Any]) -> bool:
    """Whether these are the very same objects; tensors without values cannot be compared."""
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
