"""The printed report: what the model was taken for, every breach once per cause, and the rest."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from querykey.errors import visible
from querykey.laws.finding import UNTRIED, Finding
from querykey.words import checked, plural

if TYPE_CHECKING:
    from rich.text import Text

WIDTH = 80
ROOTS = (None, "", "(model)")  # the whole model is blamed for what has no place of its own
# Laws that one mistake breaks together, where the whole model is blamed.
FAMILIES = {"accumulation": "batch", "masked-row": "padding"}
LOUD = {
    "error": ("FAILED", "magenta"),
    "timeout": ("FAILED", "magenta"),
    "vacuous": ("NOTHING SHOWN", "yellow"),
}
STYLES = {"advice": "yellow", "limitation": "cyan", "tie": "cyan"}


@dataclass(frozen=True)
class Heading:
    """What stands above the findings of a report."""

    target: str
    kind: str
    about: Mapping[str, str] = field(default_factory=dict)  # what was found out, and why
    problem: str = ""  # why it was not built, or not run to the end
    built: bool = True


@dataclass(frozen=True)
class Marks:
    """What is said of breaches beside the findings: those that are known, and their scripts."""

    known: Collection[str] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)  # by law: the file that shows it


def printed(
    heading: Heading, findings: Sequence[Finding], marks: Marks, width: int = WIDTH
) -> list[Text]:
    """Return a report as coloured paragraphs of at most `width` columns."""
    width = min(width, WIDTH)
    shown = headline(heading, findings, width)
    if not heading.built or nothing_tried(findings):
        return shown
    broken = [finding for finding in findings if finding.verdict == "violated"]
    for group in causes(broken):
        shown += breach(group, marks, width)
    told: dict[tuple[str, str], list[str]] = {}  # laws of which the same is said
    for finding in findings:
        if finding.verdict in STYLES:
            words = f"{finding.note}{_blamed(finding)}"
            told.setdefault((finding.verdict, words), []).append(finding.law)
    for (verdict, words), laws in told.items():
        line = f"{verdict.upper()} {', '.join(laws)}: {words}"
        shown.append(_paragraph(line, width, STYLES[verdict]))
    holding = [finding.law for finding in findings if finding.verdict == "holds"]
    if holding:
        shown.append(_paragraph(f"holds: {', '.join(holding)}", width, "green"))
    shown += untried(findings, width)
    return shown


def headline(heading: Heading, findings: Sequence[Finding], width: int = WIDTH) -> list[Text]:
    """Return what the model was taken for and why, and how many laws were tried and broken."""
    shown = [_paragraph(f"{heading.target} ({heading.kind})", width, "bold")]
    names = max(map(len, heading.about), default=0)
    for name, value in heading.about.items():
        margin = f"  {name.ljust(names)}  "
        shown.append(_paragraph(value, width, first=margin, rest=" " * len(margin)))
    shown.append(_paragraph(in_short(heading, findings), width, "bold"))
    if reason := heading.problem or nothing_tried(findings):
        shown.append(_paragraph(reason, width))
    return shown


def in_short(heading: Heading, findings: Sequence[Finding]) -> str:
    """Return one sentence: how many laws were tried, and how many are broken."""
    if not heading.built:
        return "not built"
    if nothing_tried(findings):
        return "no law could be tried"
    tried = sum(finding.verdict not in UNTRIED for finding in findings)
    failed = sum(finding.verdict in ("error", "timeout") for finding in findings)
    broken = sum(finding.verdict == "violated" for finding in findings)
    words = f"{tried} of {plural(len(findings), 'law')} tried, {broken or 'none'} broken"
    return f"{words}, {failed} failed to run" if failed else words


def nothing_tried(findings: Sequence[Finding]) -> str:
    """Return the reason why no law at all could be tried, where all laws name the same one."""
    reasons = {f.note if f.verdict in UNTRIED else "" for f in findings}
    return reasons.pop() if len(reasons) == 1 else ""


def causes(broken: Iterable[Finding]) -> list[list[Finding]]:
    """Return breaches in groups of one cause: the same module, or the same subject of laws."""
    groups: dict[tuple[str | None, ...], list[Finding]] = {}
    for finding in broken:
        family = finding.law.partition(".")[0]
        subject = FAMILIES.get(family, family) if finding.module in ROOTS else ""
        if family == "training":  # each of these laws has a cause of its own
            subject = finding.law
        groups.setdefault((finding.module, finding.source, subject), []).append(finding)
    return list(groups.values())


def breach(group: Sequence[Finding], marks: Marks, width: int = WIDTH) -> list[Text]:
    """Return one cause in full: its laws, what went wrong, the module to blame, and a script."""
    first = group[0]
    laws = ", ".join(f"{f.law}{' (known)' * (f.law in marks.known)}" for f in group)
    lines = [first.note, _sized(first)]
    if first.module:
        lines.append(f"first module to blame: {first.module} ({first.source})")
    if first.setting:
        lines.append("called with " + ", ".join(f"{k}={v}" for k, v in first.setting.items()))
    if first.law in marks.scripts:
        lines.append(f"to reproduce: python {marks.scripts[first.law]}")
    shown = [_paragraph(f"BROKEN {laws}", width, "bold red")]
    return shown + [_paragraph(line, width, first="  ", rest="    ") for line in lines if line]


@checked
def explained(finding: Finding, known: bool = False) -> str:
    """Return one breach in full, as plain lines."""
    marks = Marks(known=(finding.law,) if known else ())
    return "\n".join(paragraph.plain for paragraph in breach([finding], marks))


def untried(findings: Iterable[Finding], width: int = WIDTH) -> list[Text]:
    """Return what failed or showed nothing, law by law, and what was not tried in one line."""
    shown, left_out = [], []
    for finding in findings:
        if finding.verdict in LOUD:
            title, style = LOUD[finding.verdict]
            shown.append(_paragraph(f"{title} {finding.law}: {finding.note}", width, style))
        elif finding.verdict == "not-applicable":
            left_out.append(finding.law)
    if left_out:
        words = f"not tried: {_folded(left_out)} (--json says why)"
        shown.append(_paragraph(words, width, "dim"))
    return shown


def _folded(laws: Iterable[str]) -> str:
    """Return the names of laws, several of one subject as their number: `cache (3), tying`."""
    subjects: dict[str, list[str]] = {}
    for law in laws:
        subjects.setdefault(law.partition(".")[0], []).append(law)
    return ", ".join(
        names[0] if len(names) == 1 else f"{subject} ({len(names)})"
        for subject, names in subjects.items()
    )


def _sized(finding: Finding) -> str:
    """Return how large a difference is, relative to the answers, and how much of it is rounding."""
    if finding.deviation is None or finding.floor is None:
        return ""
    return f"relative difference {finding.deviation:.1e}; rounding alone makes {finding.floor:.1e}"


def _blamed(finding: Finding) -> str:
    return f"; first module to blame: {finding.module} ({finding.source})" * bool(finding.module)


def _paragraph(words: str, width: int, style: str = "", first: str = "", rest: str = "  ") -> Text:
    """Return text in lines of at most `width` columns: `first` before line 1, `rest` before others.

    A word that is longer, such as a path, keeps its line.
    """
    from rich.text import Text

    lines = textwrap.wrap(
        visible(words), width, initial_indent=first, subsequent_indent=rest,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return Text("\n".join(lines), style=style)
