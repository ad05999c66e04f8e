"""Sizes that depend on values, such as how many tokens an expert gets, kept as named sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from querykey.costs.counting.operations import Shape, count
from querykey.costs.private import size_of, storage_key, version_of

_PUTS = ("aten.index_put", "aten.index_put_", "aten._index_put_impl_", "aten._unsafe_index_put")
DATA_DEPENDENT = ("aten.nonzero", "aten.masked_select", "aten.index", "aten._unsafe_index", *_PUTS)


class DataDependentSizes:
    """Replaces the operations whose results are as long as the values make them.

    The sizes are called `picked_0`, `picked_1` and so on, in the order in which they come up; a
    mask that selects twice has one size.
    """

    def __init__(self, size: Callable[[str], Any]):
        self.size = size
        self.sizes: dict[str, tuple[str, Any]] = {}  # by name: the module, and the upper bound
        self._by_mask: dict[Any, Any] = {}
        self._origins: dict[int, Any] = {}
        self._held: list[torch.Tensor] = []  # held, so that no other memory gets their keys

    def run(self, op: str, func: Any, args: Any, kwargs: Any, module: str) -> Any:
        """Return the result of an operation in DATA_DEPENDENT without looking at values."""
        if op == "aten.nonzero":
            return self._indices(args[0], module)
        if op == "aten.masked_select":
            return args[0].new_empty((self._rows(args[1], module),))
        indices = []
        for index in args[1]:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                indices.append(index)
            else:
                indices += self._indices(index, module).unbind(1)
        return func(args[0], indices, *args[2:], **kwargs)

    def follow(self, op: str, args: Any, out: Any) -> None:
        """Remember how a mask was computed: `~mask`, written twice, selects the same rows."""
        if isinstance(out, torch.Tensor) and out.dtype is torch.bool:
            self._origins[storage_key(out)] = op, tuple(self._key(arg) for arg in args)
            self._held.append(out)

    def _key(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return repr(value)
        self._held.append(value)
        shape = Shape(size_of(size) for size in value.shape)
        memory = storage_key(value)
        offset = size_of(value.storage_offset())
        return self._origins.get(memory, memory), version_of(value), offset, shape

    def _indices(self, mask: torch.Tensor, module: str) -> torch.Tensor:
        shape = (self._rows(mask, module), mask.dim())
        return torch.empty(shape, dtype=torch.long, device=mask.device)

    def _rows(self, mask: torch.Tensor, module: str) -> Any:
        key = self._key(mask)
        if key not in self._by_mask:
            name = f"picked_{len(self.sizes)}"
            self.sizes[name] = module, count(key[-1])
            self._by_mask[key] = self.size(name)
        return self._by_mask[key]
