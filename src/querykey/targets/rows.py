"""Which axis is the batch, where a layer takes positions first: found by changing one row.

A model around such a layer may take positions first, too, or turn its inputs itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from querykey.targets.inputs import Input, examples, floating

Call = Callable[[dict[str, Any]], Any]
ROWS, LENGTH = 2, 7


def with_batch_found(inputs: tuple[Input, ...], call: Call) -> tuple[Input, ...]:
    """The inputs as named, or with the batch first where only that keeps rows apart."""
    turned = tuple(_turned(each) for each in inputs)
    if turned == inputs or _keeps_rows_apart(inputs, call):
        return inputs
    return turned if _keeps_rows_apart(turned, call) else inputs


def _turned(each: Input) -> Input:
    if each.axes[1:2] != ("batch",):
        return each
    return replace(each, axes=("batch", each.axes[0], *each.axes[2:]))


def _keeps_rows_apart(inputs: tuple[Input, ...], call: Call) -> bool:
    """Whether a row that changes changes the answer of that row, and of no other."""
    made, other = (examples(inputs, ROWS, LENGTH, seed) for seed in (0, 1))
    before = _answer(call, made)
    for row in range(ROWS):
        changed = {e.name: _with_row(e, made[e.name], other[e.name], row) for e in inputs}
        after = _answer(call, changed)
        if before is None or after is None or before.shape != after.shape:
            return False
        differs = before != after
        axes = [axis for axis, size in enumerate(differs.shape) if size == ROWS]
        if not any(differs.movedim(a, 0)[row].any() for a in axes):
            return False
        if all(differs.movedim(a, 0)[1 - row].any() for a in axes):
            return False
    return True


def _with_row(each: Input, value: Any, other: Any, row: int) -> Any:
    if "batch" not in each.axes or each.kind == "mask":
        return value
    index = torch.tensor([row])
    place = each.axes.index("batch")
    return value.index_copy(place, index, other.index_select(place, index))


def _answer(call: Call, given: dict[str, Any]) -> torch.Tensor | None:
    """The first floating tensor that comes out, or None where it does not run so."""
    try:
        return next(floating(call(given)), None)
    except (Exception, SystemExit):
        return None
