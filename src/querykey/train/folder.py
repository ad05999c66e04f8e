"""The folder of a run: its config, its log of JSON lines, its checkpoints, its surroundings."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from querykey.show import write_file
from querykey.train.config import ConfigError, TrainConfig, read_config

# What may differ between the start of a run and its continuation.
FREE = {
    "folder", "loop.steps", "loop.evaluate_every", "loop.save_every", "loop.keep", "loop.device",
    "loop.pieces", "loop.shard", "loop.compile",
}  # fmt: skip


@dataclass(frozen=True)
class RunFolder:
    """Where a run is written."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def log(self) -> Path:
        """The log, one JSON object a line."""
        return self.path / "log.jsonl"

    def begin(self, config: TrainConfig) -> None:
        """Write the config and the surroundings; a folder with another config is refused."""
        stored = self.path / "config.toml"
        if stored.exists():
            before = _flat(read_config(stored).as_dict())
            now = _flat(config.as_dict())
            changed = [name for name in now if name not in FREE and before[name] != now[name]]
            if changed:
                name = changed[0]
                raise ConfigError(
                    f"`{self.path}` holds a run with {name} = {before[name]!r}, and now it is "
                    f"{now[name]!r}; give the new run another folder"
                )
        self.path.mkdir(parents=True, exist_ok=True)
        write_file(stored, as_toml(config.as_dict()))
        write_file(self.path / "environment.json", json.dumps(surroundings(), indent=1) + "\n")

    def cut_log(self, step: int) -> None:
        """Drop what the log says of steps from `step` on, which will be done again."""
        if not self.log.exists():
            return
        kept = []
        for line in self.log.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line)
            except (ValueError, KeyError):
                continue  # a line that a dying process left unfinished
        aside = self.log.with_suffix(".partial")
        write_file(aside, "".join(f"{line}\n" for line in kept))
        os.replace(aside, self.log)

    def write(self, entry: dict[str, Any]) -> None:
        """Append one line to the log."""
        with self.log.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")


def as_toml(values: dict[str, Any]) -> str:
    """Write plain values and one level of sections as TOML."""
    plain = [f"{name} = {_toml(v)}" for name, v in values.items() if not isinstance(v, dict)]
    sections = [
        "\n".join([f"\n[{name}]", *(f"{key} = {_toml(v)}" for key, v in section.items())])
        for name, section in values.items()
        if isinstance(section, dict)
    ]
    return "\n".join([*plain, *sections]) + "\n"


def _toml(value: Any) -> str:
    """Write a value; JSON and TOML agree on numbers, booleans, texts and lists."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat


def surroundings() -> dict[str, Any]:
    """Return what a run depends on besides its config."""
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "machine": platform.machine(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "ranks": int(os.environ.get("WORLD_SIZE", "1")),
    }
