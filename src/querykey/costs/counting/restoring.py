"""Restore a model after a pass: its attributes, everything they hold, and its gradients."""

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

from querykey.costs.private import version_of

FOREIGN = {*sys.stdlib_module_names, "torch", "numpy"}  # objects of these are not the model's


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Put the modules' attributes, what these hold at any depth, and `.grad` back at the end.

    A model may keep a table that it computed in a pass. Such a tensor has no values and may not
    stay in the model.
    """
    restorers: dict[int, Callable[[], None]] = {}
    weights = {id(x) for x in (*model.parameters(), *model.buffers())}  # a pass replaces these
    for module in model.modules():
        _remember(vars(module), restorers, weights)
    try:
        yield
    finally:
        for restore in restorers.values():
            restore()


def _remember(value: Any, restorers: dict[int, Callable[[], None]], weights: set[int]) -> None:
    """Add the functions that restore a value and everything in it to `restorers`."""
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
        own = type(value).__module__.partition(".")[0] not in FOREIGN
        inner = [vars(value)] if own and hasattr(value, "__dict__") else ()
    for element in inner:
        _remember(element, restorers, weights)


def _values_of(tensor: torch.Tensor) -> Callable[[], None]:
    before, version = tensor.detach().clone(), version_of(tensor)

    def restore() -> None:
        if version_of(tensor) != version:
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
    # The gradient is taken away meanwhile, because a pass would add to it in place.
    before, tensor.grad = tensor.grad, None

    def restore() -> None:
        if tensor.grad is not before:
            tensor.grad = before

    return restore


def _same(now: list[Any], before: list[Any]) -> bool:
    """Return whether both lists hold the very same objects; no values are compared."""
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
