"""One law on one model: every setting, the worst of them, and whose fault it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

from querykey.laws.blaming.blame import Blame, blame, describe
from querykey.laws.blaming.limitations import by_design, limitation
from querykey.laws.blaming.recorder import Call
from querykey.laws.blaming.reproduction import reproduction
from querykey.laws.catalogue.derivatives import RefusalError
from querykey.laws.law import Finding, Law
from querykey.laws.runner import FLOORS, Specimen
from querykey.laws.trial import Outcome, Trial, conduct
from querykey.laws.understanding.copies import Setting
from querykey.words import last_line

RESEEDED = (11, 23)  # other weights and inputs, to tell a breach from a tie


@dataclass
class _Tally:
    """What the trials of a law showed."""

    outcomes: list[Outcome] = field(default_factory=list)
    vacuous: list[Outcome] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome, threshold: float) -> None:
        idle = outcome.control is not None and not outcome.control > threshold
        (self.vacuous if idle and not outcome.deviation > threshold else self.outcomes).append(
            outcome
        )


def judge(specimen: Specimen, law: Law, weights: str = "both") -> Finding:
    """The verdict; whatever the model raises becomes one."""
    try:
        why_not = by_design(specimen, law.name) or law.applies(specimen)
        if why_not:
            doubt = specimen.doubt and law.name.startswith("causality")
            note = f"{why_not}; {specimen.doubt}" if doubt else why_not
            return Finding(law.name, "advice" if doubt else "not-applicable", note=note)
        tally = _tally(specimen, law, weights)
        return _verdict(specimen, law, tally)
    except RefusalError as error:
        return Finding(law.name, "not-applicable", note=str(error))
    except Exception as error:
        if law.name.startswith("cache."):  # a refusal is honest: nothing is silently wrong
            return Finding(law.name, "not-applicable", note=f"it refuses: {last_line(error)[:200]}")
        return Finding(law.name, "error", note=f"{last_line(error)[:300]}")


def _tally(specimen: Specimen, law: Law, weights: str) -> _Tally:
    tally = _Tally()
    for index, setting in enumerate(law.sweep(specimen)):
        if weights == "random" and setting.weights == "own":
            continue
        if weights == "own":
            setting = replace(setting, weights="own")
        try:
            for outcome in _outcomes(specimen, law, setting, tally.failures):
                tally.add(replace(outcome, base=setting), specimen.threshold)
        except Exception as error:
            if index == 0:
                raise
            tally.failures.append(f"with {setting}: {last_line(error)[:120]}")
    return tally


def _outcomes(
    specimen: Specimen, law: Law, setting: Setting, failures: list[str]
) -> Iterator[Outcome]:
    """What each trial shows; one that raises says nothing, unless all do."""
    raised, said = None, False
    for trial in law.trials(specimen, setting):
        if not isinstance(trial, Trial):
            yield trial
            continue
        try:
            outcome = conduct(specimen, trial)
        except Exception as error:
            raised = raised or error
            failures.append(f"{trial.what}: {last_line(error)[:120]}")
            continue
        said = True
        yield outcome
    if raised and not said:
        raise raised


def _verdict(specimen: Specimen, law: Law, tally: _Tally) -> Finding:
    if not tally.outcomes:
        note = "what was changed had no effect where it may have one"
        if not tally.vacuous:
            note = tally.failures[0] if tally.failures else "nothing to try"
            return Finding(law.name, "not-applicable", note=note)
        return Finding(law.name, "vacuous", floor=specimen.floor, note=note)
    worst = max(tally.outcomes, key=lambda o: o.deviation)
    # Among the settings that fail, the plainest one is the most telling.
    failing = [o for o in tally.outcomes if o.deviation > specimen.threshold]
    breaches = [o for o in failing if not o.advice]
    failing = breaches or failing
    if failing:
        bad = [o for o in failing if o.deviation > 0.01 * worst.deviation]
        worst = min(bad or failing, key=lambda o: len(o.setting.label()))
    broken = "advice" if worst.advice else "violated"
    finding = Finding(
        law.name,
        broken if failing else "holds",
        worst.deviation,
        specimen.floor,
        worst.where,
        setting=worst.setting.label(),
        note=worst.note,
    )
    if not failing:
        return replace(finding, note=f"not tried: {tally.failures[0]}" if tally.failures else "")
    if not worst.advice:
        return _explained(specimen, law, finding, worst)
    found = worst.module
    return replace(finding, module=found.path, source=found.source) if found else finding


def _explained(specimen: Specimen, law: Law, finding: Finding, worst: Outcome) -> Finding:
    """A breach with its module and reproduction; or a known limitation; or a tie."""
    found = _blamed(specimen, worst)
    if found:
        finding = replace(finding, module=found.path, source=found.source)
        meant = by_design(specimen, law.name, found.path)
        if meant:
            return replace(finding, verdict="not-applicable", note=meant)
    known = limitation(specimen, law.name, finding)
    if known:
        return replace(finding, verdict="limitation", note=f"{known} ({finding.note})")
    if worst.trial is not None and law.name != "determinism" and _is_tie(specimen, law, worst):
        return replace(
            finding,
            verdict="tie",
            note="gone with other weights and tokens: two values tied, and rounding chose",
        )
    return replace(finding, repro=reproduction(specimen, law.name, worst.trial))


def _blamed(specimen: Specimen, outcome: Outcome) -> Blame | None:
    if isinstance(outcome.module, Blame):
        return outcome.module
    found = None
    if outcome.trial is not None:
        with suppress(Exception):
            found = blame(specimen, outcome.trial)
    if found is None and isinstance(outcome.module, Call):
        found = describe(outcome.module)
    return found


def _is_tie(specimen: Specimen, law: Law, worst: Outcome) -> bool:
    """Whether the same trial shows rounding alone with other weights and other tokens, twice.

    What stays far above the floor is a leak, however small: a tie is gone altogether.
    """
    floor = max(specimen.floor, torch.finfo(specimen.bench.dtype).eps)
    rounding = min(FLOORS * floor, specimen.threshold)
    for seed in RESEEDED:
        bench = replace(specimen.bench, seed=specimen.bench.seed + seed, twins={}, shaken=True)
        other = replace(specimen, bench=bench, drawn={}, known={})
        try:
            trials = [t for t in _outcomes(other, law, worst.base, []) if t.note == worst.note]
        except Exception:
            return False
        if any(not each.deviation <= rounding for each in trials):
            return False
    return True
