"""The folder of an experiment: its measurement as JSON, its figures as SVG, and a page of text."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from querykey.errors import QuerykeyError
from querykey.lab.claim import Part, judge_all
from querykey.lab.experiment import Experiment
from querykey.lab.measurement import Measurement
from querykey.lab.rows import DOCUMENTS, ROWS
from querykey.lab.table import EXPERIMENTS
from querykey.show import make_folder, write_file
from querykey.words import checked

SCHEMA = 1


@dataclass(frozen=True)
class Record:
    """A measurement, how deep it went, what ran it, and which text of the experiment did."""

    measurement: Measurement
    depth: str
    seconds: float
    machine: str
    source: str  # a hash of the experiment's file


class RecordError(QuerykeyError):
    """Says which stored measurement cannot be read."""


def source_hash(name: str) -> str:
    """Return a hash of how an experiment measures, by which an outdated measurement is known.

    Its claims and its texts are left out: a measurement can be judged against others.
    """
    tree = ast.parse(inspect.getsource(import_module(EXPERIMENTS[name])))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
            node.body = [part for part in node.body if not _is_text(part)]
    return hashlib.sha256(repr(_plain(tree)).encode()).hexdigest()[:16]


def _plain(part: Any) -> Any:
    """Return a syntax tree as nested tuples; what some versions of Python alone have is left out.

    Newer ones have a list of type parameters in every function, which is empty here.
    """
    if isinstance(part, list):
        return tuple(map(_plain, part))
    if not isinstance(part, ast.AST):
        return part
    fields = ((name, _plain(value)) for name, value in ast.iter_fields(part))
    return type(part).__name__, tuple(
        (name, value) for name, value in fields if value not in ((), None)
    )


def _is_text(part: ast.stmt) -> bool:
    """Return whether a statement is a docstring, the claims, or the experiment's question."""
    if isinstance(part, ast.Expr):
        return isinstance(part.value, ast.Constant)
    names = [ast.unparse(target) for target in part.targets] if isinstance(part, ast.Assign) else []
    return bool({"CLAIMS", "EXPERIMENT"} & set(names))


def read_record(folder: Path) -> Record | None:
    """Return what a folder holds, or None where nothing was stored."""
    file = folder / "measurement.json"
    if not file.exists():
        return None
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
        if plain.pop("schema") != SCHEMA:
            raise ValueError("another version wrote it")
        return Record(Measurement.from_json(plain.pop("measurement")), **plain)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"`{file}` is no measurement of ours ({error}); delete it") from error


@checked
def measurements_below(out: Path) -> dict[str, Measurement]:
    """Return the measurements stored in `out/lab`, by the name of their experiment."""
    records = {name: read_record(out / "lab" / name) for name in EXPERIMENTS}
    return {name: record.measurement for name, record in records.items() if record is not None}


def write_record(folder: Path, experiment: Experiment, record: Record) -> None:
    """Write measurement.json, one SVG per figure, and page.md."""
    make_folder(folder)
    plain: dict[str, Any] = {"schema": SCHEMA, "measurement": record.measurement.as_json()}
    plain |= {key: value for key, value in asdict(record).items() if key != "measurement"}
    write_file(folder / "measurement.json", _numbers_in_lines(json.dumps(plain, indent=1)) + "\n")
    for name, figure in record.measurement.figures.items():
        write_file(folder / f"{name}.svg", figure.svg())
    write_file(folder / "page.md", page(experiment, record))


def _numbers_in_lines(text: str) -> str:
    """Return JSON text with every list of numbers on one line."""
    return re.sub(r"\[[\s\d.,eE+-]+\]", lambda found: " ".join(found[0].split()), text)


def page(experiment: Experiment, record: Record) -> str:
    """Return the page of text: what was asked, every part of every row, every measured value."""
    lines = [f"# {experiment.name}", "", experiment.asks, ""]
    for row, parts in judge_all(experiment.claims, record.measurement).items():
        place = ROWS[row]
        lines += [f"## {row}: {place.about}", ""]
        lines += [f"Document {place.document} ({DOCUMENTS[place.document]}), {place.place}.", ""]
        lines += [*(_paragraph(part) for part in parts), ""]
    for name, figure in record.measurement.figures.items():
        lines += [f"![{figure.title}]({name}.svg)", ""]
    lines += ["## Everything measured", "", "| value | measured |", "|---|---|"]
    lines += [
        f"| {_cell(name)} | {_cell(value.reason or str(value))} |"
        for name, value in record.measurement.values.items()
    ]
    ending = f"Depth {record.depth}, {record.seconds:.0f} s, {record.machine}."
    return "\n".join([*lines, "", ending, ""])


def _paragraph(part: Part) -> str:
    right = f" {part.claim.right}" if part.claim.right else ""
    return f"- **{part.verdict}**: {part.claim.sentence} {part.capital_reason}.{right}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
