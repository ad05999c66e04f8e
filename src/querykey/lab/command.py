"""The verb `qk lab`: experiments run one by one, their folders written, the ledger at the end."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

from querykey.lab.claim import judge_all, verdict_of_row
from querykey.lab.experiment import Depth, Name
from querykey.lab.ledger import ledger, ledger_json, ledger_page
from querykey.lab.rows import ROWS
from querykey.lab.store import Record, measurements_below, read_record, source_hash, write_record
from querykey.lab.table import EXPERIMENTS, experiment
from querykey.lab.workers import machine
from querykey.show import table, write_file
from querykey.words import checked

Tell = Callable[[str], None]


def list_experiments() -> Any:
    """Return a table of the experiments: name, rows of the ledger, question."""
    rows = [(name, ", ".join(experiment(name).rows), experiment(name).asks) for name in EXPERIMENTS]
    return table(("experiment", "rows", "question"), rows)


@checked
def run_experiments(
    names: Sequence[str], depth: Name, out: Path, again: bool, tell: Tell
) -> Iterator[str]:
    """Run experiments, write a folder `lab/NAME` below `out` for each, and yield its verdicts.

    What is stored there already, as deep or deeper and by the same code, is not measured again
    unless `again` says so, and neither are the parts of an experiment that was stopped. `tell`
    hears of the progress.
    """
    for name in [experiment(name).name for name in names]:  # which refuses wrong names first
        record = None if again else _stored(name, depth, out)
        if record is None:
            parts = out / "lab" / name / "parts" if depth == "full" else None
            record = _measured(name, depth, _named(tell, name), parts)
            if parts is not None:
                rmtree(parts, ignore_errors=True)
        write_record(out / "lab" / name, experiment(name), record)
        yield _line(name, record)


@checked
def write_ledger(out: Path) -> Any:
    """Write claims.md and claims.json from what is stored below `out`, and return the table."""
    measurements = measurements_below(out)
    write_file(out / "claims.md", ledger_page(measurements))
    plain = json.dumps(ledger_json(measurements), indent=1, ensure_ascii=False)
    write_file(out / "claims.json", plain + "\n")
    rows = [
        (row, ROWS[row].experiment, ROWS[row].about, verdict_of_row(parts), len(parts))
        for row, parts in ledger(measurements).items()
    ]
    return table(("row", "experiment", "about", "verdict", "parts"), rows)


def _stored(name: str, depth: Name, out: Path) -> Record | None:
    """Return what was measured before, if it went as deep and this code measured it."""
    record = read_record(out / "lab" / name)
    if record is None or record.source != source_hash(name):
        return None
    return record if record.depth in (depth, "full") else None


def _named(tell: Tell, name: str) -> Tell:
    """Return what tells of the progress of one experiment."""
    return lambda words: tell(f"{name}: {words}")


def _measured(name: str, depth: Name, tell: Tell, parts: Path | None) -> Record:
    """Return what an experiment measures now, and on which machines its parts did."""
    source = source_hash(name)  # now: the file may change while it is measured
    machines = Counter[str]()
    began = time.perf_counter()
    measurement = experiment(name).measure(
        Depth(depth, tell, parts, lambda ran_on: machines.update([ran_on]))
    )
    seconds = round(time.perf_counter() - began, 1)
    if machines.keys() <= {machine()}:
        return Record(measurement, depth, seconds, machine(), source)
    shares = "; ".join(f"{count} parts on {ran_on}" for ran_on, count in machines.items())
    return Record(measurement, depth, seconds, shares, source)


def _line(name: str, record: Record) -> str:
    """Return the verdicts of an experiment's rows, in one line."""
    rows = judge_all(experiment(name).claims, record.measurement)
    verdicts = ", ".join(f"{row} {verdict_of_row(parts)}" for row, parts in rows.items())
    return f"{name} ({record.depth}, {record.seconds:.0f} s): {verdicts}"
