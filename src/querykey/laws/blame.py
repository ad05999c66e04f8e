"""Who is guilty: the first, deepest module whose inputs agree where they must, and outputs do not."""

from __future__ import annotations

import inspect
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from querykey.laws.recorder import Call, Recorder
from querykey.laws.specimen import Specimen
from querykey.laws.trial import Run, Trial, deviation

ROOT = "(model)"


@dataclass(frozen=True)
class Blame:
    """A module: where it sits, what it is, where it is written."""

    path: str
    source: str


def blame(specimen: Specimen, trial: Trial) -> Blame | None:
    """The guilty module of a trial that deviates, or None where no single one is."""
    sides = [_record(specimen, run) for run in (trial.first, trial.second)]
    sizes = [_sizes(specimen, run) for run in (trial.first, trial.second)]
    compare = _Comparison(specimen, trial, sizes)
    pending = _grouped(sides[1])
    for key, call in _numbered(sides[0]):
        twins = pending.get(key)
        if twins is None:
            continue
        clean = compare.same([call.inputs], [twin.inputs for twin in twins])
        dirty = compare.same([call.outputs], [twin.outputs for twin in twins])
        if dirty is False and clean is not False:
            guilty = call if clean else _caller(sides[0], call)
            return describe(_maker_of_mask(sides[0], guilty, compare))
    return None


def describe(call: Call) -> Blame:
    """A module's path, class, file and line."""
    return Blame(call.path or ROOT, source_of(call.module))


def source_of(module: nn.Module) -> str:
    """Class, file and line of its forward."""
    kind = type(module)
    for place in (kind.forward, kind):
        try:
            file, line = inspect.getsourcefile(place), inspect.getsourcelines(place)[1]
        except (OSError, TypeError):
            continue
        return f"{kind.__name__}, {short(file or '')}:{line}"
    return kind.__name__


def short(file: str) -> str:
    """A path from its package on, or from the current folder."""
    parts = Path(file).parts
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except ValueError:
        return parts[-1] if parts else file


def _record(specimen: Specimen, run: Run) -> Recorder:
    recorder = Recorder()
    with torch.no_grad():
        specimen.answer(run, recorder)
    return recorder


def _numbered(recorder: Recorder) -> list[tuple[tuple[str, int], Call]]:
    """Calls in order of completion, with (path, how many-th call of it in this pass)."""
    count: dict[str, int] = defaultdict(int)
    made = []
    for call in recorder.done:
        made.append(((call.path, count[call.path]), call))
        count[call.path] += 1
    return made


def _grouped(recorder: Recorder) -> dict[tuple[str, int], list[Call]]:
    """Per (path, call within a pass), its calls in every pass: several where chunks were fed."""
    grouped: dict[tuple[str, int], list[Call]] = defaultdict(list)
    count: dict[str, int] = defaultdict(int)
    for call in recorder.done:
        grouped[(call.path, count[call.path])].append(call)
        count[call.path] += 1
        if not call.path:  # the whole model is done: a pass is over
            count.clear()
    return grouped


def _sizes(specimen: Specimen, run: Run) -> tuple[int, int]:
    batch = specimen.batch_of(run.inputs)
    return batch, specimen.length_of(run.inputs) if specimen.anatomy.axis else 0


class _Comparison:
    """Compares what modules saw in both runs, in the cells that the law protects."""

    def __init__(self, specimen: Specimen, trial: Trial, sizes: list[tuple[int, int]]):
        self.specimen, self.trial, self.sizes = specimen, trial, sizes

    def same(
        self, first: list[list[torch.Tensor]], second: list[list[torch.Tensor]]
    ) -> bool | None:
        """Whether the protected cells agree; None where no tensor can be compared."""
        told = None
        for index, tensor in enumerate(first[0]):
            others = [calls[index] for calls in second if index < len(calls)]
            if len(others) != len(second):
                continue
            answer = self._pair(tensor, others)
            if answer is False:
                return False
            told = told if answer is None else True
        return told

    def _pair(self, tensor: torch.Tensor, others: list[torch.Tensor]) -> bool | None:
        axes = self._axes(tensor)
        if axes is None or any(other.dim() != tensor.dim() for other in others):
            return None
        first = tensor.movedim(axes, list(range(len(axes))))
        parts = [other.movedim(axes, list(range(len(axes)))) for other in others]
        try:
            second = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        except RuntimeError:
            return None
        expected = [self.sizes[1][0], self.sizes[1][1]][: len(axes)]
        if list(second.shape[: len(axes)]) != expected:
            return None
        keep = self.trial.keep
        if len(axes) == 2 and keep[0].columns is None:
            first, second = first.flatten(1), second.flatten(1)
        try:
            pair = keep[0].of(first), keep[1].of(second)
        except IndexError:
            return None
        if pair[0].shape != pair[1].shape:
            return None
        if not tensor.is_floating_point():
            return bool((pair[0] == pair[1]).all())
        return deviation(*pair)[0] <= self.specimen.threshold

    def _axes(self, tensor: torch.Tensor) -> list[int] | None:
        """Which axes are batch and positions, by their sizes: rows first, one of each."""
        batch, length = self.sizes[0]
        shape = list(tensor.shape)
        if not length or self.trial.keep[0].columns is None:
            return [shape.index(batch)] if batch in shape[:2] else None
        for axes in ([0, 1], [1, 0], [0, 2]):
            if max(axes) < len(shape) and [shape[a] for a in axes] == [batch, length]:
                rest = [size for a, size in enumerate(shape) if a not in axes]
                # Two position axes: a mask or weights of attention, where columns mean keys.
                return None if length in rest and tensor.dim() <= 4 else axes
        return None


def _caller(recorder: Recorder, call: Call) -> Call:
    """Where a module's inputs cannot be compared, whoever called it is nearer to the truth."""
    return call if call.parent is None else recorder.begun[call.parent]


def _maker_of_mask(recorder: Recorder, guilty: Call, compare: _Comparison) -> Call:
    """If the module was handed a mask that lets the future through, blame whoever made it."""
    if not compare.specimen.causal or compare.trial.keep[0].columns is None:
        return guilty
    length = compare.sizes[0][1]
    masks = [t for t in guilty.inputs if _is_mask(t, length) and not _is_causal(t)]
    if not masks:
        return guilty
    call = guilty
    while call.parent is not None and any(_holds(call, mask) for mask in masks):
        call = recorder.begun[call.parent]
    return call


def _is_mask(tensor: torch.Tensor, length: int) -> bool:
    return tensor.dim() >= 2 and tuple(tensor.shape[-2:]) == (length, length)


def _is_causal(mask: torch.Tensor) -> bool:
    """Whether no later key is as visible as the query's own, whichever way visible is written."""
    table = mask.reshape(-1, *mask.shape[-2:])[0]
    own = table.diagonal()
    later = torch.ones_like(table, dtype=torch.bool).triu(1)
    return not bool((table == own[:, None])[later].any())


def _holds(call: Call, mask: torch.Tensor) -> bool:
    return any(t.shape == mask.shape and torch.equal(t, mask) for t in call.inputs)


def blame_exception(specimen: Specimen, run: Run) -> Any:
    """The deepest module in which a call raises."""
    recorder = Recorder()
    try:
        with torch.no_grad():
            specimen.answer(run, recorder)
    except Exception:
        pass
    return describe(recorder.unfinished) if recorder.unfinished else None
