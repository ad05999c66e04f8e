"""No answer depends on a later token: by changing it, by differentiating, by cutting it off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from querykey.laws.catalogue import sweeps
from querykey.laws.catalogue.derivatives import reach
from querykey.laws.law import Law
from querykey.laws.runner import Specimen
from querykey.laws.trial import Outcome, Run, Trial, cells
from querykey.laws.understanding.copies import Setting


def applies(specimen: Specimen) -> str:
    """To models that are meant to be causal and answer at every position."""
    if not specimen.anatomy.sequential:
        return "it gives no answer per position"
    if not specimen.causal:
        return f"not causal: {specimen.why}"
    return ""


def cuts(setting: Setting) -> list[int]:
    """Where each row's future begins: after its first token, in its middle, at its last."""
    places = [setting.length // 2, 1, setting.length - 1]
    return [places[row % 3] for row in range(setting.batch)]


def perturb(specimen: Specimen, setting: Setting) -> Iterator[Trial]:
    """Change all tokens of the future, then only the next one."""
    inputs, other = specimen.inputs(setting), specimen.inputs(setting, seed=1)
    starts, length = cuts(setting), setting.length
    keep = cells([(r, i) for r, p in enumerate(starts) for i in range(p)])
    for only_next in (False, True) if setting == Setting() else (False,):
        where = torch.zeros(setting.batch, length, dtype=torch.bool)
        for row, start in enumerate(starts):
            where[row, start : start + 1 if only_next else length] = True
        stops = [p + 1 if only_next else length for p in starts]
        move = cells([(r, i) for r, p in enumerate(starts) for i in range(p, stops[r])])
        yield Trial(
            Run(inputs, setting),
            Run(specimen.with_other(inputs, other, where), setting),
            (keep, keep),
            (move, move),
            "the next token was changed" if only_next else "all later tokens were changed",
        )


def gradient(specimen: Specimen, setting: Setting) -> Iterator[Outcome]:
    """The derivative of an answer with respect to later tokens is zero."""
    starts, length = cuts(setting), setting.length
    ask = cells([(r, p - 1) for r, p in enumerate(starts)])
    forbidden = cells([(r, i) for r, p in enumerate(starts) for i in range(p, length)])
    allowed = cells([(r, i) for r, p in enumerate(starts) for i in range(p)])
    outcome = reach(specimen, Run(specimen.inputs(setting), setting), ask, forbidden, allowed)
    yield replace(outcome, trial=next(perturb(specimen, setting)))


def prefix(specimen: Specimen, setting: Setting) -> Iterator[Trial]:
    """Cut the sequence: what remains answers as before."""
    inputs, length = specimen.inputs(setting), setting.length
    stops = {1, 2, length // 2, length - 1} if setting == Setting() else {length // 2}
    if setting in (Setting(), Setting(length=length)):
        stops |= {stop for span in specimen.spans[-2:] for stop in (span, span + 1)}
    stops = {stop for stop in stops if 0 < stop < length}
    for stop in sorted(stops):
        first = cells([(r, i) for r in range(setting.batch) for i in range(stop)])
        yield Trial(
            Run(inputs, setting),
            Run(specimen.cut(inputs, 0, stop), setting),
            (first, first),
            None,
            f"the sequence was cut after {stop} of {length} tokens",
        )


def in_every_output(trials: Callable[[Specimen, Setting], Iterator[Trial]]):
    """The same trials, asked of every output that is meant to be causal."""

    def asked(specimen: Specimen, setting: Setting) -> Iterator[Trial]:
        for trial in trials(specimen, setting):
            yield trial
            for slot in () if setting.given else specimen.also_causal:  # a switch may leave it out
                yield replace(
                    trial,
                    first=replace(trial.first, slot=slot),
                    second=replace(trial.second, slot=slot),
                    what=f"{trial.what}, and its output {slot} shows it",
                )

    return asked


def derivative_sweep(specimen: Specimen) -> Iterator[Setting]:
    """A derivative costs more, so fewer settings."""
    yield Setting()
    if specimen.masks:
        yield Setting(mask=True)


LAWS = (
    Law(
        "causality.perturb",
        "an answer does not change when later tokens do",
        "replace later tokens",
        "answers at earlier positions",
        applies,
        in_every_output(perturb),
        sweeps.everything,
    ),
    Law(
        "causality.gradient",
        "an answer has no derivative with respect to later tokens",
        "differentiate",
        "derivatives by later tokens",
        applies,
        gradient,
        derivative_sweep,
    ),
    Law(
        "causality.prefix",
        "an answer does not change when later tokens are cut off",
        "cut the sequence",
        "answers at the positions that remain",
        applies,
        in_every_output(prefix),
        sweeps.shapes,
    ),
)
