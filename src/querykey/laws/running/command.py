"""The command `qk check`: it runs targets, shows a live table, prints findings, and exits."""

from __future__ import annotations

import fnmatch
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from querykey.errors import QuerykeyError
from querykey.laws.check import choose, choose_kind
from querykey.laws.finding import Finding
from querykey.laws.printed import WIDTH, Marks, breach, causes, explained, nothing_tried
from querykey.laws.report import Report, SchemaError, check_schema
from querykey.laws.running.exports import as_junit, as_sarif
from querykey.laws.running.scripts import Scripts, write_scripts
from querykey.laws.running.store import Question, endless
from querykey.laws.running.workers import Limits, answers
from querykey.show import until_the_reader_leaves, unwritable, write_file
from querykey.words import checked, last_line, seed_number

FINE, BROKEN, NOTHING, FAILED = 0, 1, 2, 3
HINT = "--repro DIR writes a script for every breach that shows it with plain torch"


class BadCallError(QuerykeyError):
    """One sentence: what is wrong with the way `qk check` was called."""


class _NoReportsError(TypeError):
    """Says why a file cannot be a baseline."""


@dataclass(frozen=True)
class Outputs:
    """What `qk check` prints, and the files that it writes beside."""

    as_json: bool = False
    html: Path | None = None
    junit: Path | None = None
    sarif: Path | None = None
    scripts: Path | None = None  # a folder: a script for every breach
    tracebacks: bool = False  # of what models raised, on standard error


@checked
def asked(
    laws: Iterable[str] | None,
    kind: str | None,
    inputs: Sequence[str],
    seed: int,
    like: str | None = None,
) -> Question:
    """Return what is asked of every target, or raise an error that says what does not exist."""
    choose_kind(kind)
    names = tuple(law.name for law in choose(laws))
    return Question(names, seed_number(seed), kind=kind, inputs=tuple(inputs), like=like)


def run_command(
    targets: Sequence[str],
    question: Question,
    outputs: Outputs,
    baseline: Path | None = None,
    store: Path | None = None,
    limits: Limits | None = None,
) -> int:
    """Check the targets, print and write what was found, and return the exit code."""
    known = accepted(outputs, baseline)
    reports = _checked(expand(targets), question, store, limits, quiet=outputs.as_json)
    return answer(reports, known, outputs)


def accepted(outputs: Outputs, baseline: Path | None) -> set[tuple[str, str]]:
    """Return the breaches that the baseline knows, after files that cannot be written are refused.

    Nothing is tried before that.
    """
    known = read_baseline(baseline)
    for name in ("html", "junit", "sarif"):
        file = getattr(outputs, name)
        reason = "" if file is None else unwritable(file)
        if reason:
            raise BadCallError(f"nothing can be written to `{file}`: {reason}")
    if outputs.scripts is not None and (reason := _no_folder(outputs.scripts)):
        raise BadCallError(f"no script can be written to `{outputs.scripts}`: {reason}")
    return known


def answer(reports: list[Report], known: set[tuple[str, str]], outputs: Outputs) -> int:
    """Print and write what was found, and return the exit code."""
    scripts = _write(reports, known, outputs)
    code = exit_code(reports, known)
    if outputs.tracebacks:
        _print_tracebacks(reports)
    with until_the_reader_leaves():
        if outputs.as_json:
            print(json.dumps([report.as_json() for report in reports], indent=1))
        else:
            _print(reports, _Said(known, scripts))
    return code


def _no_folder(path: Path) -> str:
    """Return why nothing can be a folder of this name, or the empty string where it can."""
    try:
        there = next(part for part in (path, *path.absolute().parents) if part.exists())
        if there.is_dir():
            return ""
        return "it is no folder" if there == path else f"`{there}` is no folder"
    except (OSError, ValueError) as error:  # such as a name that is too long
        return last_line(error) if isinstance(error, ValueError) else str(error.strerror)


@dataclass(frozen=True)
class _Said:
    """What is said of breaches beside the findings, by target and law."""

    known: Collection[tuple[str, str]] = ()
    scripts: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def of(self, target: str) -> Marks:
        """Return what is said of one target's breaches."""
        scripts = {law: file for (name, law), file in self.scripts.items() if name == target}
        return Marks({law for name, law in self.known if name == target}, scripts)


def _write(reports: list[Report], known: set[tuple[str, str]], outputs: Outputs) -> Scripts:
    """Write the files that were asked for, and return the scripts by target and law."""
    for file, text in (
        (outputs.html, as_page),
        (outputs.junit, lambda reports: as_junit(reports, known)),
        (outputs.sarif, lambda reports: as_sarif(reports, known)),
    ):
        if file is not None:
            write_file(file, text(reports))
    return write_scripts(outputs.scripts, reports) if outputs.scripts else {}


def _print_tracebacks(reports: Iterable[Report]) -> None:
    """Print on standard error, once, every traceback of what was raised."""
    texts = [t for r in reports for t in (r.traceback, *(f.traceback for f in r.laws)) if t]
    for text in dict.fromkeys(texts):
        print(text, file=sys.stderr)


def _checked(
    names: list[str], question: Question, store: Path | None, limits: Limits | None, quiet: bool
) -> list[Report]:
    """Return a report per name, and show the live table meanwhile."""
    finished = {}
    with _Live(names, quiet) as show:
        for report in answers(names, question, limits=limits, store=store, tell=show.tell):
            finished[report.target] = report
            show.done(report)
    return [finished[name] for name in dict.fromkeys(names)]


def exit_code(reports: Iterable[Report], known: set[tuple[str, str]]) -> int:
    """Return 1 where a law is broken, else 3 where a target failed, 0 where all is well.

    Where nothing could be built it is 2, as for a bad call, and the reasons are printed.
    """
    reports = list(reports)
    if not any(report.built for report in reports):
        for report in reports:
            print(f"qk: {report.note}", file=sys.stderr)
        return NOTHING
    if any((r.target, f.law) not in known for r in reports for f in r.violations):
        return BROKEN
    return FAILED if any(report.failed for report in reports) else FINE


def expand(targets: Sequence[str]) -> list[str]:
    """Return the targets with every pattern such as `hf:*` replaced by what it matches."""
    names: list[str] = []
    for target in targets:
        if not target.startswith("hf:") or not set(target) & set("*?["):
            names.append(target)
            continue
        from querykey.targets import pairs

        every = [f"hf:{model_type}:{head}" for model_type, head in pairs()]
        wide = target if target.count(":") > 1 else f"{target}:*"
        matches = [name for name in every if fnmatch.fnmatchcase(name, wide)]
        if not matches:
            raise BadCallError(f"no Hugging Face architecture with a text head matches `{target}`")
        names += matches
    return names


def read_baseline(file: Path | None) -> set[tuple[str, str]]:
    """Return the (target, law) pairs that an earlier run found broken."""
    if file is None:
        return set()
    try:
        if endless(file):
            raise _NoReportsError("it is no regular file")
        reports = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(reports, list):
            raise _NoReportsError("it holds no list")
        for report in reports:
            check_schema(report)
        return {
            (report["target"], finding["law"])
            for report in reports
            for finding in report["laws"]
            if finding["verdict"] == "violated"
        }
    except SchemaError as error:
        raise BadCallError(f"`{file}` cannot be the baseline: {error}") from error
    except (OSError, ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        raise BadCallError(
            f"`{file}` is no baseline, which is what `qk check --json` printed: {_why_none(error)}"
        ) from error


def _why_none(error: Exception) -> str:
    """Return why a file holds no reports, in words."""
    if isinstance(error, OSError):
        return str(error.strerror)
    if isinstance(error, ValueError | RecursionError):
        return f"this is no JSON ({last_line(error)})"
    if isinstance(error, KeyError):
        return f"an entry has no field {error}"
    return str(error) if type(error) is _NoReportsError else "an entry is no report"


def as_page(reports: list[Report]) -> str:
    """Return one self-contained HTML page with every finding."""
    from querykey.show import code, grid, heading, page, text

    broken = [report for report in reports if report.violations]
    sections = [
        text(f"{len(reports)} targets; {len(broken)} with broken laws."),
        grid(
            ("target", "kind", "broken", "seconds"),
            [(r.target, r.kind, _broken(r), round(r.seconds, 2)) for r in reports],
        ),
    ]
    for report in reports:
        sections.append(heading(f"{report.target} ({report.kind})"))
        if report.note:
            sections.append(text(report.note))
        if report.about:
            sections.append(grid(("found out", ""), list(report.about.items())))
        rows = [
            (f.law, f.verdict, "" if f.deviation is None else f"{f.deviation:.1e}",
             f.module or "", f.source or "", f.note)
            for f in report.laws
        ]  # fmt: skip
        sections.append(grid(("law", "verdict", "deviation", "module", "source", "note"), rows))
        sections += [code(explained(finding)) for finding in report.violations]
        sections += [code(finding.repro) for finding in report.violations if finding.repro]
    return page("The laws of attention models", *sections)


def _broken(report: Report) -> str:
    """Return the names of the broken laws, and whether some could not be tried."""
    if not report.built:
        return "not built"
    names = [finding.law for finding in report.violations]
    failed = sorted({f.verdict for f in report.laws if f.verdict in ("error", "timeout")})
    return ", ".join([*names, *failed]) or "none"


def _print(reports: list[Report], remarks: _Said) -> None:
    """Print one report in full, or an overview of several with every breach."""
    from querykey.show import stdout

    console = stdout()
    width = min(console.width, WIDTH)
    if len(reports) == 1 and not reports[0].built:
        return  # the exit says why, and there is no more to say
    if len(reports) == 1:
        paragraphs = reports[0].paragraphs(remarks.of(reports[0].target), width)
    else:
        console.print(_overview(reports))
        paragraphs = [line for report in reports for line in _breaches(report, remarks, width)]
    for paragraph in paragraphs:
        console.print(paragraph, soft_wrap=True)
    if not remarks.scripts and any(finding.repro for r in reports for finding in r.violations):
        console.print(HINT, style="dim", soft_wrap=True)


def _breaches(report: Report, remarks: _Said, width: int) -> list[Any]:
    """Return the name of a target that breaks laws, and every cause."""
    from rich.text import Text

    marks = remarks.of(report.target)
    shown = [line for group in causes(report.violations) for line in breach(group, marks, width)]
    return [Text(report.target, style="bold"), *shown] if shown else []


def _overview(reports: list[Report]) -> Any:
    from querykey.show import table

    rows = [(r.target, r.kind, _broken(r), f"{r.seconds:.1f}", _why(r)) for r in reports]
    return table(("target", "kind", "broken", "seconds", "note"), rows)


def _why(report: Report) -> str:
    """Return why a target could not be built, or run, wholly or in part."""
    failed = [f"{f.law}: {f.note}" for f in report.laws if f.verdict in ("error", "timeout")]
    return report.note or nothing_tried(report.laws) or "; ".join(failed)


class _Live:
    """A table on the terminal's error stream that grows while targets run, and then goes away."""

    def __init__(self, names: list[str], quiet: bool):
        self.names, self.findings = names, {}
        self.reports: list[Report] = []
        self.live: Any = nullcontext()
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            self.live = Live(console=console, transient=True, refresh_per_second=8)

    def __enter__(self) -> _Live:
        self.live.__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        self.live.__exit__(*reason)

    def tell(self, target: str, finding: Finding) -> None:
        """Show that a law was tried on a target."""
        self.findings.setdefault(target, []).append(finding)
        self._draw()

    def done(self, report: Report) -> None:
        """Show that a target is finished."""
        self.findings.pop(report.target, None)
        self.reports.append(report)
        self._draw()

    def _draw(self) -> None:
        """Show the last finished targets and those under way, on a terminal only."""
        if isinstance(self.live, nullcontext):
            return
        from querykey.show import table

        rows = [(r.target, _broken(r), f"{r.seconds:.1f} s") for r in self.reports[-12:]]
        rows += [
            (target, f"{findings[-1].law}: {findings[-1].verdict}", f"{len(findings)} laws tried")
            for target, findings in self.findings.items()
        ]
        title = f"{len(self.reports)} of {len(self.names)}"
        self.live.update(table(("target", "broken", ""), rows, title))
