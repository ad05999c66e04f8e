"""The verb `qk train`: a config and flags in, a progress line while it runs, a run folder out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from querykey.models import PRESETS
from querykey.show import table
from querykey.train.config import flag_names, read_config
from querykey.train.loop import Result
from querykey.train.parts import DATA, OBJECTIVES
from querykey.train.progress import ProgressLine
from querykey.train.recipes import RECIPES
from querykey.train.run import prepared


def train_command(config: str | None, flags: Mapping[str, str]) -> Result:
    """Train as a TOML file or a recipe says, with flags on top, and show how it goes."""
    source = RECIPES[config].config if config in RECIPES else config
    with prepared(read_config(source, flags)) as trainer, ProgressLine(trainer) as line:
        return trainer.run(line.show)


def listing() -> list[Any]:
    """Return tables of the recipes, and of the names that a config may have."""
    objectives = [(name, kind.says) for name, kind in OBJECTIVES.items()]
    flags = [(f"--{name}", section or "") for name, (section, _) in flag_names().items()]
    return [
        table(("recipe", "what it trains"), [(name, r.says) for name, r in RECIPES.items()]),
        table(("objective.name", "what is predicted"), objectives),
        table(("data.name", "what it is"), [(name, kind.says) for name, kind in DATA.items()]),
        table(("model.name",), [(", ".join(PRESETS),), ("or any TARGET of `qk targets`",)]),
        table(("flag", "section"), flags),
    ]


def summary(result: Result) -> str:
    """Return the last line of a run: how it ended, how good it is, and where it lies."""
    ending = "done" if result.finished else "stopped; the same command goes on from here"
    figures = ", ".join(f"{name} {value:.4f}" for name, value in result.evaluation.items())
    validated = f"; validation {figures}" if figures else ""
    return f"{result.folder}: step {result.step}, {ending}{validated}"
