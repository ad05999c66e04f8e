"""Two runs that call the same modules in the same order: the first module where they part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import torch

from querykey.laws.blaming.guilty_module import GuiltyModule, describe
from querykey.laws.blaming.recorder import ModuleCall, Recorder
from querykey.laws.trial import deviation


def first_difference(
    first: Recorder, second: Recorder, threshold: float, renamed: bool = False
) -> GuiltyModule | None:
    """Return the first, deepest module whose inputs agree in both runs and whose outputs do not.

    `renamed`: whole numbers are ids that were renamed, so only floats and masks are compared.
    """
    others = dict(numbered(second))
    for key, call in numbered(first):
        other = others.get(key)
        if other is None or not agree(call.inputs, other.inputs, threshold, renamed):
            continue
        if not agree(call.outputs, other.outputs, threshold, renamed):
            return describe(call)
    return None


def numbered(recorder: Recorder) -> Iterator[tuple[tuple[str, int], ModuleCall]]:
    """Yield calls as they ended, each with its path and how often that was called before."""
    count: dict[str, int] = defaultdict(int)
    for call in recorder.done:
        yield (call.path, count[call.path]), call
        count[call.path] += 1


def agree(
    first: list[torch.Tensor], second: list[torch.Tensor], threshold: float, renamed: bool
) -> bool:
    """Return whether two lists of tensors hold the same numbers."""
    if renamed:
        first, second = ([t for t in part if _no_ids(t)] for part in (first, second))
    return len(first) == len(second) and all(
        deviation(a, b)[0] <= threshold for a, b in zip(first, second, strict=True)
    )


def _no_ids(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds floats or a mask, and no ids."""
    return tensor.is_floating_point() or tensor.dtype is torch.bool
