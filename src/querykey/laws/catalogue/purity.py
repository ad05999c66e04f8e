"""What everything else rests on: inputs stay as they are, and twice the same is the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from querykey.laws.blaming.recorder import Recorder
from querykey.laws.catalogue import padding, sweeps
from querykey.laws.catalogue.batch import whole_rows
from querykey.laws.law import Law
from querykey.laws.runner import Specimen
from querykey.laws.trial import Outcome, Run, Trial
from querykey.laws.understanding.copies import Inputs, Setting


def always(specimen: Specimen) -> str:
    """To every model."""
    return ""


def purity(specimen: Specimen, setting: Setting) -> Iterator[Outcome]:
    """Every tensor handed in is compared with a copy taken before."""
    inputs = specimen.inputs(setting)
    yield _handed(specimen, inputs, setting)
    if setting.mask:
        for axis in padding.padded_axes(specimen):
            real = padding.reality(specimen, inputs, axis)
            yield _handed(specimen, {**inputs, **padding.given(specimen, axis, real)}, setting)


def _handed(specimen: Specimen, inputs: Inputs, setting: Setting) -> Outcome:
    given = specimen.bench.placed(specimen.complete(Run(inputs, setting)))
    before = {n: v for n, v in given.items() if isinstance(v, torch.Tensor)}
    handed = {**given, **{n: v.clone() for n, v in before.items()}}
    with torch.no_grad():
        specimen.call(handed, setting, as_given=True)
    changed = [n for n, v in before.items() if not torch.equal(v, handed[n])]
    if not changed:
        return Outcome(0.0, None, setting)
    again = {**given, **{n: v.clone() for n, v in before.items()}}
    recorder = Recorder(versions=[again[n] for n in changed])
    with torch.no_grad():
        specimen.call(again, setting, recorder, as_given=True)
    note = f"`{changed[0]}` was changed in place"
    return Outcome(1.0, None, setting, {}, None, note, recorder.writer)


def determinism(specimen: Specimen, setting: Setting) -> Iterator[Trial]:
    """The same input again, with other random numbers, after another input was seen."""
    inputs = specimen.inputs(setting)
    every = whole_rows(specimen, setting, list(range(specimen.batch_of(inputs))))
    setting = replace(setting, dropout=True)
    yield Trial(
        Run(inputs, setting),
        Run(inputs, replace(setting, again=True)),
        (every, every),
        None,
        "the same call was made again",
    )


LAWS = (
    Law(
        "purity",
        "forward leaves its inputs as they are",
        "none",
        "the tensors handed in",
        always,
        purity,
        sweeps.as_called,
    ),
    Law(
        "determinism",
        "in evaluation mode the same call gives the same answer",
        "call again, after another call, with other random numbers",
        "all answers",
        always,
        determinism,
        sweeps.once,
    ),
)
