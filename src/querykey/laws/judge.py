"""One law on one model: every setting is tried, the worst one is judged, and a module blamed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

from querykey.laws.blaming.blame import blame
from querykey.laws.blaming.guilty_module import GuiltyModule, describe
from querykey.laws.blaming.limitations import by_design, limitation
from querykey.laws.blaming.recorder import ModuleCall
from querykey.laws.blaming.reproduction import reproduction
from querykey.laws.catalogue.not_finite import spoiled
from querykey.laws.finding import Finding
from querykey.laws.law import Law, RefusalError
from querykey.laws.run import Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Outcome, Trial, conduct, is_left_to_chance
from querykey.laws.understanding.facts import FLOORS
from querykey.words import last_line, raised, traceback_of

FLEX = re.compile("flex ?attention", re.I)  # which refuses some calls on a CPU
RESEEDED = (11, 23)  # seeds of other weights and inputs, to tell a breach from a tie
NAN_IS_SEEN = ("gradient.reaches", "masked-row")  # laws that tell of answers that are not finite
CHOICES = {
    "topk", "argmax", "argmin", "max", "min", "sort", "argsort", "msort", "kthvalue", "median",
    "round", "floor", "ceil", "sign", "unique", "nonzero", "bucketize", "searchsorted",
    "multinomial", "one_hot",
}  # fmt: skip


@dataclass
class _Tally:
    """What the trials of a law showed: outcomes with the settings they were asked in."""

    outcomes: list[tuple[Outcome, Setting]] = field(default_factory=list)
    vacuous: list[Outcome] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome, setting: Setting, threshold: float) -> None:
        """Count an outcome; one whose control did not move shows nothing."""
        idle = outcome.control is not None and not outcome.control > threshold
        if idle and not outcome.deviation > threshold:
            self.vacuous.append(outcome)
        else:
            self.outcomes.append((outcome, setting))


def judge(runner: Runner, law: Law, weights: str = "both") -> Finding:
    """Return the verdict of one law; whatever the model raises becomes one."""
    try:
        why_not = by_design(runner.subject, law.name) or law.applies(runner)
        if why_not:
            doubt = runner.facts.intent.doubt if law.name.startswith("causality") else ""
            note = f"{why_not}; {doubt}" if doubt else why_not
            return Finding(law.name, "advice" if doubt else "not-applicable", note=note)
        return _verdict(runner, law, _tally(runner, law, weights))
    except RefusalError as error:
        return Finding(law.name, "not-applicable", note=str(error))
    except Exception as error:
        if isinstance(error, NotImplementedError | ValueError) and FLEX.search(str(error)):
            return Finding(law.name, "not-applicable", note=last_line(error)[:200])
        if law.name.startswith("cache."):  # a refusal is honest: nothing is silently wrong
            return Finding(
                law.name, "not-applicable", note=f"the model raised {last_line(error)[:200]}"
            )
        note = raised(error, 300)
        return Finding(law.name, "error", note=note, traceback=traceback_of(error))


def _tally(runner: Runner, law: Law, weights: str) -> _Tally:
    """Try the law in every setting; only what the first one raises ends it."""
    tally = _Tally()
    for index, setting in enumerate(_settings(runner, law)):
        if weights == "random" and setting.weights == "own":
            continue
        if weights == "own":
            setting = replace(setting, weights="own")
        if setting.weights == "own" and law.name not in NAN_IS_SEEN and spoiled(runner):
            tally.failures.append("with the model's own weights: they are not finite")
            continue
        try:
            for outcome in _outcomes(runner, law, setting, tally.failures):
                tally.add(outcome, setting, runner.facts.threshold)
        except Exception as error:
            if index == 0:
                raise
            tally.failures.append(f"with {setting}: {last_line(error)[:120]}")
    return tally


def _settings(runner: Runner, law: Law) -> Iterator[Setting]:
    """Yield the settings that a law asks for; at its one length where a model takes no other."""
    only, seen = runner.signature.only, set()
    for setting in law.sweep(runner):
        fitted = replace(setting, length=only) if only else setting
        if not only or fitted not in seen:
            seen.add(fitted)
            yield fitted


def _outcomes(runner: Runner, law: Law, setting: Setting, failures: list[str]) -> Iterator[Outcome]:
    """Yield what every trial shows; one that raises is left out, unless all of them raise."""
    raised, shown = None, False
    for trial in law.trials(runner, setting):
        if not isinstance(trial, Trial):
            shown = True
            yield trial
            continue
        try:
            outcome = conduct(runner, trial)
        except Exception as error:
            raised = raised or error
            failures.append(f"{trial.what}: {last_line(error)[:120]}")
            continue
        shown = True
        if outcome.deviation > runner.facts.threshold and is_left_to_chance(runner, trial):
            failures.append(f"{trial.what}: in training mode, numbers drawn at random decide")
            continue
        yield outcome
    if raised and not shown:
        raise raised


def _verdict(runner: Runner, law: Law, tally: _Tally) -> Finding:
    """Return the finding that the tried settings add up to."""
    if not tally.outcomes:
        if not tally.vacuous:
            note = tally.failures[0] if tally.failures else "there was nothing to try"
            return Finding(law.name, "not-applicable", note=note)
        note = "what was changed had no effect where it may have one"
        return Finding(law.name, "vacuous", floor=runner.facts.floor, note=note)
    worst, setting, failing = _worst(tally.outcomes, runner.facts.threshold)
    finding = Finding(
        law.name,
        ("advice" if worst.advice else "violated") if failing else "holds",
        worst.deviation,
        runner.facts.floor,
        worst.evidence.where,
        setting=worst.setting.label(),
        note=worst.note,
    )
    if not failing:
        return replace(finding, note=f"not tried: {tally.failures[0]}" if tally.failures else "")
    if not worst.advice:
        return _explained(runner, law, finding, worst, setting)
    guilty = worst.evidence.module
    if isinstance(guilty, GuiltyModule):
        return replace(finding, module=guilty.path, source=guilty.source)
    return finding


def _worst(
    outcomes: list[tuple[Outcome, Setting]], threshold: float
) -> tuple[Outcome, Setting, bool]:
    """Return the outcome to report, its setting, and whether it exceeds the threshold.

    Among the settings that fail badly the plainest one is reported: it tells the most.
    """
    worst = max(outcomes, key=lambda pair: pair[0].deviation)
    failing = [pair for pair in outcomes if pair[0].deviation > threshold]
    failing = [pair for pair in failing if not pair[0].advice] or failing
    if failing:
        bad = [pair for pair in failing if pair[0].deviation > 0.01 * worst[0].deviation]
        worst = min(bad or failing, key=lambda pair: len(pair[0].setting.label()))
    return *worst, bool(failing)


def _explained(
    runner: Runner, law: Law, finding: Finding, worst: Outcome, setting: Setting
) -> Finding:
    """Return a breach with its module and reproduction; or a known limitation; or a tie."""
    guilty = _guilty(runner, worst)
    if guilty:
        finding = replace(finding, module=guilty.path, source=guilty.source)
        reason = by_design(runner.subject, law.name, guilty.path)
        if reason:
            return replace(finding, verdict="not-applicable", note=reason)
    known = limitation(runner.copies.model, finding)
    if known:
        note = f"{known.reason} ({finding.note})"
        return replace(finding, verdict=known.verdict, note=note)
    trial = worst.evidence.trial
    if trial is not None and law.name != "determinism" and _is_tie(runner, law, worst, setting):
        note = "gone with other weights and tokens: two values tied, and rounding chose"
        return replace(finding, verdict="tie", note=note)
    return replace(finding, repro=reproduction(runner, finding, worst))


def _guilty(runner: Runner, outcome: Outcome) -> GuiltyModule | None:
    """Return the module to blame: the law's own word, else the trial's, else the law's guess."""
    module, trial = outcome.evidence.module, outcome.evidence.trial
    if isinstance(module, GuiltyModule):
        return module
    guilty = None
    if trial is not None:
        with suppress(Exception):
            guilty = blame(runner, trial)
    if guilty is None and isinstance(module, ModuleCall):
        guilty = describe(module)
    return guilty


def _is_tie(runner: Runner, law: Law, worst: Outcome, setting: Setting) -> bool:
    """Return whether the same trial shows rounding alone with other weights and tokens, twice.

    What stays far above the floor is a leak, however small: a tie is gone altogether. And only
    what chooses, by the largest score or by rounding, can meet a tie.
    """
    if not runner.copies.functions & CHOICES:
        return False
    floor = max(runner.facts.floor, torch.finfo(runner.copies.dtype).eps)
    rounding = min(FLOORS * floor, runner.facts.threshold)
    recipe = runner.copies.recipe
    for seed in RESEEDED:
        copies = runner.copies.by(replace(recipe, seed=recipe.seed + seed, noisy=True))
        other = Runner(copies, runner.facts)
        try:
            outcomes = list(_outcomes(other, law, setting, []))
        except Exception:
            return False
        same = [outcome for outcome in outcomes if outcome.question == worst.question]
        if any(not outcome.deviation <= rounding for outcome in same):
            return False
    return True
