"""An experiment: two runs of a model, the cells that must agree, and those that must change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

import torch

from querykey.errors import WrongTypeError
from querykey.laws.blaming.guilty_module import GuiltyModule
from querykey.laws.blaming.recorder import ModuleCall
from querykey.laws.run import PLAIN, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.understanding.outputs import tensors
from querykey.words import check_fields, checked

CHANCES = (1, 2, 3, 4)  # other random numbers with which training mode is tried


@dataclass(frozen=True)
class Cells:
    """Some (row, position) pairs of an answer; `columns` is None where it has no positions."""

    rows: tuple[int, ...]
    columns: tuple[int, ...] | None

    def __post_init__(self):
        check_fields(self)

    def of(self, answer: torch.Tensor) -> torch.Tensor:
        """Return these cells of an answer, one per line."""
        rows = torch.tensor(self.rows, dtype=torch.long)
        if self.columns is None or answer.dim() < 2:
            return answer[rows]
        return answer[rows, torch.tensor(self.columns, dtype=torch.long)]

    def where(self, chosen: Sequence[bool]) -> Cells:
        """Return those of the cells that are chosen."""
        columns = None if self.columns is None else tuple(compress(self.columns, chosen))
        return Cells(tuple(compress(self.rows, chosen)), columns)

    def __len__(self) -> int:
        return len(self.rows)


@checked
def cells(pairs: Sequence[tuple[int, int]]) -> Cells:
    """Return the cells at these (row, position) pairs."""
    return Cells(tuple(r for r, _ in pairs), tuple(c for _, c in pairs))


@checked
def every_cell(rows: Iterable[int], positions: Iterable[int]) -> Cells:
    """Return the cells of all these rows at all these positions."""
    positions = list(positions)
    return cells([(row, position) for row in rows for position in positions])


@checked
def rows(indices: Sequence[int]) -> Cells:
    """Return whole rows, for answers without positions."""
    return Cells(tuple(indices), None)


@dataclass(frozen=True)
class Trial:
    """Two runs: the cells `keep` of both must agree, and the cells `move` must differ.

    `what` says what differs between the runs, as a clause after "when". Where nothing in `move`
    differs the change had no effect, and the trial shows nothing.
    """

    first: Run
    second: Run
    keep: tuple[Cells, Cells]
    move: tuple[Cells, Cells] | None = None
    what: str = ""
    inside: tuple[Cells, Cells] | None = None  # what must agree along the other inputs' length
    advice: bool = False  # a deviation is worth a word of advice, and breaks no law

    @property
    def setting(self) -> Setting:
        """The setting of the second run, which is the varied one."""
        return self.second.setting


@dataclass(frozen=True)
class Evidence:
    """Where a deviation is largest, the trial that shows it, and the module to blame if known."""

    where: dict[str, int] = field(default_factory=dict)
    trial: Trial | None = None
    module: GuiltyModule | ModuleCall | None = None


@dataclass(frozen=True)
class Outcome:
    """What one experiment showed: a relative deviation, and a sentence that says what it means.

    `control` is how much moved of what may move, and None where no control is needed.
    """

    deviation: float
    note: str = ""
    setting: Setting = PLAIN
    control: float | None = None
    evidence: Evidence = Evidence()
    advice: bool = False  # a deviation is worth a word of advice, and breaks no law

    def __post_init__(self):
        check_fields(self)

    @property
    def question(self) -> str:
        """What was tried, in words that do not depend on the numbers that came out."""
        return self.evidence.trial.what if self.evidence.trial else self.note


def conduct(runner: Runner, trial: Trial) -> Outcome:
    """Run a trial and measure how far its cells deviate."""
    first, second = runner.remembered(trial.first), runner.remembered(trial.second)
    worst, index = deviation(trial.keep[0].of(first), trial.keep[1].of(second))
    control = None
    if trial.move is not None:
        control = deviation(trial.move[0].of(first), trial.move[1].of(second))[0]
    where = {"sample": trial.keep[0].rows[index]}
    if trial.keep[0].columns is not None:
        where["position"] = trial.keep[0].columns[index]
    note = f"{place_in_words(where)} {moved_in_words(worst)} when {trial.what}"
    evidence = Evidence(where, trial)
    return Outcome(worst, note, trial.setting, control, evidence, trial.advice)


def is_left_to_chance(runner: Runner, trial: Trial) -> bool:
    """Return whether training mode draws numbers that move the answers of runs of two sizes.

    Runs of one size draw the same numbers, and runs of two sizes do not.
    """
    runs = (trial.first, trial.second)
    sizes = [[v.shape for _, v in tensors(run.inputs)] for run in runs]
    if not trial.setting.train or sizes[0] == sizes[1]:
        return False
    for run, keep in zip(runs, trial.keep, strict=True):
        for seed in CHANCES:
            conditions = replace(run.setting.conditions, reseeded=seed)
            other = replace(run, setting=replace(run.setting, conditions=conditions))
            drawn = [keep.of(runner.remembered(one)) for one in (run, other)]
            if deviation(*drawn)[0] > runner.facts.threshold:
                return True
    return False


def place_in_words(where: dict[str, int]) -> str:
    """Return a place in an answer as the subject of a sentence."""
    if "position" in where:
        return f"the answer at position {where['position']} of row {where['sample']}"
    return f"the answer for row {where['sample']}"


def moved_in_words(size: float) -> str:
    """Return a relative deviation as the verb of a sentence."""
    if not math.isfinite(size):
        return "changed its shape or is not finite"
    return f"moved by {size:.2g}"


@checked
def deviation(first: torch.Tensor, second: torch.Tensor) -> tuple[float, int]:
    """Return the largest difference relative to the typical size, and the line that it is in.

    Two values that are both NaN, or the same infinity, agree.
    """
    for answer in (first, second):
        if answer.is_meta or answer.layout is not torch.strided:
            raise WrongTypeError("answers are compared by their numbers: dense, and not on meta")
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
