"""The laws of training loops in the order of their findings: a file with a law has a line here."""

from __future__ import annotations

from querykey.laws.training import (
    batch_norm,
    coverage,
    gradients_applied,
    layers,
    mode,
    resuming,
    scaling,
    schedules,
    updates,
    weighting,
)
from querykey.laws.training.law import TrainingLaw

TRAINING_LAWS: tuple[TrainingLaw, ...] = (
    *gradients_applied.LAWS,
    *weighting.LAWS,
    *coverage.LAWS,
    *updates.LAWS,
    *mode.LAWS,
    *scaling.LAWS,
    *layers.LAWS,
    *batch_norm.LAWS,
    *schedules.LAWS,
    *resuming.LAWS,
)
