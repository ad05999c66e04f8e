"""Everything that a call may leave behind in a model, and around it, put back as it was."""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from querykey.laws.private import (
    MACHINERY,
    buffers_of,
    modules_of,
    parameters_of,
    version_of,
)
from querykey.laws.understanding.reachable import CONTAINERS, children, is_plain_object, walk

SMALL = 1 << 16  # numbers: so few are compared one by one, because `.data` counts no version
LARGE = 1 << 20  # numbers: what a file keeps beside its models and is larger is data, not state
LIBRARIES = ("torch", "transformers", "builtins")


class Snapshot:
    """The state of a model beside the values of its parameters, as it was when this was made.

    Attributes, buffers, containers and closures are put back in place, whoever refers to them;
    and so are the attributes of its classes and the containers of the files they are written in.
    """

    def __init__(self, model: nn.Module):
        self.undo: list[Callable[[], bool | None]] = []
        self.tensors: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        seen: set[int] = set()
        kinds: dict[type, None] = {}
        for _, value in walk(model):
            self._note(value, seen)
            if isinstance(value, nn.Module) or is_plain_object(value):
                kinds.update(dict.fromkeys(_written_by_users(type(value))))
        for kind in kinds:
            self._note_class(kind, seen)

    def restore(self) -> bool:
        """Put everything back that has changed; return whether a module's switch was among it."""
        turned = [undo() for undo in self.undo]
        with torch.no_grad():
            for tensor, kept, version in self.tensors:
                changed = tensor.shape != kept.shape or _version(tensor) != version
                if changed or (kept.numel() <= SMALL and not torch.equal(tensor, kept)):
                    tensor.data = kept.clone()
        return any(turned)

    def _note(self, value: Any, seen: set[int]) -> None:
        """Remember one value, if a call could change it."""
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, nn.Module):
            self.undo.append(_of_attributes(vars(value), MACHINERY))
            if not isinstance(value, torch.jit.ScriptModule):  # its parts cannot be replaced
                # A table of positions that grows is a new parameter, or a new module.
                parts = (buffers_of(value), parameters_of(value), modules_of(value))
                self.undo += [_of_attributes(held, set()) for held in parts]
        elif isinstance(value, torch.Tensor):
            if not isinstance(value, nn.Parameter) and not value.is_meta:
                kept = value.detach().clone()
                self.tensors.append((value, kept, _version(value)))
        elif isinstance(value, CONTAINERS):
            self.undo.append(_of_container(value))
        elif isinstance(value, types.FunctionType):
            self.undo += [_of_cell(cell) for cell in value.__closure__ or ()]
        elif is_plain_object(value):
            self.undo.append(_of_attributes(vars(value), set()))

    def _note_class(self, kind: type, seen: set[int]) -> None:
        """Remember what a class and its file hold: shared caches, counters, default arguments."""
        self.undo.append(_of_class(kind))
        held = [value.__defaults__ for value in vars(kind).values() if _is_function(value)]
        held += [value for value in vars(kind).values() if isinstance(value, _STATES)]
        world = getattr(sys.modules.get(kind.__module__), "__dict__", {})
        if id(world) not in seen:
            seen.add(id(world))
            held += [v for n, v in world.items() if isinstance(v, _STATES) and n[:2] != "__"]
        for root in held:
            for value in _inside(root):
                if not (isinstance(value, torch.Tensor) and value.numel() > LARGE):
                    self._note(value, seen)


_STATES = (*CONTAINERS, torch.Tensor)


def _is_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType)


def _inside(root: Any, depth: int = 4) -> Iterator[Any]:
    """Yield a value and what it holds, a few levels down."""
    yield root
    if depth and not isinstance(root, nn.Module):
        for _, child in children(root):
            yield from _inside(child, depth - 1)


def _written_by_users(kind: type) -> Iterator[type]:
    """Yield a class and those above it that are neither Python's nor torch's nor the library's."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in LIBRARIES:
            yield base


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else version_of(tensor)


def _of_attributes(held: dict[str, Any], left_alone: set[str]) -> Callable[[], bool]:
    """Return what puts the values of a dict back by name, but for the names that are left alone.

    It tells whether one of them was a switch: True that had become False, or the reverse.
    """
    kept = {name: value for name, value in held.items() if name not in left_alone}

    def undo() -> bool:
        turned = False
        for name in [n for n in held if n not in kept and n not in left_alone]:
            del held[name]
        for name, value in kept.items():
            if held.get(name, undo) is not value:
                turned = turned or isinstance(value, bool)
                held[name] = value
        return turned

    return undo


def _of_container(held: Any) -> Callable[[], None]:
    """Return what puts the contents of a dict, list, set or deque back, in their order.

    A dict that makes a new value at every reading, as transformers' of activations, has no contents
    that could be put back.
    """
    if isinstance(held, dict) and type(held).__getitem__ is not dict.__getitem__:
        return lambda: None
    kept = held.copy()

    def undo() -> None:
        if isinstance(held, dict):
            same = len(held) == len(kept) and all(
                held.get(key, undo) is value for key, value in kept.items()
            )
        else:
            same = len(held) == len(kept) and all(a is b for a, b in zip(held, kept, strict=True))
        if same:
            return
        held.clear()
        if isinstance(held, list | deque):
            held.extend(kept)
        else:
            held.update(kept)

    return undo


def _of_cell(cell: Any) -> Callable[[], None]:
    """Return what puts the variable of a closure back."""
    try:
        kept = cell.cell_contents
    except ValueError:  # not assigned yet
        return lambda: None

    def undo() -> None:
        cell.cell_contents = kept

    return undo


def _of_class(kind: type) -> Callable[[], None]:
    """Return what puts the attributes of a class back, but for its methods and descriptors."""

    def state() -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(kind).items()
            if not name.startswith("__") and not callable(value) and not hasattr(value, "__get__")
        }

    kept = state()

    def undo() -> None:
        now = state()
        for name in [name for name in now if name not in kept]:
            delattr(kind, name)
        for name, value in kept.items():
            if now.get(name, undo) is not value:
                setattr(kind, name, value)

    return undo
