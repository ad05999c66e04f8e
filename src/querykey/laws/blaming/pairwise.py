"""Two runs that call the same modules in the same order: the first module where they part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import torch

from querykey.laws.blaming.guilty_module import GuiltyModule, describe
from querykey.laws.blaming.recorder import ModuleCall, Recorder
from querykey.laws.trial import deviation


def first_difference(
    first: Recorder, second: Recorder, threshold: float, renaming: torch.Tensor | None = None
) -> GuiltyModule | None:
    """Return the first, deepest module whose inputs agree in both runs and whose outputs do not.

    `renaming`: the new name of every id, which whole numbers of the second run may have.
    """
    others = dict(numbered(second))
    for key, call in numbered(first):
        other = others.get(key)
        if other is None or not agree(call.inputs, other.inputs, threshold, renaming):
            continue
        if not agree(call.outputs, other.outputs, threshold, renaming):
            return describe(call)
    return None


def numbered(recorder: Recorder) -> Iterator[tuple[tuple[str, int], ModuleCall]]:
    """Yield calls as they ended, each with its path and how often that was called before."""
    count: dict[str, int] = defaultdict(int)
    for call in recorder.done:
        yield (call.path, count[call.path]), call
        count[call.path] += 1


def agree(
    first: list[torch.Tensor],
    second: list[torch.Tensor],
    threshold: float,
    renaming: torch.Tensor | None,
) -> bool:
    """Return whether two lists of tensors hold the same numbers, or ids by their new names."""
    return len(first) == len(second) and all(
        deviation(a, b)[0] <= threshold or (renaming is not None and _renamed(a, b, renaming))
        for a, b in zip(first, second, strict=True)
    )


def _renamed(first: torch.Tensor, second: torch.Tensor, renaming: torch.Tensor) -> bool:
    """Return whether a tensor holds the ids of another one by their new names."""
    whole = not (first.is_floating_point() or first.is_complex() or first.dtype is torch.bool)
    if not whole or first.shape != second.shape:
        return False
    known = (first >= 0) & (first < len(renaming))
    ids = first.long()
    return torch.equal(torch.where(known, renaming[ids.clamp(0, len(renaming) - 1)], ids), second)
