"""The guilty: the first, deepest module whose inputs agree where they must, and outputs do not."""

from __future__ import annotations

import inspect
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from querykey.laws.blaming.comparison import Comparison
from querykey.laws.blaming.masks_passed import hides, loser_of_mask
from querykey.laws.blaming.recorder import Call, Recorder
from querykey.laws.blaming.visibility import differing_masks, hides_enough
from querykey.laws.runner import Specimen
from querykey.laws.trial import Run, Trial

ROOT = "(model)"
Key = tuple[str, int]


@dataclass(frozen=True)
class Blame:
    """A module: where it sits, what it is, where it is written."""

    path: str
    source: str


def blame(specimen: Specimen, trial: Trial) -> Blame | None:
    """The guilty module of a trial that deviates, or None where no single one is."""
    sides = [_record(specimen, run) for run in (trial.first, trial.second)]
    compare = Comparison(specimen, trial)
    passes = _grouped(sides[1])
    unsure = None
    for key, call in _numbered(sides[0]):
        twins = passes.get(key)
        if twins is None:
            continue
        clean = compare.same(call.inputs, [twin.inputs for twin in twins])
        dirty = compare.same(call.outputs, [twin.outputs for twin in twins])
        if dirty is not False or clean is False:
            continue
        if clean is None:  # nothing of its inputs can be compared: its caller is asked next
            unsure = unsure or _parent(sides[0], call)
            continue
        suspects = [(sides[0], trial.first, call)]
        suspects += [(sides[1], trial.second, twin) for twin in twins]
        for recorder, run, each in suspects:
            loser = loser_of_mask(specimen, run, recorder, each)
            if loser:
                return describe(loser)
            shown = [t for t in each.inputs if hides_enough(specimen, run, t) is False]
            fine = [t for t in each.inputs if hides_enough(specimen, run, t)]
            if trial.second.chunks and each is not call:
                shown += differing_masks(call.inputs, each.inputs)
                fine = []
            if shown and not fine:
                return describe(_maker(recorder, each, shown))
        return describe(_keeper_of_state(specimen, trial, sides[1], twins) or call)
    return describe(unsure or sides[0].done[-1])


def describe(call: Call) -> Blame:
    """A module's path, class, file and line."""
    return Blame(call.path or ROOT, source_of(call.module))


def source_of(module: nn.Module) -> str:
    """Class, file and line of its forward."""
    kind = type(module)
    for place in (inspect.unwrap(kind.forward), kind):
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


def blame_exception(specimen: Specimen, run: Run) -> Blame | None:
    """The deepest module in which a call raises."""
    recorder = Recorder()
    try:
        with torch.no_grad():
            specimen.answer(run, recorder)
    except Exception:
        pass
    return describe(recorder.unfinished) if recorder.unfinished else None


def _record(specimen: Specimen, run: Run) -> Recorder:
    recorder = Recorder(keep_arguments=True)
    with torch.no_grad():
        specimen.answer(run, recorder)
    return recorder


def _numbered(recorder: Recorder) -> list[tuple[Key, Call]]:
    """Calls in order of completion, with (path, how many-th call of it in this pass)."""
    count: dict[str, int] = defaultdict(int)
    made = []
    for call in recorder.done:
        made.append(((call.path, count[call.path]), call))
        count[call.path] += 1
    return made


def _grouped(recorder: Recorder) -> dict[Key, list[Call]]:
    """Per (path, call within a pass), its calls in every pass: several where chunks were fed."""
    grouped: dict[Key, list[Call]] = defaultdict(list)
    count: dict[str, int] = defaultdict(int)
    for call in recorder.done:
        grouped[(call.path, count[call.path])].append(call)
        count[call.path] += 1
        if not call.path:  # the whole model is done: a pass is over
            count.clear()
    return grouped


def _parent(recorder: Recorder, call: Call) -> Call:
    return call if call.parent is None else recorder.begun[call.parent]


def _maker(recorder: Recorder, call: Call, masks: list[torch.Tensor]) -> Call:
    """Whoever made a mask that shows what it must hide: the first above that was not handed it."""
    while call.parent is not None and any(_holds(call, mask) for mask in masks):
        call = recorder.begun[call.parent]
    return call


def _holds(call: Call, mask: torch.Tensor) -> bool:
    return any(t.shape == mask.shape and _same_mask(t, mask) for t in call.inputs)


def _same_mask(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether they are equal, or one is the other as torch turns True into minus infinity."""
    if first.dtype == second.dtype or torch.bool not in (first.dtype, second.dtype):
        return torch.equal(first, second)
    return torch.equal(hides(first), hides(second))


def _keeper_of_state(
    specimen: Specimen, trial: Trial, recorder: Recorder, twins: list[Call]
) -> Call | None:
    """If what the module was handed is not the state that it gave out before, blame the one above.

    Only where chunks were fed: the state going into a chunk must be the one that came out.
    """
    batch = specimen.batch_of(trial.second.inputs)
    for before, call in pairwise(twins):
        given = [t for t in before.outputs if t.dim() >= 2 and batch in t.shape[:2]][1:]
        lost = call
        while lost.parent is not None and _tampered(given, lost, recorder.begun[lost.parent]):
            lost = recorder.begun[lost.parent]
        if lost is not call:
            return lost
    return None


def _tampered(given: list[torch.Tensor], call: Call, above: Call) -> bool:
    """Whether a state that was given out is handed in as another, in disorder, or not at all."""
    for shape in {state.shape for state in given}:
        states = [state for state in given if state.shape == shape]
        alike = [t for t in call.inputs if t.is_floating_point() and t.shape == shape]
        if len(alike) == len(states):
            if not all(map(torch.equal, alike, states)):
                return True
        elif not alike:  # its caller had it and kept it
            if any(torch.equal(t, states[0]) for t in above.inputs if t.shape == shape):
                return True
        elif not any(torch.equal(t, states[0]) for t in alike):
            return True
    return False
