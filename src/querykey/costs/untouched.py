"""A model after a pass is what it was before: its attributes, what they hold, and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put back whatever modules keep in attributes, in lists, dicts and sets in them, in `.grad`.

    A model may keep a table that it made in a pass; its tensors have no values, and may not stay.
    """
    restorers: dict[int, Callable[[], None]] = {}
    for module in model.modules():
        _remember(vars(module), restorers)
    try:
        yield
    finally:
        for restore in restorers.values():
            restore()


def _remember(value: Any, restorers: dict[int, Callable[[], None]]) -> None:
    """Note how to restore a container, everything in it, or the gradient of a tensor."""
    if id(value) in restorers:
        return
    if isinstance(value, torch.Tensor):
        if value.requires_grad and value.is_leaf:
            restorers[id(value)] = _gradient_of(value)
    elif isinstance(value, dict):
        restorers[id(value)] = _items_of(value)
        for each in value.values():
            _remember(each, restorers)
    elif isinstance(value, list | set):
        restorers[id(value)] = _elements_of(value)
        for each in value:
            _remember(each, restorers)
    elif isinstance(value, tuple):
        for each in value:
            _remember(each, restorers)


def _items_of(held: dict[Any, Any]) -> Callable[[], None]:
    before = list(held.items())

    def restore() -> None:
        if not _same([x for item in held.items() for x in item], [x for i in before for x in i]):
            held.clear()
            held.update(before)

    return restore


def _elements_of(held: list[Any] | set[Any]) -> Callable[[], None]:
    before = list(held)

    def restore() -> None:
        if not _same(list(held), before):
            held.clear()
            held.extend(before) if isinstance(held, list) else held.update(before)

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
