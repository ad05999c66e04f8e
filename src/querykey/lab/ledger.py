"""The ledger: every row with its verdict, as a page and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from querykey.lab.claim import Part, judge_all, verdict_of_row
from querykey.lab.measurement import Measured, Measurement
from querykey.lab.rows import DOCUMENTS, ROWS
from querykey.lab.table import EXPERIMENTS, experiment
from querykey.words import checked

HEAD = """# What the five documents claim, and what was measured

`qk lab --all --out docs` writes this page from the measurements under `docs/lab/`; [lab.md](lab.md) says how to measure again.
Every statement is *confirmed*, *corrected* (the document is wrong or says too little; what is right stands beside it) or *open*,
with the reason. A row is corrected if any of its parts is. "±" is half a 95 % confidence interval over seeds.
Where a claim says that something differs by 0, the rounding of the numbers is allowed for; the page of the experiment names the threshold.
"This machine" is the one that the last line of that page names.
"""  # noqa: E501 - a page of Markdown


def ledger(measurements: Mapping[str, Measurement]) -> dict[str, list[Part]]:
    """Return the parts of every row, from the measurements of experiments by name."""
    parts: dict[str, list[Part]] = {row: [] for row in ROWS}
    for name, measurement in measurements.items():
        parts |= judge_all(experiment(name).claims, measurement)
    return parts


@checked
def ledger_json(measurements: Mapping[str, Measurement]) -> dict[str, Any]:
    """Return the ledger as plain values: {"A1": {"verdict": ..., "parts": [...]}, ...}."""
    return {
        row: {
            "verdict": verdict_of_row(parts),
            "experiment": ROWS[row].experiment,
            "reason": "" if parts else _unwritten(row),
            "parts": [_plain(part) for part in parts],
        }
        for row, parts in ledger(measurements).items()
    }


@checked
def ledger_page(measurements: Mapping[str, Measurement]) -> str:
    """Return the ledger as a page in Markdown, with links to the figures."""
    rows = ledger(measurements)
    lines = [HEAD]
    for document, title in DOCUMENTS.items():
        lines += [f"## {document}: {title}", ""]
        lines += ["| row | place | claim | measured | verdict |", "|---|---|---|---|---|"]
        for row, parts in rows.items():
            if ROWS[row].document == document:
                lines += _lines(row, parts, measurements)
        lines += [""]
    return "\n".join(lines)


def _lines(row: str, parts: list[Part], measurements: Mapping[str, Measurement]) -> list[str]:
    """Return a row's lines of the table: one per part, the first with its name and figures."""
    place, name = ROWS[row], ROWS[row].experiment
    if not parts:
        return [f"| {row} | {place.place} | {place.about} | {_unwritten(row)} | open |"]
    figures = [f"[{f}](lab/{name}/{f}.svg)" for f in measurements[name].figures]
    lines = []
    for index, part in enumerate(parts):
        first = f"{row} [{name}](lab/{name}/page.md) {' '.join(figures)}" if index == 0 else ""
        where = place.place if index == 0 else ""
        words = [part.claim.sentence, _result(part), part.verdict]
        lines.append(f"| {first} | {where} | " + " | ".join(map(_cell, words)) + " |")
    return lines


def _result(part: Part) -> str:
    """Return what was measured, and what is right where that needs saying."""
    if part.verdict == "confirmed":
        return str(part.measured)
    result = part.capital_reason if part.verdict == "open" else str(part.measured)
    return f"{result}. {part.claim.right}".strip()


def _plain(part: Part) -> dict[str, Any]:
    measured: Measured = part.measured
    return {
        "claim": str(part.claim),
        "measured": None if measured.reason else measured.value,
        "uncertainty": measured.uncertainty,
        "verdict": part.verdict,
        "threshold": f"{part.claim.within}",
        "reason": part.reason,
        "right": part.claim.right,
    }


def _unwritten(row: str) -> str:
    name = ROWS[row].experiment
    if name in EXPERIMENTS:
        return f"not measured yet: run `qk lab {name}`"
    return f"no experiment `{name}` is written yet"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
