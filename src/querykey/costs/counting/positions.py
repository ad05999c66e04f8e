"""Follow the positions that a model counts out to the tables in which it looks them up.

A pass without values looks nothing up, so a model with 64 learned positions would seem to run at
any length. The comparison here limits the formula where sizes are symbols, and where they are
numbers it raises the error that the model would raise. Where a model counts its real tokens, all
tokens are taken to be real.
"""

from __future__ import annotations

from typing import Any

import torch

ONES = {"aten.ones", "aten.ones_like", "aten.new_ones"}
# Operations that keep all positions; a slice does so too where it goes to the end.
KEEPING = {
    "aten._to_copy", "aten.clone", "aten.repeat", "aten.detach", "aten.alias", "aten.view",
    "aten.expand", "aten.unsqueeze", "aten.squeeze", "aten.transpose", "aten.permute",
    "aten._unsafe_view",
}  # fmt: skip
END = 2**62


class Positions:
    """The last position in every tensor of positions, and the tensors of zeros and ones."""

    def __init__(self):
        # The tensors themselves are held, so that no other tensor gets their id.
        self._last: dict[int, tuple[torch.Tensor, Any]] = {}
        self._flags: dict[int, torch.Tensor] = {}

    def follow(self, op: str, args: Any, out: Any) -> None:
        """Follow positions through one operation; raise where a table has no row for the last."""
        keeping = op in KEEPING or (op == "aten.slice" and _goes_to_the_end(*args[1:]))
        if op == "aten.arange":
            self._begin(args, out)
        elif op in ONES:
            self._flags[id(out)] = out
        elif op == "aten.cumsum" and self._is_flags(args[0]):
            self._last[id(out)] = out, args[0].shape[args[1]]
        elif keeping and self._is_flags(args[0]):
            self._flags[id(out)] = out
        elif not self._last or not args:
            return
        elif op == "aten.embedding":
            last = self._last_of(args[1])
            if last is not None and last >= args[0].shape[0]:
                raise IndexError(f"no row {last} in a table of {args[0].shape[0]}")
        elif op in ("aten.add", "aten.sub") and isinstance(args[1], int | torch.SymInt):
            self._shift(out, args[0], args[1] if op == "aten.add" else -args[1])
        elif (
            (op == "aten.mul" and self._is_flags(args[1]))
            or keeping
            or (op == "aten.clamp" and len(args) == 2)  # from below
        ):
            self._shift(out, args[0], 0)

    def _begin(self, args: Any, out: torch.Tensor) -> None:
        start, end, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
        if step == 1 and all(isinstance(size, int | torch.SymInt) for size in (start, end)):
            self._last[id(out)] = out, end - 1

    def _shift(self, out: Any, source: Any, more: Any) -> None:
        last = self._last_of(source)
        if last is not None and isinstance(out, torch.Tensor):
            self._last[id(out)] = out, last + more

    def _last_of(self, tensor: Any) -> Any:
        return self._last[id(tensor)][1] if id(tensor) in self._last else None

    def _is_flags(self, value: Any) -> bool:
        boolean = isinstance(value, torch.Tensor) and value.dtype is torch.bool
        return boolean or id(value) in self._flags


def _goes_to_the_end(dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> bool:
    return step == 1 and (end is None or (isinstance(end, int) and end > END))
