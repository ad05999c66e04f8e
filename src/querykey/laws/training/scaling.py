"""Gradients are clipped and applied at the size of the loss: a GradScaler's factor is taken out."""

from __future__ import annotations

from querykey.laws.finding import Finding
from querykey.laws.training.events import Clip, Step
from querykey.laws.training.law import TrainingLaw
from querykey.laws.training.recording import Recording

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
    return Finding(CLIPPING, "holds")


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
    plain = [b for b in recording.backwards if b.scale == 1.0]
    if len(plain) < len(recording.backwards) and plain:
        note = f"some losses are scaled by the GradScaler and others are not ({plain[0].site})"
        return Finding(SCALER, "advice", 1.0, note=note, source=plain[0].source)
    return Finding(SCALER, "holds")


LAWS = (
    TrainingLaw(
        CLIPPING,
        says="Gradients are clipped after they are unscaled, and before they are applied.",
        why="Otherwise the bound is one on the scaled gradient, or clips nothing.",
        how="Calls of torch's clipping functions are noted, with the scale of the gradients and "
        "whether they are still to be applied.",
        judge=clipping,
    ),
    TrainingLaw(
        SCALER,
        says="No optimizer applies gradients that a GradScaler has scaled.",
        why="Otherwise a step is thousands of times too large.",
        how="Scaled losses are followed to the gradients, and these to unscale_() and to the step.",
        judge=scaler,
    ),
)
