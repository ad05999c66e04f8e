"""A law of training loops: what must hold of one, why, how it is watched, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from querykey.laws.finding import Finding
from querykey.laws.training.recording import Recording
from querykey.words import check_fields


@dataclass(frozen=True)
class TrainingLaw:
    """What must hold of a training loop; `judge` returns the finding on what was recorded."""

    name: str
    says: str  # what must hold
    why: str  # what goes wrong where it does not hold
    how: str  # what is watched, and what is compared
    judge: Callable[[Recording], Finding]

    def __post_init__(self):
        check_fields(self)
