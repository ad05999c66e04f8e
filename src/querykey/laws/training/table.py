"""The laws of training loops in the order of their findings: a file with a law has a line here."""

from __future__ import annotations

from querykey.laws.training import (
    batch_norm,
    gradients_applied,
    layers,
    mode,
    optimized,
    resuming,
    scaling,
    schedules,
    weighting,
)
from querykey.laws.training.law import TrainingLaw

TRAINING_LAWS: tuple[TrainingLaw, ...] = (
    *gradients_applied.LAWS,
    *weighting.LAWS,
    *optimized.LAWS,
    *mode.LAWS,
    *scaling.LAWS,
    *layers.LAWS,
    *batch_norm.LAWS,
    *schedules.LAWS,
    *resuming.LAWS,
)
