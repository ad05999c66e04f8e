"""The same call gives the same answer, which every other comparison rests on."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from querykey.laws.catalogue import sweeps
from querykey.laws.catalogue.batch import whole_rows
from querykey.laws.law import Law
from querykey.laws.run import PLAIN, Conditions, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Trial, conduct

KEPT = r"(cache|state|memory|memories|hidden|history|past)s?"
RESETS = re.compile(rf"^(reset|(reset|clear|flush|forget|empty)_(\w+_)?{KEPT})$")


def determinism(runner: Runner, setting: Setting) -> Iterator[Trial]:
    """Make the same call again with other random numbers, and on a model that was used before.

    A model that has a method to reset its state may keep one: it is reset after it was used.
    """
    inputs = runner.inputs(setting)
    every = whole_rows(runner, setting, range(runner.signature.batch_of(inputs)))
    first = replace(setting, conditions=Conditions(dropout=True))
    size = (setting.batch, setting.length)
    used = Conditions(reseeded=True, dropout=True, earlier=(size,), reset=reset_method(runner))
    reset = f", and {used.reset}() after the first" if used.reset else ""
    for earlier, what in (
        ((size,), f"the same call was made again, after one on other inputs{reset}"),
        (_other_sizes(runner, setting), f"it was made after calls of other sizes{reset}"),
    ):
        again = replace(setting, conditions=replace(used, earlier=earlier))
        if earlier:
            yield Trial(Run(inputs, first), Run(inputs, again), (every, every), None, what)


def reset_method(runner: Runner) -> str:
    """Return the method without arguments by which the model forgets what it kept, if any."""
    model = runner.copies.model
    for name in dir(type(model)):
        function = getattr(type(model), name, None)
        if RESETS.match(name) and inspect.isfunction(function):
            required = [p for p in inspect.signature(function).parameters.values()
                        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]  # fmt: skip
            if len(required) == 1 and _runs(runner, name):
                return name
    return ""


def _runs(runner: Runner, method: str) -> bool:
    """Return whether this method can be called on a model that has answered once."""
    with suppress(Exception):
        runner.call(runner.inputs(), PLAIN)
        getattr(runner.copies.of(PLAIN), method)()
        return True
    return False


def _other_sizes(runner: Runner, setting: Setting) -> tuple[tuple[int, int], ...]:
    """Return sizes other than the setting's that the model takes: more tokens, then fewer rows."""
    sizes = [(2, 2 * setting.length + 3), (1, 5)] if runner.signature.varies else [(1, 13)]
    calls = [replace(setting, batch=batch, length=length) for batch, length in sizes]
    taken = [runner.attempt(runner.inputs(call), call) is not None for call in calls]
    return tuple(size for size, fits in zip(sizes, taken, strict=True) if fits)


def is_deterministic(runner: Runner, dropout: bool = True) -> bool:
    """Return whether random numbers leave the plain call alone, with dropout acting or not."""
    inputs = runner.inputs(PLAIN)
    every = whole_rows(runner, PLAIN, range(runner.signature.batch_of(inputs)))
    first, second = (
        Run(inputs, replace(PLAIN, conditions=Conditions(reseeded=reseeded, dropout=dropout)))
        for reseeded in (False, True)
    )
    return conduct(runner, Trial(first, second, (every, every))).deviation <= runner.facts.threshold


LAWS = (
    Law(
        "determinism",
        says="In evaluation mode the same call gives the same answer.",
        why="Otherwise dropout is on, or what an earlier call left behind is used (mt-dnn 45).",
        how="The call is made again with other random numbers, after calls on other inputs and of "
        "other sizes; a fresh copy gives the answer that must come out.",
        trials=determinism,
        sweep=sweeps.once,
    ),
)
