"""Gradients are clipped and applied at the size of the loss: a GradScaler's factor is taken out."""

from __future__ import annotations

from querykey.laws.finding import Finding
from querykey.laws.training.events import Clip, Step, Unscale
from querykey.laws.training.law import TrainingLaw
from querykey.laws.training.recording import Recording
from querykey.laws.training.weighting import accumulated

CLIPPING, SCALER = "training.clipping", "training.scaler"


def clipping(recording: Recording) -> Finding:
    """Judge when gradients are clipped."""
    clips: list[Clip] = recording.of(Clip)
    if not clips:
        return Finding(CLIPPING, "not-applicable", note="no gradient is clipped")
    scaled = next((clip for clip in clips if clip.scale != 1.0), None)
    if scaled:
        note = (
            f"gradients are clipped while they are {scaled.scale:g} times too large: call "
            f"scaler.unscale_(optimizer) before they are clipped ({scaled.site})"
        )
        return Finding(CLIPPING, "violated", scaled.scale, note=note, source=scaled.source)
    if len(recording.steps) > 1 and not any(clip.pending for clip in clips):
        note = (
            f"gradients are clipped when they were applied already, or before they are there: clip "
            f"them between backward() and step() ({clips[0].site})"
        )
        return Finding(CLIPPING, "violated", 1.0, note=note, source=clips[0].source)
    if early := _before_all(recording, clips):
        return early
    return Finding(CLIPPING, "holds")


def _before_all(recording: Recording, clips: list[Clip]) -> Finding | None:
    """Return the breach of a loop that clips gradients to which it goes on to add others."""
    for group in accumulated(recording):
        orders, own = [p.order for p in group.passes], group.step.sources.keys()
        inside = [c for c in clips if orders[0] < c.order < orders[-1] and c.parameters & own]
        if inside:
            note = (
                f"gradients are clipped after each of the {len(orders)} batches that a step adds "
                f"up, so that the first ones count less: clip them once, when all are there "
                f"({inside[0].site})"
            )
            return Finding(CLIPPING, "violated", 1.0, note=note, source=inside[0].source)
    return None


def scaler(recording: Recording) -> Finding:
    """Judge whether scaled gradients are applied."""
    if not recording.scaled:
        return Finding(SCALER, "not-applicable", note="no GradScaler is used")
    steps: list[Step] = recording.steps
    for step in steps:
        if step.scales:
            scale = max(step.scales.values())
            note = (
                f"step {step.number + 1} of {step.name} applies gradients that are {scale:g} times "
                f"too large: call scaler.step(optimizer), or scaler.unscale_(optimizer) before "
                f"({step.site})"
            )
            return Finding(SCALER, "violated", scale, note=note, source=step.source)
    never: list[Unscale] = recording.of(Unscale)
    if never:
        note = (
            f"gradients are divided by the scaler's {never[0].scale:g}, and the loss that they "
            f"come from was never multiplied by it: call scaler.scale(loss).backward() "
            f"({never[0].site})"
        )
        return Finding(SCALER, "violated", never[0].scale, note=note, source=never[0].source)
    plain = [b for b in recording.backwards if b.scale == 1.0]
    if len(plain) < len(recording.backwards) and plain:
        note = f"some losses are scaled by the GradScaler and others are not ({plain[0].site})"
        return Finding(SCALER, "advice", 1.0, note=note, source=plain[0].source)
    return Finding(SCALER, "holds")


LAWS = (
    TrainingLaw(
        CLIPPING,
        says="Gradients are clipped once all are there and unscaled, and before they are applied.",
        why="Otherwise the bound is one on the scaled gradient, or clips nothing.",
        how="Calls of torch's clipping functions are noted, with the scale of the gradients and "
        "whether they are still to be applied.",
        judge=clipping,
    ),
    TrainingLaw(
        SCALER,
        says="A GradScaler's factor is taken out of the gradients of scaled losses, of no others.",
        why="Otherwise a step is thousands of times too large, or too small.",
        how="Scaled losses are followed to the gradients, and these to unscale_() and to the step.",
        judge=scaler,
    ),
)
