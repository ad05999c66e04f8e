"""Sizes that only values decide, such as how many tokens an expert gets, kept as named sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from querykey.costs.counting.operations import Shape, count
from querykey.costs.private import size_of, storage_key

_PUTS = ("aten.index_put", "aten.index_put_", "aten._index_put_impl_", "aten._unsafe_index_put")
PICKING = ("aten.nonzero", "aten.masked_select", "aten.index", "aten._unsafe_index", *_PUTS)


class Picks:
    """Stands in for operations whose result is as long as the values make it.

    The sizes are `picked_0`, `picked_1` and so on, in the order in which they come up; what the
    same mask picks twice is one size.
    """

    def __init__(self, size: Callable[[str], Any]):
        self.size = size
        self.found: dict[str, tuple[str, Any]] = {}  # name: module, and at most how many
        self._known: dict[Any, Any] = {}
        self._origins: dict[int, Any] = {}
        self._held: list[torch.Tensor] = []  # so that the keys of their memory stay theirs

    def run(self, op: str, func: Any, args: Any, kwargs: Any, module: str) -> Any:
        """The result of one of PICKING, without looking at values."""
        if op == "aten.nonzero":
            return self._places(args[0], module)
        if op == "aten.masked_select":
            return args[0].new_empty((self._rows(args[1], module),))
        indices = []
        for each in args[1]:
            if each is None or each.dtype not in (torch.bool, torch.uint8):
                indices.append(each)
            else:
                indices += self._places(each, module).unbind(1)
        return func(args[0], indices, *args[2:], **kwargs)

    def note(self, op: str, args: Any, out: Any) -> None:
        """Remember how a mask was made: `~mask` picks the same when it is written twice."""
        if isinstance(out, torch.Tensor) and out.dtype is torch.bool:
            self._origins[storage_key(out)] = op, tuple(self._key(each) for each in args)
            self._held.append(out)

    def _key(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return repr(value)
        self._held.append(value)
        shape = Shape(size_of(size) for size in value.shape)
        memory = storage_key(value)
        offset = size_of(value.storage_offset())
        return self._origins.get(memory, memory), value._version, offset, shape

    def _places(self, mask: torch.Tensor, module: str) -> torch.Tensor:
        shape = (self._rows(mask, module), mask.dim())
        return torch.empty(shape, dtype=torch.long, device=mask.device)

    def _rows(self, mask: torch.Tensor, module: str) -> Any:
        key = self._key(mask)
        if key not in self._known:
            name = f"picked_{len(self.found)}"
            self.found[name] = module, count(key[-1])
            self._known[key] = self.size(name)
        return self._known[key]
