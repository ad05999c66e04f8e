"""Training runs in training mode, and evaluation in evaluation mode."""

from __future__ import annotations

from querykey.laws.finding import Finding
from querykey.laws.training.events import Forward
from querykey.laws.training.law import TrainingLaw
from querykey.laws.training.recording import Recording

NAME = "training.mode"


def mode(recording: Recording) -> Finding:
    """Judge the mode of every forward pass of what is trained."""
    trained = recording.trained()
    passes = [f for f in recording.forwards if any(id(p) in trained for p in f.module.parameters())]
    learning = [f for f in passes if f.used]
    dropping = [f for f in passes if f.dropped and not f.used]
    if dropping:
        return _dropping(dropping)
    if not any(f.switches or f.asleep for f in learning):
        note = "nothing in what is trained depends on the mode"
        return Finding(NAME, "not-applicable", note=note)
    asleep = [f for f in learning if not f.training and f.asleep]
    if asleep:
        return _asleep(asleep[0], learning)
    idle = _evaluations(recording, passes, learning)
    if idle:
        return _awake(idle)
    partly = next((f for f in learning if f.switches and _dropouts(f)), None)
    if partly:
        note = (
            f"{_dropouts(partly)[0]} is in evaluation mode while {_kind(partly)} trains, so its "
            f"dropout does not act; is that meant?"
        )
        return Finding(NAME, "advice", 1.0, note=note, source=partly.source)
    return Finding(NAME, "holds")


def _dropping(passes: list[Forward]) -> Finding:
    """Return the finding on dropout by a function that is not told that training is over."""
    forward = passes[0]
    place, asked = next(iter(forward.dropped.items()))
    told = "dropout_p=0.0" if place.startswith("scaled") else "training=self.training"
    note = (
        f"{_kind(forward)} is in evaluation mode in {len(passes)} forward passes, and {place} "
        f"drops there all the same: pass it {told}"
        + " outside of training"
        * place.startswith("scaled")
    )
    return Finding(NAME, "advice" if asked else "violated", 1.0, note=note, source=forward.source)


def _kind(forward: Forward) -> str:
    return type(forward.module).__name__


def _asleep(forward: Forward, learning: list[Forward]) -> Finding:
    """Return the breach of a model that is trained in evaluation mode."""
    before = [f for f in learning if f.order < forward.order and f.training]
    place, others = forward.asleep[0], len(forward.asleep) - 1
    more = f" and {others} more" if others else ""
    cause = (
        "was left in evaluation mode after an evaluation" if before
        else "is trained in evaluation mode"
    )  # fmt: skip
    note = (
        f"{_kind(forward)} {cause}: {place}{more} (dropout or batch statistics) do not act; call "
        f"its train() before training goes on ({forward.site})"
    )
    return Finding(NAME, "violated", 1.0, note=note, source=forward.source)


def _evaluations(
    recording: Recording, passes: list[Forward], learning: list[Forward]
) -> list[Forward]:
    """Return the passes in training mode from which nothing is learned.

    One whose batch is also learned from belongs to training, as in self-conditioning.
    """
    first = recording.backwards[0].order
    batches = {f.batch for f in recording.forwards if f.used or f.again}
    return [
        f
        for f in passes
        if f.order > first
        and f.training
        and f.switches
        and not (f.used or f.again)
        and f.batch not in batches
    ]


def _awake(idle: list[Forward]) -> Finding:
    """Return the breach of an evaluation in training mode."""
    forward = idle[0]
    note = (
        f"{_kind(forward)} is in training mode in {len(idle)} forward passes from which nothing is "
        f"learned: {forward.switches[0]} acts there, so that dropout changes what is measured, or "
        f"batch norm learns from data that is only to be measured; call its eval() "
        f"({forward.site})"
    )
    return Finding(NAME, "violated", 1.0, note=note, source=forward.source)


def _dropouts(forward: Forward) -> list[str]:
    """Return the dropouts in evaluation mode, in a model that is in training mode."""
    named = dict(forward.module.named_modules())
    return [path for path in forward.asleep if hasattr(named.get(path), "p")]


LAWS = (
    TrainingLaw(
        NAME,
        says="Training runs in training mode, and evaluation in evaluation mode.",
        why="Otherwise dropout and batch norm act where they must not, or not where they must.",
        how="At every forward pass the modes of dropouts and batch norms are noted, what drops by "
        "a function, and whether a backward pass goes through it.",
        judge=mode,
    ),
)
