"""Ready configurations, each one command: `qk train NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrainingRecipe:
    """What a ready configuration trains, and the fields in which it differs from the defaults."""

    says: str
    config: dict[str, Any]


RECIPES: dict[str, TrainingRecipe] = {
    "stdlib": TrainingRecipe(
        "a small model of bytes on the source of Python's own library",
        {"folder": "runs/stdlib", "data": {"length": 128}},
    ),
}
