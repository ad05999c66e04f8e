"""Finding the guilty module: the first, deepest one whose inputs agree and whose outputs do not."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import torch
from torch import nn

from querykey.laws.blaming.comparison import ActivationComparison
from querykey.laws.blaming.guilty_module import GuiltyModule, describe, guilty_part
from querykey.laws.blaming.masks_passed import (
    differing_masks,
    hides,
    hides_enough,
    module_without_mask,
    withheld,
)
from querykey.laws.blaming.pairwise import first_difference, numbered
from querykey.laws.blaming.recorder import ModuleCall, Recorder
from querykey.laws.run import Run
from querykey.laws.runner import Runner
from querykey.laws.trial import Trial
from querykey.laws.understanding.facts import ModelFacts

Key = tuple[str, int]
ATTENTION = (
    nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer,
    nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer,
)  # fmt: skip


def blame(runner: Runner, trial: Trial) -> GuiltyModule | None:
    """Return the guilty module of a trial that deviates."""
    first, second = (_record(runner, run) for run in (trial.first, trial.second))
    if trial.first.chunks and trial.second.chunks:
        first, second = _after_one_chunk(first), _after_one_chunk(second)
        guilty = first_difference(first, second, runner.facts.threshold)
        return guilty or describe(second.done[-1])  # what goes into every module is wrong already
    comparison = ActivationComparison(runner.facts, trial)
    passes = _grouped(second)
    unsure = None
    for key, call in numbered(first):
        counterparts = passes.get(key)
        if counterparts is None:
            continue
        clean = comparison.same(call.inputs, [other.inputs for other in counterparts])
        dirty = comparison.same(call.outputs, [other.outputs for other in counterparts])
        if dirty is not False or clean is False:
            continue
        if clean is None:  # nothing of its inputs can be compared: its caller is asked next
            if not call.inputs and not trial.second.chunks:  # it was told a number at most
                return describe(call)
            unsure = unsure or _parent(first, call)
            continue
        suspects = [(first, trial.first, call)]
        suspects += [(second, trial.second, other) for other in counterparts]
        chunked = bool(trial.second.chunks)
        for recorder, run, suspect in suspects:
            whole = call if chunked and suspect is not call else None
            passer = _passer_of_mask(runner.facts, recorder, run, suspect, whole)
            if passer:
                return describe(passer)
        keeper = _keeper_of_state(runner.facts, trial, second, counterparts)
        return describe(keeper or _user_of_torchs(first, call))
    if not first.done:  # TorchScript's calls are not seen
        return guilty_part(runner.copies.model, "")
    return describe(unsure or first.done[-1])


def blame_exception(runner: Runner, run: Run, dtype: torch.dtype) -> GuiltyModule | None:
    """Return the module whose output left this precision, else the one in which a call raises."""
    recorder = Recorder()
    try:
        with torch.no_grad():
            runner.answer(run, recorder)
    except Exception:
        pass
    raised = recorder.unfinished
    if raised is None:
        return None
    shapes = {t.shape for t in _others_than(raised.inputs, dtype)}
    leaving = [
        call
        for call in recorder.done
        if _others_than(call.outputs, dtype) and not _others_than(call.inputs, dtype)
    ]
    alike = [c for c in leaving if shapes & {t.shape for t in _others_than(c.outputs, dtype)}]
    return describe([*alike, *leaving, raised][0])


def _others_than(several: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the floating tensors that are not of this precision."""
    return [t for t in several if t.is_floating_point() and t.dtype is not dtype]


def _record(runner: Runner, run: Run) -> Recorder:
    recorder = Recorder(keep_arguments=True)
    with torch.no_grad():
        runner.answer(run, recorder)
    return recorder


def _after_one_chunk(recorder: Recorder) -> Recorder:
    """Return the calls behind the first whole pass, after which the cache was changed."""
    ends = [place for place, call in enumerate(recorder.done) if not call.path]
    return Recorder(begun=recorder.begun, done=recorder.done[ends[0] + 1 if ends else 0 :])


def _grouped(recorder: Recorder) -> dict[Key, list[ModuleCall]]:
    """Return, by path and number in a pass, the calls of every pass: one pass per chunk."""
    grouped: dict[Key, list[ModuleCall]] = defaultdict(list)
    count: dict[str, int] = defaultdict(int)
    for call in recorder.done:
        grouped[(call.path, count[call.path])].append(call)
        count[call.path] += 1
        if not call.path:  # the whole model is done: a pass is over
            count.clear()
    return grouped


def _parent(recorder: Recorder, call: ModuleCall) -> ModuleCall:
    return call if call.parent is None else recorder.begun[call.parent]


def _passer_of_mask(
    facts: ModelFacts,
    recorder: Recorder,
    run: Run,
    suspect: ModuleCall,
    whole: ModuleCall | None,
) -> ModuleCall | None:
    """Return the call that passed a wrong mask, or none, to the suspect; None where masks are fine.

    `whole` is the same module's call without chunks, where the suspect is one of a chunk.
    """
    dropper = module_without_mask(facts, run, recorder, suspect)
    if dropper:
        return dropper
    if withheld(facts, run, recorder, suspect):
        while suspect.parent is not None and withheld(facts, run, recorder, suspect):
            suspect = recorder.begun[suspect.parent]
        return suspect
    wrong = [t for t in suspect.inputs if hides_enough(facts, run, t) is False]
    fine = [t for t in suspect.inputs if hides_enough(facts, run, t)]
    if whole is not None:
        wrong += differing_masks(whole.inputs, suspect.inputs)
        fine = []
    return _maker(recorder, suspect, wrong) if wrong and not fine else None


def _maker(recorder: Recorder, call: ModuleCall, masks: list[torch.Tensor]) -> ModuleCall:
    """Return the first caller above that did not itself get one of these masks: it made them."""
    above, highest = [call], 0
    while above[-1].parent is not None:
        above.append(recorder.begun[above[-1].parent])
        if any(_holds(above[-1], mask) for mask in masks):
            highest = len(above) - 1  # a caller between may hand it on inside of a function
    return above[min(highest + 1, len(above) - 1)]


def _user_of_torchs(recorder: Recorder, call: ModuleCall) -> ModuleCall:
    """Return the first caller that is no attention of torch's own: that does as it is told."""
    while isinstance(call.module, ATTENTION) and call.parent is not None:
        call = recorder.begun[call.parent]
    return call


def _holds(call: ModuleCall, mask: torch.Tensor) -> bool:
    return any(t.shape == mask.shape and _same_mask(t, mask) for t in call.inputs)


def _same_mask(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether masks are equal, or one is the other with True turned into minus infinity."""
    if first.dtype == second.dtype or torch.bool not in (first.dtype, second.dtype):
        return torch.equal(first, second)
    return torch.equal(hides(first), hides(second))


def _keeper_of_state(
    facts: ModelFacts, trial: Trial, recorder: Recorder, calls: list[ModuleCall]
) -> ModuleCall | None:
    """Return the caller that did not pass on the state which the module returned before.

    Only where chunks were fed: the state going into a chunk must be the one that came out.
    """
    batch = facts.signature.batch_of(trial.second.inputs)
    for before, call in pairwise(calls):
        returned = [t for t in before.outputs if t.dim() >= 2 and batch in t.shape[:2]][1:]
        keeper = call
        while keeper.parent is not None:
            above = recorder.begun[keeper.parent]
            if not _changed_state(returned, keeper, above):
                break
            keeper = above
        if keeper is not call:
            return keeper
    return None


def _changed_state(states: list[torch.Tensor], call: ModuleCall, above: ModuleCall) -> bool:
    """Return whether a returned state is passed in changed, in another order, or not at all."""
    for shape in {state.shape for state in states}:
        returned = [state for state in states if state.shape == shape]
        passed = [t for t in call.inputs if t.is_floating_point() and t.shape == shape]
        if len(passed) == len(returned):
            if not all(map(torch.equal, passed, returned)):
                return True
        elif not passed:  # its caller had it and kept it
            if any(torch.equal(t, returned[0]) for t in above.inputs if t.shape == shape):
                return True
        elif not any(torch.equal(t, returned[0]) for t in passed):
            return True
    return False
