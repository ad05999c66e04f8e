"""Positions that a model counts out by itself, followed to the tables it looks them up in.

A pass without values looks up nothing, so that a model with 64 learned positions would seem to run
at any length. Asked of symbolic sizes, the comparison here limits the formula; of numbers, it
refuses them as the model would. Where a model counts the tokens that are real, all of them are.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
ONES = (aten.ones, aten.ones_like, aten.new_ones)
# What leaves out nothing; a slice does not either, if it goes to the end.
ALIKE = {
    *(aten._to_copy, aten.clone, aten.repeat, aten.detach, aten.alias, aten.view, aten.expand),
    *(aten.unsqueeze, aten.squeeze, aten.transpose, aten.permute, aten._unsafe_view),
}
END = 2**62


class Places:
    """The last position in every tensor of them, and which tensors are of zeros and ones."""

    def __init__(self):
        # With the tensors themselves: while they are held, no other has their id.
        self._last: dict[int, tuple[torch.Tensor, Any]] = {}
        self._flags: dict[int, torch.Tensor] = {}

    def note(self, func: Any, args: Any, out: Any) -> None:
        """Follow positions through one operation, or raise where a table has no row for them."""
        packet = getattr(func, "overloadpacket", func)
        alike = packet in ALIKE or (packet is aten.slice and _goes_to_the_end(*args[1:]))
        if packet is aten.arange:
            self._begin(args, out)
        elif packet in ONES:
            self._flags[id(out)] = out
        elif packet is aten.cumsum and self._is_flags(args[0]):
            self._last[id(out)] = out, args[0].shape[args[1]]
        elif alike and self._is_flags(args[0]):
            self._flags[id(out)] = out
        elif not self._last or not args:
            return
        elif packet is aten.embedding:
            last = self._of(args[1])
            if last is not None and last >= args[0].shape[0]:
                raise IndexError(f"no row {last} in a table of {args[0].shape[0]}")
        elif packet in (aten.add, aten.sub) and isinstance(args[1], int | torch.SymInt):
            self._keep(out, args[0], args[1] if packet is aten.add else -args[1])
        elif (
            (packet is aten.mul and self._is_flags(args[1]))
            or alike
            or (packet is aten.clamp and len(args) == 2)  # from below
        ):
            self._keep(out, args[0], 0)

    def _begin(self, args: Any, out: torch.Tensor) -> None:
        start, end, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
        if step == 1 and all(isinstance(each, int | torch.SymInt) for each in (start, end)):
            self._last[id(out)] = out, end - 1

    def _keep(self, out: Any, source: Any, more: Any) -> None:
        last = self._of(source)
        if last is not None and isinstance(out, torch.Tensor):
            self._last[id(out)] = out, last + more

    def _of(self, tensor: Any) -> Any:
        return self._last[id(tensor)][1] if id(tensor) in self._last else None

    def _is_flags(self, value: Any) -> bool:
        boolean = isinstance(value, torch.Tensor) and value.dtype is torch.bool
        return boolean or id(value) in self._flags


def _goes_to_the_end(dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> bool:
    return step == 1 and (end is None or (isinstance(end, int) and end > END))
