"""Find which axis is the batch, where a layer takes positions first, by changing one row.

A model around such a layer may take positions first too, or transpose its inputs itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from querykey.targets.inputs import Input, examples
from querykey.targets.trial import floating

Run = Callable[[dict[str, Any]], Any]
ROWS, LENGTH = 2, 7


def with_batch_found(inputs: tuple[Input, ...], run: Run) -> tuple[Input, ...]:
    """Return the inputs as they are, or with the batch first where only that keeps rows apart."""
    swapped = tuple(_batch_first(one) for one in inputs)
    if swapped == inputs or _keeps_rows_apart(inputs, run):
        return inputs
    return swapped if _keeps_rows_apart(swapped, run) else inputs


def _batch_first(one: Input) -> Input:
    if one.axes[1:2] != ("batch",):
        return one
    return replace(one, axes=("batch", one.axes[0], *one.axes[2:]))


def _keeps_rows_apart(inputs: tuple[Input, ...], run: Run) -> bool:
    """Return whether changing a row changes the output of that row, and of no other."""
    values, others = (examples(inputs, ROWS, LENGTH, seed) for seed in (0, 1))
    before = _output(run, values)
    for row in range(ROWS):
        changed = {i.name: _with_row(i, values[i.name], others[i.name], row) for i in inputs}
        after = _output(run, changed)
        if before is None or after is None or before.shape != after.shape:
            return False
        differs = before != after
        axes = [axis for axis, size in enumerate(differs.shape) if size == ROWS]
        if not any(differs.movedim(a, 0)[row].any() for a in axes):
            return False
        if all(differs.movedim(a, 0)[1 - row].any() for a in axes):
            return False
    return True


def _with_row(one: Input, value: Any, other: Any, row: int) -> Any:
    if "batch" not in one.axes or one.kind == "mask":
        return value
    index = torch.tensor([row])
    axis = one.axes.index("batch")
    return value.index_copy(axis, index, other.index_select(axis, index))


def _output(run: Run, values: dict[str, Any]) -> torch.Tensor | None:
    """Return the first floating output, or None where the model does not run on these values."""
    try:
        return next(floating(run(values)), None)
    except (Exception, SystemExit):
        return None
