"""What `check` found, to read, to print and to store."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from querykey.laws.law import Finding

BAD = ("violated", "error", "timeout")


@dataclass(frozen=True)
class Report:
    """The findings on one target."""

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
        """Why no law at all could be tried, where one reason is that of all."""
        reasons = {f.note if f.verdict == "error" else None for f in self.laws}
        return reasons.pop() if len(reasons) == 1 else None

    def law(self, name: str) -> Finding:
        """The finding of one law."""
        for finding in self.laws:
            if finding.law == name:
                return finding
        names = ", ".join(finding.law for finding in self.laws)
        raise KeyError(f"no law `{name}` was tried; tried were {names}")

    def as_json(self) -> dict[str, Any]:
        """Plain values, as `qk check --json` prints them."""
        return {
            "schema": 1,
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
    def from_json(made: dict[str, Any]) -> Report:
        """The report that `as_json` wrote."""
        fields = {k: v for k, v in made.items() if k not in ("schema", "laws")}
        return Report(laws=[Finding(**finding) for finding in made["laws"]], **fields)

    def __str__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        console = Console(file=out, width=110)
        for part in self.parts():
            console.print(part, soft_wrap=True)  # code that was folded does not run
        return out.getvalue().rstrip()

    def parts(self, known: Collection[str] = ()) -> list[Any]:
        """What a terminal shows: a heading, the table of laws, each breach in full."""
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
        if said := self.note or nothing:
            shown.append(Text(said))
        if self.laws and nothing is None:
            rows = [
                (f.law, f.verdict, _number(f.deviation), f.module or "", f.note) for f in self.laws
            ]
            shown.append(table(("law", "verdict", "deviation", "module", "note"), rows))
        shown += [Text(explained(f, f.law in known)) for f in self.violations]
        return shown


def explained(finding: Finding, known: bool = False) -> str:
    """A breach in full; its code begins at the left, so that a copy of it runs."""
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
    """What was installed, as far as it was loaded."""
    import sys

    return installed(["querykey", *(n for n in ("torch", "transformers") if n in sys.modules)])


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Versions, loaded or not; nothing for what is used without having been installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
