"""What modules saw in two runs, compared in the cells that a law protects."""

from __future__ import annotations

import torch

from querykey.laws.run import Run
from querykey.laws.trial import Cells, Trial, deviation
from querykey.laws.understanding.facts import ModelFacts
from querykey.laws.understanding.signature import front, length_of


class ActivationComparison:
    """Finds batch and positions in any tensor by their sizes, and compares protected cells."""

    def __init__(self, facts: ModelFacts, trial: Trial):
        self.facts, self.trial = facts, trial
        signature = facts.signature
        main, other = signature.axis, [length_of(entry) for entry in signature.others()]
        self.views = [(self._sizes(main), trial.keep)]
        if other and trial.inside is not None:
            self.views.append((self._sizes(other[0]), trial.inside))
        elif trial.inside is not None:  # one answer per row: what still has positions comes first
            self.views.insert(0, (self._sizes(main), trial.inside))

    def _sizes(self, axis: str) -> tuple[tuple[int, int], tuple[int, int]]:
        return self._size(self.trial.first, axis), self._size(self.trial.second, axis)

    def _size(self, run: Run, axis: str) -> tuple[int, int]:
        """Return the number of rows of a run, and of positions along one length."""
        signature = self.facts.signature
        entry = next((e for e in signature.inputs if length_of(e) == axis), None)
        batch = signature.batch_of(run.inputs)
        if entry is None or not axis:
            return batch, 0
        return batch, front(entry, run.inputs[entry.name]).shape[1]

    def same(self, first: list[torch.Tensor], second: list[list[torch.Tensor]]) -> bool | None:
        """Return whether the protected cells agree; None where no tensor can be compared."""
        agree = None
        for index, tensor in enumerate(first):
            others = [tensors[index] for tensors in second if index < len(tensors)]
            if len(others) != len(second):
                continue
            for sizes, keep in self.views:
                answer = self._pair(tensor, others, sizes, keep)
                if answer is False:
                    return False
                if answer is not None:
                    agree = True
                    break
        return agree

    def _pair(
        self,
        tensor: torch.Tensor,
        others: list[torch.Tensor],
        sizes: tuple[tuple[int, int], tuple[int, int]],
        keep: tuple[Cells, Cells],
    ) -> bool | None:
        """Return whether the protected cells of one tensor agree; None if it has no such cells."""
        table = _is_table_of_positions(tensor, *sizes[0])
        tensor = _per_row(tensor[None] if table else tensor, *sizes[0])
        others = [_per_row(other[None] if table else other, sizes[1][0], 0) for other in others]
        axes = axes_of(tensor, *sizes[0], positions=keep[0].columns is not None)
        if axes is None or any(other.dim() != tensor.dim() for other in others):
            return None
        leading = list(range(len(axes)))
        first = tensor.movedim(axes, leading)
        parts = [other.movedim(axes, leading) for other in others]
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
        return deviation(*pair)[0] <= self.facts.threshold


def _is_table_of_positions(tensor: torch.Tensor, batch: int, length: int) -> bool:
    """Return whether a tensor has a line per position and no rows, as a table of angles has."""
    shape = list(tensor.shape)
    if not length or tensor.dim() < 2 or shape[0] != length or batch in shape[:2]:
        return False
    return length not in shape[1:] and tensor.is_floating_point()


def _per_row(tensor: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """Return a table of positions that all rows share, (1, T, ...), once per row.

    With length 0 every tensor whose first axis is 1 is spread: its counterpart was recognised.
    """
    shared = tensor.dim() >= 2 and tensor.shape[0] == 1 and batch != 1
    if shared and length in (0, tensor.shape[1]):
        return tensor.expand(batch, *tensor.shape[1:])
    return tensor


def axes_of(
    tensor: torch.Tensor, batch: int, length: int, positions: bool = True
) -> list[int] | None:
    """Return which axes are batch and positions; None where there is a second axis of positions."""
    shape = list(tensor.shape)
    if not length or not positions:
        return [shape.index(batch)] if batch in shape[:2] else None
    for axes in ([0, 1], [1, 0], [0, 2]):
        if max(axes) < len(shape) and [shape[a] for a in axes] == [batch, length]:
            rest = [size for a, size in enumerate(shape) if a not in axes]
            # Two axes of positions: a mask or weights of attention, whose columns are keys.
            return None if length in rest and tensor.dim() <= 4 else axes
    return None
