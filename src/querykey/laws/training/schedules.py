"""A scheduler is stepped after its optimizer, as often as its own length says."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.optim import lr_scheduler

from querykey.laws.finding import Finding
from querykey.laws.private import schedulers_in
from querykey.laws.training.epochs import batches_per_epoch, whole_epochs
from querykey.laws.training.events import Backward, LoopEvent, Rescale, Schedule, Step
from querykey.laws.training.law import TrainingLaw
from querykey.laws.training.objects import alive
from querykey.laws.training.recording import Recording

NAME = "training.scheduler"
LOST = 1e-3  # of the first rate, below which a schedule has come to its end within an epoch


@dataclass
class Usage:
    """A scheduler, the events of its steps, and those of the optimizer whose rates it sets."""

    scheduler: Any
    calls: list[Schedule]
    steps: list[Step]
    recording: Recording

    @property
    def name(self) -> str:
        """What the scheduler is called in a sentence."""
        return type(self.scheduler).__name__

    @property
    def per_step(self) -> float:
        """How often it is stepped for every step of the optimizer."""
        return len(self.calls) / max(len(self.steps), 1)


def schedule(recording: Recording) -> Finding:
    """Judge every scheduler of an optimizer that takes steps."""
    if not recording.steps:
        return Finding(NAME, "not-applicable", note="no optimizer took a step")
    usages = [_usage(recording, scheduler) for scheduler in _schedulers(recording)]
    if not usages:
        return Finding(NAME, "not-applicable", note="no scheduler of torch is used")
    findings = [f for usage in usages for judge in JUDGES if (f := judge(usage))]
    findings.sort(key=lambda finding: finding.verdict != "violated")
    return findings[0] if findings else Finding(NAME, "holds")


def _schedulers(recording: Recording) -> list[Any]:
    """Return the outermost schedulers of the optimizers that took steps, or of their parameters."""
    called = {id(event.scheduler): event.scheduler for event in recording.schedules}
    own = recording.made_of(lr_scheduler.LRScheduler)
    schedulers = {id(s): s for s in (*alive(lr_scheduler.LRScheduler), *own)} | called
    inner = {id(part) for scheduler in schedulers.values() for part in schedulers_in(scheduler)}
    groups = {id(group) for step in recording.steps for group in step.optimizer.param_groups}
    return [
        s
        for key, s in schedulers.items()
        if key not in inner and (key in called or groups & set(map(id, _groups(s))))
    ]


def _groups(scheduler: Any) -> list[Any]:
    """Return the groups of parameters whose rates a scheduler sets."""
    return getattr(getattr(scheduler, "optimizer", None), "param_groups", [])


def _usage(recording: Recording, scheduler: Any) -> Usage:
    groups = set(map(id, _groups(scheduler)))
    return Usage(
        scheduler,
        [event for event in recording.schedules if event.scheduler is scheduler],
        [s for s in recording.steps if groups & set(map(id, s.optimizer.param_groups))],
        recording,
    )


def _breach(event: LoopEvent | None, note: str, verdict: str = "violated") -> Finding:
    place = f" ({event.site})" if event is not None and str(event.site) else ""
    return Finding(NAME, verdict, 1.0, note=note + place, source=event.source if event else None)


def _of_another(usage: Usage) -> Finding | None:
    """Return the breach of a scheduler whose optimizer is not the one that takes the steps."""
    if usage.steps or not usage.calls:
        return None
    own = {id(p) for group in _groups(usage.scheduler) for p in group["params"]}
    for step in usage.recording.steps:
        if own & {id(p) for group in step.optimizer.param_groups for p in group["params"]}:
            note = (
                f"{usage.name} sets the rate of an optimizer that takes no step; {step.name} takes "
                f"them with the same parameters: make the scheduler with that one"
            )
            return _breach(usage.calls[0], note)
    return None


def _before(usage: Usage) -> Finding | None:
    """Return the breach of a scheduler that takes its first step before its optimizer does."""
    if not usage.calls or not usage.steps or usage.calls[0].order > usage.steps[0].order:
        return None
    first = usage.calls[0]
    if any(event.order < first.order for event in usage.recording.of(Rescale)):
        return None  # the step before was skipped because of an overflow
    note = (
        f"{usage.name} takes its first step before {usage.steps[0].name} does, so the first rate "
        f"of the schedule is never used: call optimizer.step() before scheduler.step()"
    )
    return _breach(first, note)


def _never(usage: Usage) -> Finding | None:
    """Return the finding on a scheduler that takes no step."""
    if usage.calls or len(usage.steps) < 2:
        return None
    whole, passes = whole_epochs(usage.recording), len(usage.steps)
    per_batch = isinstance(usage.scheduler, lr_scheduler.OneCycleLR | lr_scheduler.CyclicLR)
    if whole or (per_batch and passes > 2):
        how = f"{whole} whole epochs and more" if whole else f"{passes} steps"
        note = f"{usage.name} was never stepped in {how}: the rate stays what it was at the start"
        return _breach(usage.steps[-1], note)
    if passes > 4:
        note = (
            f"{usage.name} was not stepped in {passes} steps; all is well if these lie within one "
            f"epoch and it is stepped at its end"
        )
        return _breach(usage.steps[-1], note, "advice")
    return None


def _twice(usage: Usage) -> Finding | None:
    """Return the finding on a scheduler that is stepped several times for every step."""
    if len(usage.steps) < 3 or usage.per_step < 1.9:
        return None
    passes = len(usage.recording.backwards) / len(usage.steps)
    count = round(usage.per_step)
    note = (
        f"{usage.name} is stepped {count} times for every step of {usage.steps[0].name}, so that "
        f"its schedule ends {count} times too early"
    )
    if abs(passes - usage.per_step) < 0.5:
        note += "; it is stepped for every batch that is accumulated, and not for every step"
        return _breach(usage.calls[1], note, "violated" if _length(usage) else "advice")
    return _breach(usage.calls[1], note)


def _length(usage: Usage) -> int:
    """Return the number of steps that a scheduler was made for, or 0 where it has no such."""
    return int(getattr(usage.scheduler, "total_steps", 0) or 0)


def _too_often(usage: Usage) -> Finding | None:
    """Return the breach of a schedule that was made for epochs and is stepped for batches."""
    if len(usage.calls) < 2 or usage.per_step < 0.9 or len(usage.steps) < 2:
        return None
    batches, calls = batches_per_epoch(usage.recording), len(usage.calls)
    period = getattr(usage.scheduler, "T_max", 0)
    if type(usage.scheduler) is lr_scheduler.CosineAnnealingLR and period:
        if 0 < period < calls or (batches and period < batches):
            note = (
                f"{usage.name} has T_max={period} and is stepped for every batch"
                + (f", of which an epoch has {batches}" if batches else "")
                + ": the rate reaches its end within an epoch and rises again; step it once per "
                "epoch, or count T_max in batches"
            )
            return _breach(usage.calls[0], note)
        return None
    if isinstance(usage.scheduler, ENDING):
        factor = _factor_after(usage.scheduler, max(batches, calls))
        if factor is not None and factor < LOST:
            note = (
                f"{usage.name} is stepped for every batch: after {max(batches, calls)} steps the "
                f"rate is {factor:.1e} of what it was; step it once per epoch"
            )
            return _breach(usage.calls[0], note)
    return None


ENDING = (lr_scheduler.StepLR, lr_scheduler.MultiStepLR, lr_scheduler.ExponentialLR)


def _factor_after(scheduler: Any, count: int) -> float | None:
    """Return the rate after so many steps of a scheduler like this, relative to its first."""
    if not scheduler.base_lrs or not scheduler.base_lrs[0]:
        return None
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    kinds: dict[type, Callable[[Any], Any]] = {
        lr_scheduler.StepLR: lambda s: lr_scheduler.StepLR(optimizer, s.step_size, s.gamma),
        lr_scheduler.MultiStepLR: lambda s: lr_scheduler.MultiStepLR(
            optimizer, sorted(copy.copy(s.milestones).elements()), s.gamma
        ),
        lr_scheduler.ExponentialLR: lambda s: lr_scheduler.ExponentialLR(optimizer, s.gamma),
    }
    make = kinds.get(type(scheduler))
    if make is None or count > 10_000:
        return None
    twin = make(scheduler)
    optimizer.step()
    for _ in range(count):
        twin.step()
    return float(optimizer.param_groups[0]["lr"])


def _too_seldom(usage: Usage) -> Finding | None:
    """Return the breach of a schedule that was made for batches and is stepped for epochs."""
    batches, total = batches_per_epoch(usage.recording), _length(usage)
    if not usage.calls or not batches or batches < 2 or total < batches or total % batches:
        return None
    if usage.per_step > 1.5 / batches or len(usage.steps) < 2 * batches:
        return None
    note = (
        f"{usage.name} has {total} steps, {total // batches} epochs of {batches} batches, and is "
        f"stepped once per epoch: the rate hardly leaves its beginning; step it after every batch"
    )
    return _breach(usage.calls[0], note)


def _ended(usage: Usage) -> Finding | None:
    """Return the breach of a schedule that ends at a rate of 0 while training goes on."""
    rates = [max(step.rates, default=1.0) for step in usage.steps]
    rest = next((i for i, rate in enumerate(reversed(rates)) if rate != 0), len(rates))
    if not usage.calls or not 2 <= rest < len(rates):
        return None
    note = (
        f"{usage.name} brings the rate to 0 after {len(rates) - rest} steps, and the {rest} steps "
        f"after them change nothing: it was made for fewer steps, or for epochs"
    )
    return _breach(usage.calls[0], note)


def _still(usage: Usage) -> Finding | None:
    """Return the breach of a scheduler of torch that is told the same epoch again and again."""
    epochs, count = {event.epoch for event in usage.calls}, len(usage.calls)
    if count < 3 or len(epochs) > 1 or not type(usage.scheduler).__module__.startswith("torch."):
        return None
    note = f"{usage.name} is stepped {count} times and stays at epoch {epochs.pop()}: call step()"
    return _breach(usage.calls[0], note)


def _doubled(usage: Usage) -> Finding | None:
    """Return the breach of a scheduler that two lines of code step, with no training between."""
    events = [
        event
        for event in usage.recording.events
        if isinstance(event, Step | Backward) or event in usage.calls
    ]
    pairs = [
        (first, second)
        for first, second in pairwise(events)
        if isinstance(first, Schedule) and isinstance(second, Schedule)
        and usage.steps and first.order > usage.steps[0].order
        and first.site.caller != second.site.caller
    ]  # fmt: skip
    if len(pairs) < 2:
        return None
    first, second = pairs[0]
    note = f"{usage.name} is stepped twice in a row, {len(pairs)} times: here and at {first.site}"
    return _breach(second, note)


JUDGES = (_of_another, _twice, _before, _never, _too_often, _too_seldom, _ended, _still, _doubled)


LAWS = (
    TrainingLaw(
        NAME,
        says="A scheduler is stepped after its optimizer, per batch or epoch as it was made for.",
        why="Otherwise the rate is not the one that was planned, and stays high or is gone early.",
        how="Steps of schedulers and optimizers are counted, with the lengths of epochs: of "
        "loaders, or until a batch comes again; a schedule's own length says what it was made for, "
        "and so does a rate of 0 before the end.",
        judge=schedule,
    ),
)
