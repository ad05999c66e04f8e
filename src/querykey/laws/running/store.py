"""Finished reports in a file, one per line, so that a run that was ended goes on from there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path
from typing import Any

from querykey.errors import QuerykeyError
from querykey.laws.report import Report, SchemaError, installed
from querykey.show import unwritable

ASKED = "asked"  # beside the fields of a report: what it is the answer to
FOLDERS = 1000  # in which code that a target may import is looked for


class StoreError(QuerykeyError):
    """One sentence: why a file cannot keep reports."""


class Store:
    """Reports on disk; one is used again only where the very same question is asked."""

    def __init__(self, file: str | Path):
        self.file = Path(file)
        reason = unwritable(self.file) or "it is no regular file" * endless(self.file)
        if reason:
            raise StoreError(f"no report can be kept in `{file}`: {reason}")
        text = self._text()
        self.kept = list(_entries(self.file, text))
        if text.strip() and not self.kept:
            raise StoreError(f"`{file}` holds no report; name a new file, or one that a run wrote")
        self.torn = bool(text) and not text.endswith("\n")  # a kill cut its last line short

    def find(self, question: dict[str, Any]) -> Report | None:
        """Return the last report that answers this question, or None."""
        for entry in reversed(self.kept):
            if entry.get(ASKED) == question:
                return Report.from_json({k: v for k, v in entry.items() if k != ASKED})
        return None

    def keep(self, question: dict[str, Any], report: Report) -> None:
        """Append a report to the file at once."""
        line = json.dumps({ASKED: question, **report.as_json()})
        try:
            with self.file.open("a", encoding="utf-8") as file:
                file.write("\n" * self.torn + line + "\n")
        except OSError as error:
            raise StoreError(f"`{self.file}` cannot be written: {error.strerror}") from error
        self.torn = False

    def _text(self) -> str:
        """Return what the file holds; nothing where there is none yet."""
        if not self.file.exists():
            return ""
        try:
            return self.file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise StoreError(f"`{self.file}` holds no report: it is not text in UTF-8") from error
        except OSError as error:
            raise StoreError(f"`{self.file}` cannot be read: {error.strerror}") from error


def endless(file: Path) -> bool:
    """Return whether reading a file may never end, as of a device or a named pipe."""
    ends = str(file) == os.devnull or file.parent == Path("/dev/fd")  # the shell's own `<(...)`
    return not ends and os.path.exists(file) and not os.path.isfile(file)


@dataclass(frozen=True)
class Question:
    """What is asked of every target: which laws, and what its owner says of it."""

    laws: tuple[str, ...]
    seed: int = 0
    weights: str = "both"
    kind: str | None = None
    inputs: tuple[str, ...] = ()  # as `ids=tokens(batch,seq)`
    like: str | None = None  # a target that is meant to be the same

    def of(self, target: str) -> dict[str, Any]:
        """Return all that a report depends on, as plain values."""
        settings: dict[str, Any] = {"kind": self.kind, "inputs": list(self.inputs)}
        if self.like is not None:
            settings["like"] = {"target": self.like, "content": _content(self.like)}
        return {
            "target": target,
            "laws": list(self.laws),
            "seed": self.seed,
            "weights": self.weights,
            "versions": installed(("querykey", "torch", "transformers")),
            "content": _content(target),
            **{name: value for name, value in settings.items() if value},
        }


def _entries(file: Path, text: str) -> Iterable[dict[str, Any]]:
    """Yield the lines that are reports; one cut short by a kill is left out."""
    for line in text.splitlines():
        try:
            values = json.loads(line)
            if "schema" in values:
                Report.from_json({k: v for k, v in values.items() if k != ASKED})
                yield values
        except SchemaError as error:
            raise StoreError(f"`{file}` cannot be the store: {error}") from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue


def _content(target: str) -> str:
    """Return a hash that changes with the target's code; nothing where versions say it all."""
    if os.path.isdir(target):
        return _of_folder(Path(target))
    source = target.rpartition(":")[0]
    if not source or source == "hf" or source.startswith("hf:"):
        return ""
    file = Path(source) if source.endswith(".py") else _file_of(source)
    return "" if file is None or not os.path.isfile(file) else _of_code(file)


def _of_code(file: Path) -> str:
    """Return a hash of the file and of those beside and below it, which it may import."""
    files = (file, *_code_below(file.parent))
    marks = [hashlib.sha256(source.read_bytes()).hexdigest() for source in files]
    return hashlib.sha256(" ".join(marks).encode()).hexdigest()


def _code_below(folder: Path) -> Iterator[Path]:
    """Yield Python files, the nearest first, without hidden and installed ones."""
    folders = [folder]
    for place in islice(folders, FOLDERS):  # which grow meanwhile
        _, inner, files = next(os.walk(place), ("", [], []))
        code = (place / name for name in sorted(files) if name.endswith(".py"))
        yield from (file for file in code if file.is_file() and os.access(file, os.R_OK))
        folders += [place / name for name in sorted(inner) if not _foreign(place / name)]


def _foreign(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in ("__pycache__", "site-packages")
    return hidden or (folder / "pyvenv.cfg").exists()


def _of_folder(folder: Path) -> str:
    """Return a hash of names, sizes and dates: weights are too large to read for this."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    marks = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(marks).encode()).hexdigest()


def _file_of(module: str) -> Path | None:
    """Return a module's file, found without importing it or the packages around it."""
    path = None
    spec = None
    parts = module.split(".")
    for index in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: index + 1]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return Path(spec.origin) if spec is not None and spec.origin else None
