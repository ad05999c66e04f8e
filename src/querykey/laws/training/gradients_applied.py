"""No gradient is applied twice: it is cleared between two steps."""

from __future__ import annotations

from querykey.laws.finding import Finding
from querykey.laws.training.events import Step
from querykey.laws.training.law import TrainingLaw
from querykey.laws.training.recording import Recording
from querykey.words import and_more

NAME = "training.zero-grad"


def zero_grad(recording: Recording) -> Finding:
    """Judge whether a step applies what the same optimizer has applied before."""
    steps = recording.steps
    if len(steps) < 2:
        return Finding(NAME, "not-applicable", note="no optimizer took two steps")
    for step in steps:
        if step.again:
            key = max(step.again, key=lambda key: step.gradients[key])
            return _twice(recording, step, key)
    return Finding(NAME, "holds")


def _twice(recording: Recording, step: Step, key: int) -> Finding:
    """Return the breach of a step that applies a gradient again, with its sizes."""
    name, count = recording.name_of(key), len(step.again)
    again, parts = step.again[key], step.sources[key]
    others = and_more(count - 1, "parameter")
    if len(again) == len(parts):
        note = (
            f"step {step.number + 1} of {step.name} applies the gradient of {name}{others} that an "
            f"earlier step applied, and no backward pass came between ({step.site})"
        )
        return Finding(NAME, "violated", 1.0, note=note, source=step.source)
    backward = recording.backwards[min(part for part in parts if part not in again)]
    old, whole = backward.carried.get(key, 0.0), step.gradients[key]
    note = (
        f"step {step.number + 1} of {step.name} applies again what an earlier step applied: when "
        f"its backward pass began, the gradient of {name}{others} was still there, with norm "
        f"{old:.3g}; after that pass it is {whole:.3g}. Call {step.name}'s zero_grad() once per "
        f"step ({step.site})"
    )
    return Finding(NAME, "violated", old / whole if whole else None, note=note, source=step.source)


LAWS = (
    TrainingLaw(
        NAME,
        says="No gradient is applied twice: it is cleared between two steps.",
        why="Otherwise every step repeats all earlier ones, and training may diverge (wekws 72).",
        how="Gradients are looked at before every backward pass and step; what an optimizer has "
        "applied must be gone, however it was cleared, before more is added or applied.",
        judge=zero_grad,
    ),
)
