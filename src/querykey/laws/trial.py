"""An experiment: two runs of a model, the cells that must agree, and those that must not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any

import torch

from querykey.laws.understanding.copies import Inputs, Setting
from querykey.laws.understanding.outputs import Slot

if TYPE_CHECKING:
    from querykey.laws.runner import Specimen


PLAIN = Setting()


@dataclass(frozen=True)
class Run:
    """One way to an answer: a single call, or one per chunk with the cache handed on."""

    inputs: Inputs
    setting: Setting = PLAIN
    chunks: tuple[int, ...] | None = None
    masked: bool = False  # every chunk is given a mask over all tokens so far
    slot: Slot | None = None  # the output that is asked, where it is not the main one


@dataclass(frozen=True)
class Cells:
    """Which (row, position) pairs of an answer; no positions where it has none."""

    rows: tuple[int, ...]
    columns: tuple[int, ...] | None

    def of(self, answer: torch.Tensor) -> torch.Tensor:
        """Those cells, one per line."""
        rows = torch.tensor(self.rows, dtype=torch.long)
        if self.columns is None or answer.dim() < 2:
            return answer[rows]
        return answer[rows, torch.tensor(self.columns, dtype=torch.long)]

    def where(self, chosen: Sequence[bool]) -> Cells:
        """Those of them that are chosen."""
        columns = None if self.columns is None else tuple(compress(self.columns, chosen))
        return Cells(tuple(compress(self.rows, chosen)), columns)

    def __len__(self) -> int:
        return len(self.rows)


def cells(pairs: list[tuple[int, int]]) -> Cells:
    """Cells from (row, position) pairs."""
    return Cells(tuple(r for r, _ in pairs), tuple(c for _, c in pairs))


def rows(indices: list[int]) -> Cells:
    """Whole rows, for answers without positions."""
    return Cells(tuple(indices), None)


@dataclass(frozen=True)
class Trial:
    """Run `first` and `second`; `keep` must agree, and `move` must change, else it says nothing."""

    first: Run
    second: Run
    keep: tuple[Cells, Cells]
    move: tuple[Cells, Cells] | None = None
    what: str = ""  # the change, in words
    inside: tuple[Cells, Cells] | None = None  # what must agree over the other inputs' length
    advice: bool = False  # a deviation is worth a word, and no breach

    @property
    def setting(self) -> Setting:
        """The setting of the second run, which is the varied one."""
        return self.second.setting


@dataclass(frozen=True)
class Outcome:
    """What one trial showed."""

    deviation: float
    control: float | None  # how much moved of what may move; None where no control is needed
    setting: Setting = PLAIN
    where: dict[str, int] = field(default_factory=dict)
    trial: Trial | None = None
    note: str = ""
    module: Any = None  # a Blame, where the law knows it itself
    advice: bool = False  # a deviation is worth a word, and no breach
    base: Setting = PLAIN  # the setting that the law was asked to try


def conduct(specimen: Specimen, trial: Trial) -> Outcome:
    """Run a trial and measure it."""
    first, second = specimen.remembered(trial.first), specimen.remembered(trial.second)
    kept = trial.keep[0].of(first), trial.keep[1].of(second)
    worst, index = deviation(*kept)
    control = None
    if trial.move is not None:
        control = deviation(trial.move[0].of(first), trial.move[1].of(second))[0]
    where = {"sample": trial.keep[0].rows[index]}
    if trial.keep[0].columns is not None:
        where["position"] = trial.keep[0].columns[index]
    return Outcome(worst, control, trial.setting, where, trial, trial.what, advice=trial.advice)


def deviation(first: torch.Tensor, second: torch.Tensor) -> tuple[float, int]:
    """The largest difference relative to the typical size, and the line it is in.

    Two values that are both NaN, or the same infinity, agree.
    """
    first, second = first.detach().double(), second.detach().double()
    if first.shape != second.shape:
        return math.inf, 0
    if first.numel() == 0:
        return 0.0, 0
    same = (first == second) | (first.isnan() & second.isnan())
    finite = first[first.isfinite()]
    size = float(finite.pow(2).mean().sqrt()) if finite.numel() else 0.0
    gap = torch.where(same, 0.0, (first - second).abs())
    lines = gap.flatten(1).amax(1) if gap.dim() > 1 else gap
    lines = torch.where(lines.isnan(), math.inf, lines)
    index = int(lines.argmax())
    worst = float(lines[index])
    return (worst / size if worst and size else worst), index
