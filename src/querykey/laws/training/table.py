"""The laws of training loops in the order of their findings: a file with a law has a line here."""

from __future__ import annotations

from querykey.laws.training import gradients_applied
from querykey.laws.training.law import TrainingLaw

TRAINING_LAWS: tuple[TrainingLaw, ...] = (*gradients_applied.LAWS,)
