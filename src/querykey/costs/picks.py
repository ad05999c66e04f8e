"""Sizes that only values decide, such as how many tokens an expert gets, kept as named sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from querykey.costs.formulas import Shape, count
from querykey.costs.private import size_of, storage_key

PICKING = ("aten.nonzero", "aten.masked_select", "aten.index")


class Picks:
    """Stands in for operations whose result is as long as the values make it.

    The sizes are `picked_0`, `picked_1` and so on, in the order in which they come up; what the
    same mask picks twice is one size.
    """

    def __init__(self, size: Callable[[str], Any]):
        self.size = size
        self.found: dict[str, tuple[str, Any]] = {}  # name: module, and at most how many
        self._known: dict[Any, tuple[Any, torch.Tensor]] = {}

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
        return func(args[0], indices, **kwargs)

    def _places(self, mask: torch.Tensor, module: str) -> torch.Tensor:
        shape = (self._rows(mask, module), mask.dim())
        return torch.empty(shape, dtype=torch.long, device=mask.device)

    def _rows(self, mask: torch.Tensor, module: str) -> Any:
        shape = Shape(size_of(size) for size in mask.shape)
        key = storage_key(mask), mask._version, size_of(mask.storage_offset()), shape
        if key not in self._known:
            name = f"picked_{len(self.found)}"
            self.found[name] = module, count(shape)
            self._known[key] = self.size(name), mask  # held, so that its key stays its own
        return self._known[key][0]
