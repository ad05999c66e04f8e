"""A query that sees nothing makes nothing infinite or NaN."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from querykey.laws.blaming.guilty_module import GuiltyModule, describe
from querykey.laws.blaming.recorder import Recorder
from querykey.laws.catalogue import padding, sweeps
from querykey.laws.catalogue.derivatives import backward, score
from querykey.laws.law import Law
from querykey.laws.run import Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome
from querykey.laws.understanding.signature import LENGTHS
from querykey.targets import Input

LONELY = 3  # the token that no token sees, where a model takes a mask of pairs


def masked_row(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Try no padding; a row that is all padding; queries before the first real token; no edges."""
    inputs, signature = runner.inputs(setting), runner.signature
    every = list(range(signature.batch_of(inputs)))
    yield _outcome(runner, inputs, setting, every, "no token was masked")
    counted = {mask.axis for mask in runner.facts.masks if mask.counts}  # 0 is no length of a row
    for axis in [axis for axis in padding.padded_axes(runner) if axis not in counted]:
        real = signature.all_real(inputs, axis)
        real[1] = False
        others = [r for r in range(setting.batch) if r != 1]
        masks = {mask.name: mask.value(real) for mask in runner.facts.masks_over(axis)}
        yield _outcome(runner, {**inputs, **masks}, setting, others, "row 1 was all padding")
        if runner.facts.causal and axis == signature.axis:
            real = padding.real_tokens(runner, inputs, axis, left=True)
            masks = padding.arguments(runner, axis, real)
            padded = {**inputs, **masks}
            yield _outcome(runner, padded, setting, others, "rows were left-padded")
    for entry in [e for e in signature.inputs if e.kind == "mask" and _is_of_pairs(e)]:
        pairs = inputs[entry.name].clone()
        for place in (pairs, pairs.mT):
            place[1, ..., LONELY, :] = not entry.real
        words = f"token {LONELY} of row 1 saw no token and was seen by none, as `{entry.name}` says"
        yield _outcome(runner, {**inputs, entry.name: pairs}, setting, every, words)


def _is_of_pairs(entry: Input) -> bool:
    """Return whether a mask says for every row which token sees which, as edges of a graph do."""
    first, *_, query, key = (*entry.axes, "", "")[: max(len(entry.axes), 3)]
    return first == "batch" and query == key and query in LENGTHS


def _outcome(
    runner: Runner, inputs: Inputs, setting: Setting, others: list[int], when: str
) -> Outcome:
    """Return 0 where answers and the other rows' gradients are finite, and infinity where not."""
    run = Run(inputs, setting)
    model = runner.copies.of(setting)
    model.zero_grad(set_to_none=True)
    answer = runner.answer(run)
    if not runner.signature.sequential:
        answer = answer[others]  # a row of padding alone has no mean, and nobody reads its answer
        others = list(range(len(others)))
    infinite = ~answer.isfinite()
    if infinite.any():
        row = int(infinite.flatten(1).any(1).nonzero()[0])
        count = int(infinite.sum())
        note = (
            f"{count} of the {answer.numel()} numbers of the answer are NaN or infinite, the first "
            f"in row {row}, when {when}"
        )
        evidence = Evidence({"sample": row}, module=_first_not_finite(runner, run))
        return Outcome(math.inf, note, setting, evidence=evidence)
    backward(score(answer[others]))
    bad = [
        n for n, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()
    ]
    model.zero_grad(set_to_none=True)
    if bad:
        note = (
            f"the gradients of {len(bad)} parameters, such as {bad[0]}, are NaN or infinite when "
            f"{when}"
        )
        evidence = Evidence(module=_first_not_finite(runner, run))
        return Outcome(math.inf, note, setting, evidence=evidence)
    return Outcome(0.0, when, setting)


def _first_not_finite(runner: Runner, run: Run) -> GuiltyModule | None:
    """Return the first module that makes NaN or infinity out of inputs without NaN."""
    recorder = Recorder()
    with torch.no_grad():
        runner.answer(run, recorder)
    for call in recorder.done:
        floats = [t for t in call.inputs if t.is_floating_point()]
        fine = all(not t.isnan().any() for t in floats)
        if fine and any(not t.isfinite().all() for t in call.outputs if t.is_floating_point()):
            return describe(call)
    return None


LAWS = (
    Law(
        "masked-row",
        says="A query that sees nothing makes nothing infinite or NaN.",
        why="Otherwise one empty row ruins a batch (pytorch 41508, 103749).",
        how="All tokens of one row are hidden, then the first tokens of rows, and one token where "
        "a mask says who sees whom; answers and the gradients of the other rows stay finite.",
        trials=masked_row,
        sweep=sweeps.once,
    ),
)
