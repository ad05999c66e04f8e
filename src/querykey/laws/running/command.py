"""The command `qk check`: it runs targets, shows a live table, prints findings, and exits."""

from __future__ import annotations

import fnmatch
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from querykey.errors import QuerykeyError
from querykey.laws.check import choose
from querykey.laws.finding import Finding
from querykey.laws.printed import WIDTH, Marks, breach, causes, explained, nothing_tried
from querykey.laws.report import Report, SchemaError, check_schema
from querykey.laws.running.store import endless, unwritable
from querykey.laws.running.workers import stream
from querykey.show import until_the_reader_leaves, write_file

FINE, BROKEN, NOTHING, FAILED = 0, 1, 2, 3


class BadCallError(QuerykeyError):
    """One sentence: what is wrong with the way `qk check` was called."""


def run_command(
    targets: Sequence[str],
    laws: list[str] | None,
    as_json: bool,
    html: Path | None,
    baseline: Path | None,
    store: Path | None,
) -> int:
    """Check the targets, print and write what was found, and return the exit code."""
    known = read_baseline(baseline)
    choose(laws)
    reason = "" if html is None else unwritable(html)
    if reason:
        raise BadCallError(f"no page can be written to `{html}`: {reason}")
    names = expand(targets)
    reports = _checked(names, laws, store, quiet=as_json)
    if html is not None:
        write_file(html, as_page(reports))
    code = exit_code(reports, known)
    with until_the_reader_leaves():
        if as_json:
            print(json.dumps([report.as_json() for report in reports], indent=1))
        else:
            _print(reports, known)
    return code


def _checked(
    names: list[str], laws: list[str] | None, store: Path | None, quiet: bool
) -> list[Report]:
    """Return a report per name, and show the live table meanwhile."""
    finished = {}
    with _Live(names, quiet) as show:
        for report in stream(names, laws, store=store, tell=show.tell):
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
            raise TypeError("it is no regular file")
        reports = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(reports, list):
            raise TypeError("it holds no list")
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
            f"`{file}` is no baseline (it is what `qk check --json` printed): "
            f"{type(error).__name__}: {error}"
        ) from error


def as_page(reports: list[Report]) -> str:
    """Return one self-contained HTML page with every finding."""
    from querykey.show import code, grid, heading, page, text

    broken = [report for report in reports if report.violations]
    sections = [
        text(f"{len(reports)} targets, {len(broken)} of them break a law."),
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


def _print(reports: list[Report], known: set[tuple[str, str]]) -> None:
    """Print one report in full, or an overview of several with every breach."""
    from querykey.show import stdout

    console = stdout()
    width = min(console.width, WIDTH)
    if len(reports) == 1 and not reports[0].built:
        return  # the exit says why, and there is no more to say
    if len(reports) == 1:
        paragraphs = reports[0].paragraphs(_marks(reports[0], known), width)
    else:
        console.print(_overview(reports))
        paragraphs = [line for report in reports for line in _breaches(report, known, width)]
    for paragraph in paragraphs:
        console.print(paragraph, soft_wrap=True)


def _marks(report: Report, known: set[tuple[str, str]]) -> Marks:
    """Return which laws of a report the baseline knows to be broken."""
    return Marks(known={law for target, law in known if target == report.target})


def _breaches(report: Report, known: set[tuple[str, str]], width: int) -> list[Any]:
    """Return the name of a target that breaks laws, and every cause."""
    from rich.text import Text

    marks = _marks(report, known)
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
