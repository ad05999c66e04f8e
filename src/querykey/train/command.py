"""The verb `qk train`: a config and flags in, a progress line while it runs, a run folder out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import fill
from typing import Any

from querykey.laws import Report
from querykey.models import PRESETS
from querykey.show import table
from querykey.train.config import ConfigError, TrainConfig, flag_names, meanings, read_config
from querykey.train.folder import RunFolder
from querykey.train.loop import Result
from querykey.train.parts import DATA, OBJECTIVES
from querykey.train.progress import ProgressLine
from querykey.train.recipes import RECIPES
from querykey.train.run import carry_out, prepared
from querykey.train.watched import check_run
from querykey.words import checked, suggest


@checked
def train_command(config: str | None, flags: Mapping[str, str]) -> Result | None:
    """Train as a TOML file or a recipe says, with flags on top, and show how it goes.

    Of several ranks the first one alone returns how the run ended.
    """
    with prepared(_settings(config, flags)) as trainer, ProgressLine(trainer) as line:
        result = carry_out(trainer, line.show)
        return result if trainer.ranks.first else None


@checked
def check_command(config: str | None, flags: Mapping[str, str]) -> Report:
    """Watch the first steps of such a run, and return what the laws of training say of them."""
    settings = read_config(_source(config), flags)
    name = config or settings.folder
    return replace(check_run(settings), target=name)


def _settings(config: str | None, flags: Mapping[str, str]) -> TrainConfig:
    """Return the config of a run; one in the folder of a run is for that folder, where it now is.

    The folder that it names may be relative to another place, or on another machine.
    """
    settings = read_config(_source(config), flags)
    if config is None or config in RECIPES or "folder" in flags:
        return settings
    home = RunFolder(Path(config).parent)
    return replace(settings, folder=str(home.path)) if home.is_begun(config) else settings


def _source(config: str | None) -> Any:
    """Return a recipe's sections, or the name of a TOML file that is there; None: the defaults."""
    if config is None or config in RECIPES:
        return config and RECIPES[config].config
    try:
        os.stat(config)
    except FileNotFoundError:
        pass  # which is said below
    except (OSError, ValueError) as error:  # such as a name that is too long
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"`{config[:60]}` cannot be read: {reason}") from error
    if Path(config).is_dir():
        hint = f"it is a folder; the config of a run is `{Path(config, 'config.toml')}`"
        raise ConfigError(f"`{config}` cannot be read: {hint}")
    if not Path(config).exists():
        near = suggest(config, RECIPES).replace("you mean", "you mean the recipe")
        raise ConfigError(f"`{config}` cannot be read: there is no such file or recipe{near}")
    return config


def listing() -> list[Any]:
    """Return tables of the recipes, and of the names that a config may have."""
    objectives = [(name, kind.says) for name, kind in OBJECTIVES.items()]
    presets = fill(", ".join(PRESETS), 90)
    return [
        table(("recipe", "what it trains"), [(name, r.says) for name, r in RECIPES.items()]),
        table(("objective.name", "what is predicted"), objectives),
        table(("data.name", "what it is"), [(name, kind.says) for name, kind in DATA.items()]),
        table(("model.name",), [(presets,), ("or any TARGET that `qk targets` lists",)]),
        table(("flag", "default", "meaning"), _flags()),
    ]


def _flags() -> list[tuple[str, str, str]]:
    """Return the shortest flag of every field of a config, the field's default and its meaning."""
    flags = {field: name for name, field in flag_names().items()}  # the short names come last
    sections = asdict(TrainConfig())
    defaults = {
        (section, field): sections[field] if section is None else sections[section][field]
        for section, field in flags
    }
    meaning = meanings()
    return [(f"--{flags[f]}", _written(default), meaning[f]) for f, default in defaults.items()]


def _written(default: Any) -> str:
    """Return a default as a flag takes it."""
    if isinstance(default, bool):
        return str(default).lower()
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default) or "none"


@checked
def summary(result: Result) -> str:
    """Return the last line of a run: how it ended, how good it is, and where it lies."""
    ending = "done" if result.finished else "stopped; the same command goes on from here"
    figures = ", ".join(f"{name} {value:.4f}" for name, value in result.evaluation.items())
    validated = f"; validation {figures}" if figures else ""
    return f"{result.folder}: step {result.step}, {ending}{validated}"
