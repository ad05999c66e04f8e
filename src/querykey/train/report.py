"""The page of a run: what its folder says of it, as one HTML file. A run may still be going."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from querykey.errors import QuerykeyError, visible
from querykey.show import (
    Series,
    figure,
    grid,
    heading,
    line_chart,
    page,
    text,
    write_file,
)
from querykey.train.checkpoints import MANIFEST
from querykey.train.config import read_toml
from querykey.train.folder import RunFolder
from querykey.words import checked, last_line

POINTS = 200  # of a curve; each is the mean of the steps that it stands for
Entries = list[dict[str, Any]]


class ReportError(QuerykeyError):
    """Says why a folder is not that of a run."""


@dataclass(frozen=True)
class RunRecord:
    """What the folder of a run says: plain values, and what of it could not be read."""

    folder: RunFolder
    config: dict[str, Any]
    environment: dict[str, Any]
    steps: Entries
    evaluations: Entries
    warnings: list[str]


@checked
def write_report(run: str | Path, html: str | Path = "") -> Path:
    """Write the page of a run's folder, as report.html in it unless told where; return its path."""
    record = read_record(Path(run))
    file = Path(html) if str(html) else record.folder.path / "report.html"
    write_file(file, as_page(record))
    return file


def read_record(path: Path) -> RunRecord:
    """Return what the folder of a run says, or raise a ReportError where it is none."""
    folder = RunFolder(path)
    config, environment = path / "config.toml", path / "environment.json"
    try:
        there = config.is_file() and (environment.is_file() or folder.log.is_file())
    except (OSError, ValueError) as error:  # such as a name that is too long
        raise ReportError(f"`{str(path)[:60]}` cannot be read: {last_line(error)}") from None
    if not there:
        raise ReportError(
            f"`{path}` is no folder of a training run, which has a config.toml and a log.jsonl; "
            "`qk train` writes one"
        )
    warnings: list[str] = []
    values = read_toml(config)
    surroundings = _object(environment, warnings)
    entries = list(_entries(folder.log, warnings))
    steps = [e for e in entries if "loss" in e]
    evaluations = [e for e in entries if isinstance(e.get("evaluation"), dict)]
    warnings += [str(e["warning"]) for e in entries if "warning" in e]
    warnings += _oddities(steps)
    return RunRecord(folder, values, surroundings, steps, evaluations, warnings)


def _object(file: Path, warnings: list[str]) -> dict[str, Any]:
    """Return the object of a JSON file, or none and a warning."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(values, dict):
            return values
        warnings.append(f"{file.name} holds no JSON object.")
    except (OSError, ValueError, RecursionError) as error:
        warnings.append(f"{file.name} cannot be read: {last_line(error, 200)}.")
    return {}


def _entries(log: Path, warnings: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the entries of a log that say of which step they are."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return
    except OSError as error:
        warnings.append(f"{log.name} cannot be read: {error.strerror}.")
        return
    lost = 0
    for line in lines[:-1]:  # behind the last line end is what a run is just writing
        try:
            entry = json.loads(line)
            if not _is_count(entry["step"]):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            lost += 1
        else:
            yield entry
    if lost:
        warnings.append(f"{lost} of {len(lines) - 1} lines of {log.name} could not be read.")


def _oddities(steps: Entries) -> list[str]:
    """Return a sentence for each thing in the steps of a log that a reader should know."""
    oddities = []
    for name in ("loss", "norm"):
        lost = [entry["step"] for entry in steps if name in entry and not _is_number(entry[name])]
        if lost:
            oddities.append(f"At step {lost[0]} the {name} was not finite ({len(lost)} in all).")
    numbers = [entry["step"] for entry in steps]
    gaps = [a for a, b in pairwise(numbers) if b != a + 1]
    if gaps:
        oddities.append(
            f"The log goes on elsewhere after step {gaps[0]} ({len(gaps)} such places)."
        )
    return oddities


def as_page(record: RunRecord) -> str:
    """Return the page of a run."""
    sections = [text(_state(record))]
    if record.warnings:
        sections += [heading("Warnings"), *(text(visible(words)) for words in record.warnings)]
    if record.evaluations:
        last = record.evaluations[-1]
        rows = [(name, _cell(value)) for name, value in last["evaluation"].items()]
        sections += [heading(f"Evaluation at step {last['step']}"), grid(("what", "mean"), rows)]
    sections += [figure(svg, caption) for caption, svg in _charts(record)]
    sections += [heading("Checkpoints"), *_checkpoints(record.folder)]
    sections += [heading("Configuration"), grid(("field", "value"), _fields(record.config))]
    sections += [heading("Environment"), grid(("what", "value"), _fields(record.environment))]
    return page(visible(f"Training run {record.folder.path}"), *sections)


def _state(record: RunRecord) -> str:
    """Return in a sentence how far the run is."""
    if not record.steps:
        return "No step is done yet."
    done, section = record.steps[-1]["step"], record.config.get("loop")
    wanted = section.get("steps") if isinstance(section, dict) else None
    of = f" of {wanted}" if _is_count(wanted) else ""
    seconds = sum(e["seconds"] for e in record.steps if _is_number(e.get("seconds")))
    loss = record.steps[-1]["loss"]
    loss_text = f", loss {loss:.4g}" if _is_number(loss) else ""
    return f"Step {done}{of}{loss_text}, after {seconds:,.1f} seconds in steps."


def _charts(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield every chart that has points, with its caption."""
    measured = [(e["step"], e["evaluation"].get("loss")) for e in record.evaluations]
    right = [(e["step"], e["evaluation"].get("correct")) for e in record.evaluations]
    speed = [(e["step"], _per_second(e)) for e in record.steps]
    for caption, axis, curves in (
        ("Loss", "loss", [("training", _curve(record.steps, "loss")), ("evaluation", measured)]),
        ("Share right in evaluations", "correct", [("evaluation", right)]),
        ("Learning rate", "rate", [("rate", _curve(record.steps, "rate"))]),
        ("Gradient norm", "norm", [("norm", _curve(record.steps, "norm"))]),
        ("Tokens per second", "tokens/s", [("speed", speed)]),
    ):
        series = [Series(name, _thinned(points)) for name, points in curves]
        series = [line for line in series if line.points]
        if series:
            yield caption, line_chart(series, "step", axis)


def _curve(steps: Entries, name: str) -> list[tuple[int, Any]]:
    return [(entry["step"], entry.get(name)) for entry in steps]


def _per_second(entry: dict[str, Any]) -> float | None:
    tokens, seconds = entry.get("tokens", 0), entry.get("seconds", 0)
    return tokens / seconds if _is_number(tokens) and _is_number(seconds) and seconds > 0 else None


def _thinned(points: Sequence[tuple[int, Any]]) -> list[tuple[float, float]]:
    """Return means of neighbouring points that are numbers, at most as many as a chart shows."""
    numbers = [(float(step), float(value)) for step, value in points if _is_number(value)]
    every = math.ceil(len(numbers) / POINTS) or 1
    groups = [numbers[i : i + every] for i in range(0, len(numbers), every)]
    return [(group[-1][0], sum(v for _, v in group) / len(group)) for group in groups]


def _checkpoints(folder: RunFolder) -> list[str]:
    """Return the checkpoints that there are, with their sizes; their hashes are not computed."""
    rows = []
    for path in sorted(folder.checkpoints.glob("step-*")):
        held = {file.name: file.stat().st_size for file in path.glob("*") if file.is_file()}
        manifest = _object(path / MANIFEST, [])
        names = manifest.get("files")
        whole = isinstance(names, dict) and set(names) <= set(held)
        rows.append((path.name, f"{sum(held.values()):,}", "yes" if whole else "no"))
    if not rows:
        return [text("There is none yet.")]
    return [grid(("checkpoint", "bytes", "all files there"), rows)]


def _fields(values: dict[str, Any], within: str = "") -> list[tuple[str, str]]:
    """Return the fields of nested plain values, by their paths, as text."""
    rows = []
    for name, value in values.items():
        if isinstance(value, dict) and not within:
            rows += _fields(value, f"{name}.")
        else:
            rows.append((visible(f"{within}{name}"), _cell(value)))
    return rows


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return visible(str(value)) if value not in ("", None) else "–"


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300  # NaN is not, and sums of what is left are finite


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62
