"""What is in memory while a pass runs: every allocation and release, in order.

A pass without values makes and drops its tensors as a real one does: the same Python code holds
them, and the same graph of autograd. So memory is taken and given back at the moments of a real
run, and only the sizes are formulas.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from querykey.costs.inputs import leaves
from querykey.costs.private import size_of, storage_key


@dataclass(frozen=True)
class Piece:
    """One piece of memory: which module took it, in which operation, and its size in bytes."""

    module: str
    made_by: str  # an operation such as aten.mm; or weights, buffers, inputs
    size: Any


@dataclass(frozen=True)
class Event:
    """A piece of memory that is taken, or given back."""

    piece: Piece
    taken: bool


@dataclass
class Timeline:
    """The events of one pass; `marks` are the places at which parts of it begin, by name."""

    events: list[Event] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)
    backward_marks: dict[str, str] = field(default_factory=dict)  # by a module's path: the mark
    _alive: dict[int, Piece] = field(default_factory=dict)

    def hold(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """Take the memory of tensors that live as long as the pass, such as its weights."""
        for tensor in tensors:
            self._take(tensor, "", kind)

    def follow(self, name: str, out: Any, module: str, backward: bool) -> None:
        """Take the memory of an operation's results, where they are no views of what is known."""
        if backward and self.backward_marks:
            for path, mark in self.backward_marks.items():
                if module == path or module.startswith(f"{path}."):
                    self.mark(mark)
        for tensor in leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._take(tensor, module, name)

    def mark(self, name: str) -> None:
        """Remember that a part of the pass begins here; a part begins once."""
        self.marks.setdefault(name, len(self.events))

    def _take(self, tensor: torch.Tensor, module: str, made_by: str) -> None:
        key = storage_key(tensor)
        if key in self._alive:
            return
        storage = tensor.untyped_storage()
        piece = Piece(module, made_by, size_of(storage.nbytes()))
        self._alive[key] = piece
        self.events.append(Event(piece, True))
        weakref.finalize(storage, self._give_back, key).atexit = False

    def _give_back(self, key: int) -> None:
        piece = self._alive.pop(key, None)
        if piece is not None:
            self.events.append(Event(piece, False))


def work_space(name: str, args: Any, out: Any) -> tuple[torch.Tensor, ...]:
    """Return the memory that an operation takes while it runs, where that is as long as its result.

    A softmax that allows for rows without any key marks every masked score, and every such row.
    """
    if name != "aten._safe_softmax":
        return ()
    rows = list(out.shape)
    rows[args[1]] = 1
    marks = (out.new_empty(shape, dtype=torch.bool) for shape in (out.shape, rows))
    return *marks, out.new_empty(())
