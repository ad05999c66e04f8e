"""No answer depends on a later token: by changing it, by differentiating, by cutting it off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from querykey.laws.catalogue import sweeps
from querykey.laws.catalogue.derivatives import reach
from querykey.laws.law import Law
from querykey.laws.run import PLAIN, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Outcome, Trial, cells, every_cell


def is_causal(runner: Runner) -> str:
    """Return why the law does not apply: no answer per position, or not meant to be causal."""
    if not runner.signature.sequential:
        return "it gives no answer per position"
    if not runner.facts.causal:
        return f"not causal: {runner.facts.intent.why}"
    return ""


def can_be_cut(runner: Runner) -> str:
    """Return why the law does not apply: not causal, or no shorter sequence is taken."""
    only = runner.signature.only
    return is_causal(runner) or (
        f"it takes {only} tokens and no other number, so none can be cut off" if only else ""
    )


def cuts(setting: Setting) -> list[int]:
    """Return where the future of each row begins: in its middle, at its last, after its first."""
    places = [setting.length // 2, setting.length - 1, 1]
    return [places[row % 3] for row in range(setting.batch)]


def perturb(runner: Runner, setting: Setting) -> Iterator[Trial]:
    """Replace all tokens of the future, then only the next one."""
    inputs, other = runner.inputs(setting), runner.inputs(setting, seed=1)
    starts, length = cuts(setting), setting.length
    keep = cells([(r, i) for r, p in enumerate(starts) for i in range(p)])
    for only_next in (
        (False, True) if setting == replace(PLAIN, length=runner.length()) else (False,)
    ):
        where = torch.zeros(setting.batch, length, dtype=torch.bool)
        for row, start in enumerate(starts):
            where[row, start : start + 1 if only_next else length] = True
        stops = [p + 1 if only_next else length for p in starts]
        move = cells([(r, i) for r, p in enumerate(starts) for i in range(p, stops[r])])
        yield Trial(
            Run(inputs, setting),
            Run(runner.signature.with_other(inputs, other, where), setting),
            (keep, keep),
            (move, move),
            "only the token after it changed" if only_next else "only tokens after it changed",
        )


def gradient(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Differentiate an answer by the embeddings of later tokens: the derivative is zero."""
    starts, length = cuts(setting), setting.length
    ask = cells([(r, p - 1) for r, p in enumerate(starts)])
    forbidden = cells([(r, i) for r, p in enumerate(starts) for i in range(p, length)])
    allowed = cells([(r, i) for r, p in enumerate(starts) for i in range(p)])
    outcome = reach(runner, Run(runner.inputs(setting), setting), ask, forbidden, allowed)
    yield _shown_by(outcome, next(perturb(runner, setting)))


def _shown_by(outcome: Outcome, trial: Trial) -> Outcome:
    """Return a derivative's outcome with a trial that shows the same by values."""
    return replace(outcome, evidence=replace(outcome.evidence, trial=trial))


def prefix(runner: Runner, setting: Setting) -> Iterator[Trial]:
    """Cut the sequence after some token; the answers that remain may not move."""
    inputs, length = runner.inputs(setting), setting.length
    stops = {1, 2, length // 2, length - 1} if setting == PLAIN else {length // 2}
    if setting in (PLAIN, Setting(length=length)):
        stops |= {stop for span in runner.facts.spans[-2:] for stop in (span, span + 1)}
    stops = {stop for stop in stops if 0 < stop < length}
    for stop in sorted(stops):
        first = every_cell(range(setting.batch), range(stop))
        yield Trial(
            Run(inputs, setting),
            Run(runner.signature.cut(inputs, 0, stop), setting),
            (first, first),
            None,
            f"the sequence was cut after {stop} of {length} tokens",
        )


def in_every_output(trials: Callable[[Runner, Setting], Iterator[Trial]]):
    """Return trials that also compare every other output that is meant to be causal."""

    def with_outputs(runner: Runner, setting: Setting) -> Iterator[Trial]:
        for trial in trials(runner, setting):
            yield trial
            # An optional argument may leave an output out.
            for slot in () if setting.arguments else runner.facts.intent.outputs:
                yield replace(
                    trial,
                    first=replace(trial.first, slot=slot),
                    second=replace(trial.second, slot=slot),
                    what=f"{trial.what}, and its output {slot} shows it",
                )

    return with_outputs


def derivative_sweep(runner: Runner) -> Iterator[Setting]:
    """Try the plain call and a mask: a derivative costs more, so there are fewer settings."""
    yield PLAIN
    yield from sweeps.with_a_mask(runner)


LAWS = (
    Law(
        "causality.perturb",
        says="An answer does not change when later tokens do.",
        why="Otherwise training loss is too good and generation is bad (transformers 48745, keras "
        "21284).",
        how="All tokens after a position are replaced; the answers up to it may not move.",
        trials=in_every_output(perturb),
        applies=is_causal,
        sweep=sweeps.everything,
    ),
    Law(
        "causality.gradient",
        says="An answer has no derivative with respect to later tokens.",
        why="Otherwise the model learns from the future through its backward pass (xformers 103).",
        how="An answer is differentiated by the embeddings of the tokens after it.",
        trials=gradient,
        applies=is_causal,
        sweep=derivative_sweep,
    ),
    Law(
        "causality.prefix",
        says="An answer does not change when later tokens are cut off.",
        why="Otherwise the future leaks in through the sequence's length (transformers 48748).",
        how="The sequence is cut after some tokens; the answers that remain may not move.",
        trials=in_every_output(prefix),
        applies=can_be_cut,
        sweep=sweeps.shapes,
    ),
)
