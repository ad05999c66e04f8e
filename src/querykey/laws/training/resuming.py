"""A run that is stopped, saved and resumed goes on as if it had not been stopped."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from querykey.laws.finding import Finding
from querykey.laws.training.events import Forward, Step
from querykey.laws.training.law import TrainingLaw
from querykey.laws.training.recording import Recording
from querykey.laws.training.replacement import replaced

NAME = "training.resume"
CLOSE = 1e-6  # relative: what is the same bits on a processor may differ by rounding on a GPU
OTHER = 20_061  # a seed for the generators of what stands for a new process


@contextmanager
def as_in_a_new_process(recording: Recording) -> Iterator[None]:
    """Give generators other states at the first torch.load() after a step, as a new process has.

    What a checkpoint holds of them is restored after that; what it does not hold is lost.
    """

    def load(original: Any, *args: Any, **kwargs: Any) -> Any:
        if recording.steps and not recording.reloaded:
            recording.reloaded = True
            torch.default_generator.manual_seed(OTHER)
            random.seed(OTHER)
            np.random.seed(OTHER)
        return original(*args, **kwargs)

    with ExitStack() as undone:
        replaced(undone, torch, "load", load)
        yield


def resume(recording: Recording) -> Finding:
    """Judge whether a run that was resumed does what the one without a stop does."""
    other = recording.resumed
    if other is None:
        return Finding(NAME, "not-applicable", note="no function `resume` was given")
    first, second = _trace(recording), _trace(other)
    if not first or not second or _causes(first[0], second[0]):
        note = (
            "run() and resume() do not begin alike; make the model inside of both, so that "
            "resume() does what run() does, but stops, saves, loads and goes on"
        )
        return Finding(NAME, "not-applicable", note=note)
    if len(other.steps) < len(recording.steps):
        note = (
            f"resume() takes {len(other.steps)} steps and run() {len(recording.steps)}; it is to "
            f"go on to as many"
        )
        return Finding(NAME, "not-applicable", note=note)
    for place, pair in enumerate(zip(first, second, strict=False)):
        causes = _causes(*pair)
        if not causes:
            continue
        later = list(zip(first, second, strict=False))[place + 1 :]
        for next_pair in later:  # what is forgotten of the step is seen when it comes
            if isinstance(next_pair[0], Step):
                causes |= {c: t for c, t in _causes(*next_pair).items() if c in STEPWISE}
                break
        number = sum(isinstance(event, Step) for event in first[:place]) + 1
        note = (
            f"from step {number} on the resumed run is not that without a stop: "
            f"{'; '.join(causes.values())}"
        )
        event = pair[1]
        return Finding(NAME, "violated", 1.0, note=note, source=event.source)
    return Finding(NAME, "holds")


STEPWISE = ("optimizer", "schedule")


def _trace(recording: Recording) -> list[Forward | Step]:
    """Return the forward passes that are trained, and the steps, in their order.

    A step without gradients, which prepares the state of an optimizer, is none.
    """
    return [
        event
        for event in recording.events
        if (isinstance(event, Forward) and event.used)
        or (isinstance(event, Step) and any(event.gradients.values()))
    ]


def _causes(first: Forward | Step, second: Forward | Step) -> dict[str, str]:
    """Return what two events that ought to be the same differ in, in sentences."""
    causes: dict[str, str] = {}
    if isinstance(first, Forward) and isinstance(second, Forward):
        if not _close(first.weights, second.weights):
            causes["weights"] = "the weights or statistics of the model are others"
        if first.batch != second.batch:
            causes["data"] = "the batch is another, so the order of the data is forgotten"
        elif first.random != second.random and not _close(first.answer, second.answer):
            causes["random"] = (
                "the random state is forgotten, so dropout and whatever else is drawn differ"
            )
    elif isinstance(first, Step) and isinstance(second, Step):
        if not _close(first.state, second.state):
            causes["optimizer"] = f"the state of {second.name} is forgotten"
        if not all(map(_close, first.rates, second.rates)):
            causes["schedule"] = (
                f"the schedule is forgotten: the rate is {second.rates[0]:.3g} and not "
                f"{first.rates[0]:.3g}"
            )
    else:
        causes["events"] = "it does not have as many batches"
    return causes


def _close(first: float, second: float) -> bool:
    if math.isnan(first) and math.isnan(second):
        return True
    return abs(first - second) <= CLOSE * max(abs(first), abs(second))


LAWS = (
    TrainingLaw(
        NAME,
        says="A run that is saved and resumed goes on as one that was never stopped.",
        why="Otherwise a restart forgets the optimizer, the schedule, or the random state.",
        how="The functions run() and resume(), which stops, saves, loads and goes on, begin with "
        "one seed; weights, batches, rates and states are compared step by step, with other random "
        "states after torch.load().",
        judge=resume,
    ),
)
