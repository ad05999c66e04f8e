"""What modules saw in two runs, compared in the cells that a law protects."""

from __future__ import annotations

import torch

from querykey.laws.runner import Specimen
from querykey.laws.trial import Cells, Run, Trial, deviation
from querykey.laws.understanding.signature import length_of


class Comparison:
    """Finds batch and positions in any tensor by their sizes, and compares protected cells."""

    def __init__(self, specimen: Specimen, trial: Trial):
        self.specimen, self.trial = specimen, trial
        main, other = specimen.anatomy.axis, [length_of(e) for e in specimen.anatomy.others()]
        self.views = [(self._sizes(main), trial.keep)]
        if other and trial.inside is not None:
            self.views.append((self._sizes(other[0]), trial.inside))
        elif trial.inside is not None:  # one answer per row: what still has positions comes first
            self.views.insert(0, (self._sizes(main), trial.inside))

    def _sizes(self, axis: str) -> tuple[tuple[int, int], tuple[int, int]]:
        return self._size(self.trial.first, axis), self._size(self.trial.second, axis)

    def _size(self, run: Run, axis: str) -> tuple[int, int]:
        each = next((e for e in self.specimen.anatomy.inputs if length_of(e) == axis), None)
        batch = self.specimen.batch_of(run.inputs)
        if each is None or not axis:
            return batch, 0
        return batch, self.specimen.front(each, run.inputs[each.name]).shape[1]

    def same(self, first: list[torch.Tensor], second: list[list[torch.Tensor]]) -> bool | None:
        """Whether the protected cells agree; None where no tensor can be compared."""
        told = None
        for index, tensor in enumerate(first):
            others = [each[index] for each in second if index < len(each)]
            if len(others) != len(second):
                continue
            for sizes, keep in self.views:
                answer = self._pair(tensor, others, sizes, keep)
                if answer is False:
                    return False
                if answer is not None:
                    told = True
                    break
        return told

    def _pair(
        self,
        tensor: torch.Tensor,
        others: list[torch.Tensor],
        sizes: tuple[tuple[int, int], tuple[int, int]],
        keep: tuple[Cells, Cells],
    ) -> bool | None:
        tensor = _per_row(tensor, *sizes[0])
        others = [_per_row(other, sizes[1][0], 0) for other in others]
        axes = axes_of(tensor, *sizes[0], positions=keep[0].columns is not None)
        if axes is None or any(other.dim() != tensor.dim() for other in others):
            return None
        front = list(range(len(axes)))
        first = tensor.movedim(axes, front)
        parts = [other.movedim(axes, front) for other in others]
        try:
            second = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            if list(second.shape[: len(axes)]) != list(sizes[1][: len(axes)]):
                return None
            pair = keep[0].of(first), keep[1].of(second)
        except (RuntimeError, IndexError):
            return None
        if pair[0].shape != pair[1].shape:
            return None
        if not tensor.is_floating_point():
            return bool((pair[0] == pair[1]).all())
        return deviation(*pair)[0] <= self.specimen.threshold


def _per_row(tensor: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """A table of positions that all rows share, as (1, T, ...), once per row; others as they are.

    With length 0 any tensor whose first axis is 1 is spread: its twin was already recognised.
    """
    shared = tensor.dim() >= 2 and tensor.shape[0] == 1 and batch != 1
    if shared and length in (0, tensor.shape[1]):
        return tensor.expand(batch, *tensor.shape[1:])
    return tensor


def axes_of(
    tensor: torch.Tensor, batch: int, length: int, positions: bool = True
) -> list[int] | None:
    """Which axes are batch and positions: one of each, and no second axis of positions."""
    shape = list(tensor.shape)
    if not length or not positions:
        return [shape.index(batch)] if batch in shape[:2] else None
    for axes in ([0, 1], [1, 0], [0, 2]):
        if max(axes) < len(shape) and [shape[a] for a in axes] == [batch, length]:
            rest = [size for a, size in enumerate(shape) if a not in axes]
            # Two axes of positions: a mask or weights of attention, whose columns are keys.
            return None if length in rest and tensor.dim() <= 4 else axes
    return None
