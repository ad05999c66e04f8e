"""What `check` found, to read, to print and to store."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields
from importlib import metadata
from typing import Any

from querykey.errors import QuerykeyError

SCHEMA = 1  # of the JSON of `qk check`; a reader refuses any other
VERDICTS = (
    "holds", "violated", "limitation", "advice", "tie", "vacuous", "not-applicable", "error",
    "timeout",
)  # fmt: skip


class SchemaError(QuerykeyError):
    """One sentence: a stored report has another schema than this version reads."""


@dataclass(frozen=True)
class Finding:
    """The verdict of one law on one model, and the evidence."""

    law: str
    verdict: str
    deviation: float | None = None
    floor: float | None = None
    where: dict[str, int] = field(default_factory=dict)
    module: str | None = None  # the path of the guilty module
    source: str | None = None  # its class, file and line
    setting: dict[str, Any] = field(default_factory=dict)
    repro: str | None = None
    note: str = ""

    @staticmethod
    def from_json(values: dict[str, Any]) -> Finding:
        """Return the finding that `as_json` wrote, without fields that this version lacks."""
        known = {f.name for f in fields(Finding)}
        return Finding(**{name: value for name, value in values.items() if name in known})

    def as_json(self) -> dict[str, Any]:
        """Return plain values; a number that is not finite becomes null, and the note says so."""
        note = self.note
        if self.deviation is not None and not math.isfinite(self.deviation):
            note = "; ".join(part for part in (note, f"deviation is {self.deviation}") if part)
        return {
            "law": self.law,
            "verdict": self.verdict,
            "deviation": _finite(self.deviation),
            "floor": _finite(self.floor),
            "where": self.where,
            "module": self.module,
            "source": self.source,
            "setting": self.setting,
            "repro": self.repro,
            "note": note,
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Report:
    """The findings of all laws on one target."""

    target: str
    kind: str
    laws: list[Finding]
    built: bool = True
    seconds: float = 0.0
    seed: int = 0
    weights: str = "both"
    versions: dict[str, str] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    note: str = ""  # why it was not built or did not finish

    @property
    def violations(self) -> list[Finding]:
        """The laws that are broken."""
        return [finding for finding in self.laws if finding.verdict == "violated"]

    @property
    def failed(self) -> bool:
        """Whether it could not be run, wholly or in part."""
        return not self.built or any(f.verdict in ("error", "timeout") for f in self.laws)

    @property
    def untried(self) -> str | None:
        """The reason why no law at all could be tried, where all laws name the same one."""
        reasons = {f.note if f.verdict == "error" else None for f in self.laws}
        return reasons.pop() if len(reasons) == 1 else None

    def law(self, name: str) -> Finding:
        """Return the finding of one law."""
        for finding in self.laws:
            if finding.law == name:
                return finding
        names = ", ".join(finding.law for finding in self.laws)
        raise KeyError(f"no law `{name}` was tried; tried were {names}")

    def as_json(self) -> dict[str, Any]:
        """Return plain values, as `qk check --json` prints them."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "kind": self.kind,
            "built": self.built,
            "seconds": round(self.seconds, 3),
            "versions": self.versions,
            "seed": self.seed,
            "weights": self.weights,
            "laws": [finding.as_json() for finding in self.laws],
            "about": self.about,
            "note": self.note,
        }

    @staticmethod
    def from_json(values: dict[str, Any]) -> Report:
        """Return the report that `as_json` wrote; a SchemaError refuses another version's.

        Fields that this version does not know are passed over: the same schema may gain some.
        """
        check_schema(values)
        known = {f.name for f in fields(Report)} - {"laws"}
        laws = [Finding.from_json(finding) for finding in values["laws"]]
        return Report(laws=laws, **{k: v for k, v in values.items() if k in known})

    def __str__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        console = Console(file=out, width=110)
        for part in self.parts():
            console.print(part, soft_wrap=True)  # code that was folded does not run
        return out.getvalue().rstrip()

    def parts(self, known: Collection[str] = ()) -> list[Any]:
        """Return what a terminal shows: a heading, the table of laws, every breach in full."""
        from rich.text import Text

        from querykey.show import table

        count, nothing = len(self.violations), self.untried
        verdict = f"{count} law{'s' if count != 1 else ''} broken" if count else "no law broken"
        if not self.built:
            verdict = "not built"
        elif nothing is not None:
            verdict = "no law could be tried"
        elif self.failed:
            verdict += ", but not all could be tried"
        shown: list[Any] = [Text(f"{self.target} ({self.kind}): {verdict}", style="bold")]
        if reason := self.note or nothing:
            shown.append(Text(reason))
        if self.laws and nothing is None:
            rows = [
                (f.law, f.verdict, _number(f.deviation), f.module or "", f.note) for f in self.laws
            ]
            shown.append(table(("law", "verdict", "deviation", "module", "note"), rows))
        shown += [Text(explained(f, f.law in known)) for f in self.violations]
        return shown


def check_schema(values: dict[str, Any]) -> None:
    """Raise a SchemaError unless plain values have the schema that this version reads."""
    schema = values.get("schema")
    if schema != SCHEMA:
        raise SchemaError(
            f"a report of schema {schema!r} was found, and this version of querykey reads schema "
            f"{SCHEMA}; write it anew with `qk check`"
        )


def explained(finding: Finding, known: bool = False) -> str:
    """Return a breach in full; its code begins at the left, so that a copy of it runs."""
    place = ", ".join(f"{k} {v}" for k, v in finding.where.items())
    lines = [f"{finding.law} is violated{' (known)' if known else ''}: {finding.note}"]
    size = _number(finding.deviation)
    lines.append(
        f"  relative deviation {size}, where rounding makes {_number(finding.floor)}"
        + (f"; at {place}" if place else "")
    )
    if finding.setting:
        lines.append("  with " + ", ".join(f"{k}={v}" for k, v in finding.setting.items()))
    if finding.module:
        lines.append(f"  first module to blame: {finding.module} ({finding.source})")
    if finding.repro:
        lines += ["  to see it:", finding.repro]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def versions() -> dict[str, str]:
    """Return the versions of the packages that a report depends on, as far as they are loaded."""
    return installed(["querykey", *(n for n in ("torch", "transformers") if n in sys.modules)])


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Return versions by package; a package that is used without being installed is left out."""
    numbers = {}
    for package in packages:
        try:
            numbers[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return numbers
