"""The same call gives the same answer, which every other comparison rests on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from querykey.laws.catalogue import sweeps
from querykey.laws.catalogue.batch import whole_rows
from querykey.laws.law import Law
from querykey.laws.run import PLAIN, Conditions, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Trial, conduct


def determinism(runner: Runner, setting: Setting, dropout: bool = True) -> Iterator[Trial]:
    """Make the same call again, after another call and with other random numbers."""
    inputs = runner.inputs(setting)
    every = whole_rows(runner, setting, range(runner.signature.batch_of(inputs)))
    first = replace(setting, conditions=Conditions(dropout=dropout))
    again = replace(setting, conditions=Conditions(again=True, dropout=dropout))
    yield Trial(
        Run(inputs, first),
        Run(inputs, again),
        (every, every),
        None,
        "the same call was made again",
    )


def is_deterministic(runner: Runner, dropout: bool = True) -> bool:
    """Return whether the plain call gives the same answer twice, with dropout acting or not."""
    trials = determinism(runner, PLAIN, dropout)
    return all(conduct(runner, trial).deviation <= runner.facts.threshold for trial in trials)


LAWS = (
    Law(
        "determinism",
        says="In evaluation mode the same call gives the same answer.",
        why="Otherwise nothing can be compared: dropout is on, or a state is kept (mt-dnn 45).",
        how="The call is made again, after a call on other inputs and with other random numbers.",
        trials=determinism,
        sweep=sweeps.once,
    ),
)
