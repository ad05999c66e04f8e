"""The folder of a run: its config, its log of JSON lines, its checkpoints, its surroundings."""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from querykey.models import TokenizerError
from querykey.show import WriteError, make_folder, write_file
from querykey.train.config import ConfigError, TrainConfig, read_config
from querykey.train.data.tokenizers import Tokenizer, load_tokenizer
from querykey.words import last_line

# What may differ between the start of a run and its continuation. Data that lie elsewhere are
# compared with those of the checkpoint.
FREE = {
    "folder", "data.path", "loop.steps", "loop.evaluate_every", "loop.save_every", "loop.keep",
    "loop.device", "loop.pieces", "loop.shard", "loop.compile",
}  # fmt: skip


# What a run writes that a folder of weights has too.
EXPORTED = ("config.json", "model.safetensors", "tokenizer.json")


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

    @property
    def surroundings(self) -> Path:
        """What the run depends on besides its config; only a run writes this file."""
        return self.path / "environment.json"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer of the run, in the format of Hugging Face."""
        return self.path / "tokenizer.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training in this folder until the block ends.

        The lock ends with the process, however that ends. Some file systems have no locks.
        """
        make_folder(self.path)
        try:
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise WriteError(f"`{self.path}` cannot be read: {error.strerror}") from error
        try:
            with suppress(OSError):
                if _is_locked(handle):
                    raise ConfigError(
                        f"another process is training in `{self.path}`; wait until it has ended, "
                        f"or give this run another folder"
                    )
            yield
        finally:
            os.close(handle)

    def is_begun(self, config: str | Path) -> bool:
        """Whether a run has begun here, and a file is its config."""
        own = Path(config) == self.path / "config.toml"
        return own and self.surroundings.exists() and self.checkpoints.is_dir()

    def refuse_another_run(self, config: TrainConfig) -> None:
        """Raise a ConfigError where the folder holds steps of a run with another config."""
        stored = self.path / "config.toml"
        has_steps = self.log.exists() or any(self.checkpoints.glob("step-*"))
        if not (has_steps and stored.exists()):
            return
        before, now = _flat(read_config(stored).as_dict()), _flat(config.as_dict())
        for name in now:
            if name not in FREE and before[name] != now[name]:
                raise ConfigError(
                    f"`{self.path}` holds a run with {name} = {before[name]!r}, and now it is "
                    f"{now[name]!r}; give the new run another folder"
                )

    def refuse_files_of_others(self) -> None:
        """Raise a ConfigError where a run would write over files that no run has written."""
        if self.surroundings.exists():
            return
        for name in EXPORTED:
            if (self.path / name).exists():
                raise ConfigError(
                    f"`{self.path}` holds {name}, which no run has written and this one would "
                    f"replace; give the run another folder"
                )

    def begin(self, config: TrainConfig) -> None:
        """Write the config and the surroundings."""
        for path in (self.path, self.checkpoints):
            make_folder(path)
        if self.log.exists() and not self.log.is_file():
            raise WriteError(f"`{self.log}` cannot be written: it is no file")
        if not self._has_config(config):  # a file that says the same may have comments
            _replace(self.path / "config.toml", as_toml(config.as_dict()))
        _replace(self.surroundings, json.dumps(surroundings(), indent=1) + "\n")

    def _has_config(self, config: TrainConfig) -> bool:
        try:
            return read_config(self.path / "config.toml") == config
        except ConfigError:
            return False

    def read_tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer that this run has made, None where it has made none."""
        try:
            return load_tokenizer(self.tokenizer.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError, TokenizerError) as error:
            raise ConfigError(f"`{self.tokenizer}` cannot be read: {last_line(error)}") from error

    def write_tokenizer(self, tokenizer: Tokenizer | None) -> None:
        """Write the tokenizer of the run, so that whoever goes on with it has the same one."""
        if tokenizer is None:
            self.tokenizer.unlink(missing_ok=True)
        else:
            _replace(self.tokenizer, tokenizer.as_json() + "\n")

    def cut_log(self, step: int) -> None:
        """Drop what the log says of steps from `step` on, which will be done again."""
        if not self.log.exists():
            return
        kept = []
        for line in self.log.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line)
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # a line that a dying process left unfinished
        _replace(self.log, "".join(f"{line}\n" for line in kept))

    def write(self, entry: dict[str, Any]) -> None:
        """Append one line to the log."""
        try:
            with self.log.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(_finite(entry), allow_nan=False) + "\n")
        except OSError as error:
            raise WriteError(f"`{self.log}` cannot be written: {error.strerror}") from error


def _is_locked(handle: int) -> bool:
    """Lock an open folder, or return True where another process has done so."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _replace(path: Path, text: str) -> None:
    """Write a file so that a process which dies on the way leaves the old one as it was."""
    aside = path.with_name(f"{path.name}.partial")
    write_file(aside, text)
    os.replace(aside, path)


def _finite(value: Any) -> Any:
    """Return a value of the log with null for every number that is not finite: JSON has none."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
