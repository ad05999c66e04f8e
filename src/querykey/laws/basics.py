"""What everything else rests on: inputs stay as they are, and twice the same is the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from querykey.laws import sweeps
from querykey.laws.batch import whole_rows
from querykey.laws.bench import Setting
from querykey.laws.law import Law
from querykey.laws.recorder import Recorder
from querykey.laws.specimen import Specimen
from querykey.laws.trial import Outcome, Run, Trial


def always(specimen: Specimen) -> str:
    """To every model."""
    return ""


def purity(specimen: Specimen, setting: Setting) -> Iterator[Outcome]:
    """Every tensor handed in is compared with a copy taken before."""
    given = specimen.complete(Run(specimen.inputs(setting), setting))
    before = {n: v.clone() for n, v in given.items() if isinstance(v, torch.Tensor)}
    with torch.no_grad():
        specimen.call(given, setting)
    changed = [n for n, v in before.items() if not torch.equal(v, given[n])]
    if not changed:
        yield Outcome(0.0, None, setting)
        return
    again = {**given, **{n: v.clone() for n, v in before.items()}}
    recorder = Recorder(versions=[again[n] for n in changed])
    with torch.no_grad():
        specimen.call(again, setting, recorder)
    note = f"`{changed[0]}` was changed in place"
    yield Outcome(1.0, None, setting, {}, None, note, recorder.writer)


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
