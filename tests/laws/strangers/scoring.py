"""Scoring the laws on the cases of this folder: is a fault caught, is a module blamed rightly?"""

import fnmatch
import importlib
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.laws.strangers.case import Built, Case

from querykey.laws import Finding, Report, check

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Score:
    """What the laws said of one case: its fault, and its lawful twin."""

    case: str
    caught: bool  # by one of the laws that the author named
    blamed: bool  # and the module that the author named
    accused: bool  # the lawful twin
    note: str
    seconds: float

    @property
    def right(self) -> bool:
        """Return whether nothing is wrong with this case."""
        return self.caught and self.blamed and not self.accused


def styles() -> list[str]:
    """Return the names of the styles, one file each."""
    return sorted(file.stem for file in FOLDER.glob("*.py") if "\nCASES = " in file.read_text())


def cases(style: str) -> list[Case]:
    """Return the cases of one style."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(importlib.import_module(f"tests.laws.strangers.{style}").CASES)


def checked(factory: Callable[[], Built]) -> Report:
    """Return the report of what a factory builds: a model, or a model and an example."""
    with warnings.catch_warnings():  # strangers use what torch has deprecated
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        built = factory()
        model, example = built if isinstance(built, tuple) else (built, None)
        return check(model, example)


def score(style: str, case: Case) -> Score:
    """Check a case's fault and its twin."""
    began = time.perf_counter()
    faulty = checked(case.faulty)
    seconds = time.perf_counter() - began
    twin = checked(case.lawful)
    findings = [f for f in faulty.laws if f.law in case.laws and _tells(f, twin)]
    patterns = case.module if isinstance(case.module, tuple) else (case.module,)
    blamed = any(_fits(finding.module, patterns) for finding in findings[:1])
    verdicts = [f"{f.law} {f.verdict} {f.module}" for f in findings or faulty.violations]
    note = (
        f"wanted {'/'.join(case.laws)} {case.module!r}; {faulty.kind}: "
        f"{', '.join(verdicts) or 'no law broken'}"
    )
    if twin.violations:
        note += "; twin: " + ", ".join(f"{f.law} {f.module} {f.note[:90]}" for f in twin.violations)
    name = f"{style}:{case.name}"
    return Score(name, bool(findings), blamed, bool(twin.violations), note, round(seconds, 2))


# What is never more than advice, by a finding's law and words of its note.
ADVICE = (
    ("saturation", ""),
    ("equivariance", ""),
    ("", "cast to"),
    ("causality", "BatchNorm"),
    ("gradient.reaches", "no operation reads"),
    ("padding.left", "no position"),
    ("padding.right", "so it hides nothing"),
)


def _tells(finding: Finding, twin: Report) -> bool:
    """Return whether a finding tells of a fault; advice does that its twin does not get."""
    if finding.verdict != "advice" or twin.law(finding.law).verdict == "advice":
        return finding.verdict == "violated"
    return any(finding.law.startswith(law) and words in finding.note for law, words in ADVICE)


def _fits(module: str | None, patterns: tuple[str | None, ...]) -> bool:
    """Return whether the blamed module is one of those that the author named; None: nobody is."""
    path = "" if module in (None, "(model)") else module
    return any(pattern is None or fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
