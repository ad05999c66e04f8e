"""Accumulated losses are one mean: they are divided by their number, and every term counts once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from querykey.laws.finding import Finding
from querykey.laws.training.events import Backward, Step
from querykey.laws.training.law import TrainingLaw
from querykey.laws.training.recording import Recording
from querykey.laws.training.terms import main_terms

ACCUMULATION, TERMS = "training.accumulation", "training.terms"
NEAR = 1e-3  # relative: masses are sums of float32 numbers
LITTLE = 0.7  # of a mean
UNEVEN = 1.02  # a ratio of weights, from which terms count differently


@dataclass
class Accumulated:
    """The backward passes of one step, all from one line of code, each with its own forward."""

    step: Step
    passes: list[Backward]

    @property
    def masses(self) -> list[float]:
        """The sum of the weights of each pass's largest reduction; 1 is a mean."""
        return [max(t.mass for t in main_terms(p.terms)) / p.scale for p in self.passes]

    @property
    def whole(self) -> float:
        """The sum of all weights, of losses that are reduced in several parts."""
        return sum(sum(t.mass for t in main_terms(p.terms)) / p.scale for p in self.passes)


def accumulated(recording: Recording) -> Iterator[Accumulated]:
    """Yield the steps whose gradient is a sum over several batches.

    Losses of several kinds, and passes from several lines, are other things than accumulation.
    """
    for step in recording.steps:
        numbers = sorted({part for parts in step.sources.values() for part in parts})
        old = {part for parts in step.again.values() for part in parts}
        passes = [recording.backwards[number] for number in numbers if number not in old]
        if len(passes) < 2 or len({p.site.caller for p in passes}) > 1:
            continue
        kinds = {tuple(sorted({t.kind for t in main_terms(p.terms)})) for p in passes}
        if len(kinds) > 1 or kinds == {()}:
            continue
        if not all(p.forwards for p in passes) or _shared(passes) or _varied(passes):
            continue
        yield Accumulated(step, passes)


def _shared(passes: list[Backward]) -> bool:
    """Return whether two backward passes go through one forward pass, or through one batch."""
    batches = [f.batch for p in passes for f in {id(f): f for f in p.forwards}.values()]
    modules = {id(f.module) for f in passes[0].forwards}
    per_module = len(batches) / max(len(modules), 1)
    return len(set(batches)) < per_module


def _varied(passes: list[Backward]) -> bool:
    """Return whether passes train different parts, as those of several tasks do."""
    trained = [p.leaves.keys() for p in passes]
    common = set.intersection(*map(set, trained))
    return len(common) < 0.9 * len(set.union(*map(set, trained)))


def accumulation(recording: Recording) -> Finding:
    """Judge whether the weights of all accumulated batches add up to one mean."""
    groups = list(accumulated(recording))
    if finding := _cleared(recording) or _left_over(groups) or _divided_alone(recording):
        return finding
    if not groups:
        note = "no step adds up the gradients of several batches"
        return Finding(ACCUMULATION, "not-applicable", note=note)
    largest = max(groups, key=lambda group: len(group.passes))
    count, masses, step = len(largest.passes), largest.masses, largest.step
    if math.isnan(step.changed):
        note = "the loop changes the gradients itself before the step"
        return Finding(ACCUMULATION, "not-applicable", note=note)
    # A loop may divide the gradients itself, or clip them by a function of its own.
    total = sum(masses) * step.changed
    # Label smoothing takes a part of a mean, a penalty adds one.
    if any(LITTLE < weights < 1 / LITTLE for weights in (total, sum(masses), largest.whole)):
        return Finding(ACCUMULATION, "holds", abs(total - 1))
    masses = [mass * step.changed for mass in masses]
    where = f"({largest.passes[0].site})"
    if all(_near(mass, 1) for mass in masses):
        note = (
            f"the losses of {count} batches are added up and not divided: the gradient that step "
            f"{step.number + 1} applies is {total:.3g} times that of one batch; divide each loss "
            f"by {count} before backward() {where}"
        )
        source = largest.passes[0].source
        return Finding(ACCUMULATION, "violated", abs(total - 1), note=note, source=source)
    if count > 2 and _near(total, 1 / count):
        note = (
            f"the losses of {count} batches are divided twice: their weights add up to {total:.3g} "
            f"in place of 1, so that the gradient is {count} times too small {where}"
        )
        source = largest.passes[0].source
        return Finding(ACCUMULATION, "violated", abs(total - 1), note=note, source=source)
    if max(t.mass for p in largest.passes for t in p.terms if t.mass == t.mass) > 10 * count:
        note = "the losses are sums, not means"
        return Finding(ACCUMULATION, "not-applicable", note=note)
    note = (
        f"the weights of the losses of {count} batches add up to {total:.3g}, where those of one "
        f"mean add up to 1 {where}"
    )
    source = largest.passes[0].source
    return Finding(ACCUMULATION, "advice", abs(total - 1), note=note, source=source)


def _cleared(recording: Recording) -> Finding | None:
    """Return the breach of a loop that clears the gradients of all batches of a step but the last.

    Every step must be so: a step that was skipped, and one of two optimizers, are other things.
    """
    counts, last = [], -1
    for step in recording.steps:
        passes = [b for b in recording.backwards if last < b.order < step.order]
        last = step.order
        applied = {number for parts in step.sources.values() for number in parts}
        if len(passes) < 2 or applied != {passes[-1].number} or step.changed != 1.0:
            return None
        alike = len({p.site.caller for p in passes}) == 1 and all(p.forwards for p in passes)
        if not alike or _shared(passes) or _varied(passes):
            return None
        counts.append(len(passes))
    if len(counts) < 2:
        return None
    first = recording.backwards[0]
    note = (
        f"of the {counts[0]} batches before a step only the last counts: the gradients of the "
        f"others are cleared before it; clear them once per step ({first.site})"
    )
    return Finding(ACCUMULATION, "violated", 1.0, note=note, source=first.source)


def _left_over(groups: list[Accumulated]) -> Finding | None:
    """Return the breach of a step that applies batches which an earlier epoch has left over."""
    usual = max((len(g.passes) for g in groups if _near(sum(g.masses), 1)), default=0)
    for group in groups:
        more = len(group.passes) - usual
        if usual and 0 < more < usual and all(_near(m, 1 / usual) for m in group.masses):
            first, total = group.passes[0], sum(group.masses)
            note = (
                f"step {group.step.number + 1} applies {more} batches more than the {usual} of "
                f"other steps, whose gradients were still there: the weights of its losses add up "
                f"to {total:.3g}; apply or clear what an epoch leaves over ({first.site})"
            )
            return Finding(ACCUMULATION, "violated", total - 1, note=note, source=first.source)
    return None


def _divided_alone(recording: Recording) -> Finding | None:
    """Return advice on losses that are divided as if steps added up several, which none does."""
    shares = set()
    for step in recording.steps:
        numbers = {number for parts in step.sources.values() for number in parts}
        if len(numbers) != 1 or step.changed != 1.0:
            return None
        single = recording.backwards[numbers.pop()]
        terms = main_terms(single.terms)
        if len(terms) != 1 or not terms[0].mass > 0:
            return None
        shares.add(round(single.scale / terms[0].mass, 3))
    count = min(shares, default=0.0)
    if len(recording.steps) < 2 or len(shares) > 1 or count < 3 or count != round(count):
        return None
    first = recording.backwards[0]
    note = (
        f"every step applies the loss of one batch, and that is divided by {count:.0f}: is it "
        f"meant to add up {count:.0f} batches? ({first.site})"
    )
    return Finding(ACCUMULATION, "advice", 1 - 1 / count, note=note, source=first.source)


def _near(value: float, other: float) -> bool:
    return abs(value - other) <= NEAR * abs(other)


def terms(recording: Recording) -> Finding:
    """Judge whether the terms of all batches of a step have one weight."""
    groups = [group for group in accumulated(recording) if _comparable(group)]
    if not groups:
        note = "no step adds up the gradients of batches of known numbers of terms"
        return Finding(TERMS, "not-applicable", note=note)
    worst = max(groups, key=_unevenness)
    ratio = _unevenness(worst)
    if ratio < UNEVEN:
        return Finding(TERMS, "holds", ratio - 1)
    counts = [round(main_terms(p.terms)[0].count) for p in worst.passes]
    note = (
        f"step {worst.step.number + 1} adds up means over {_listed(counts)} terms, so that a term "
        f"of the shortest batch counts {ratio:.2f} times as much as one of the longest; divide "
        f"the sum of each batch's losses by the number of all terms of the step "
        f"({worst.passes[0].site})"
    )
    rows = [p.forwards[0].rows for p in worst.passes]
    # A last batch with fewer rows, each as long as others, is a lesser matter.
    per_row = {round(count / max(n, 1), 6) for count, n in zip(counts, rows, strict=True)}
    verdict = "advice" if len(per_row) == 1 else "violated"
    return Finding(TERMS, verdict, ratio - 1, note=note, source=worst.passes[0].source)


def _comparable(group: Accumulated) -> bool:
    """Return whether each batch's loss is one reduction whose terms are even and counted."""
    mains = [main_terms(p.terms) for p in group.passes]
    return all(len(main) == 1 and main[0].even and main[0].count > 0 for main in mains)


def _unevenness(group: Accumulated) -> float:
    """Return the largest ratio of the weights of two batches' terms, where their counts differ."""
    mains = [main_terms(p.terms)[0] for p in group.passes]
    if len({term.count for term in mains}) < 2:
        return 1.0
    weights = [t.weight / p.scale for t, p in zip(mains, group.passes, strict=True)]
    return max(weights) / min(weights)


def _listed(counts: list[int]) -> str:
    shown = [str(count) for count in counts[:4]] + ["..."] * (len(counts) > 4)
    return ", ".join(shown[:-1]) + f" and {shown[-1]}"


LAWS = (
    TrainingLaw(
        ACCUMULATION,
        says="The losses of batches that are accumulated add up to one mean.",
        why="Otherwise the gradient is as many times too large (transformers 47688).",
        how="The weight of every batch's loss in the gradient is measured where the loss is "
        "reduced, and those of the backward passes of one line of code are added up. Gradients "
        "that are cleared before a step, or left over at the end of an epoch, are reported, too.",
        judge=accumulation,
    ),
    TrainingLaw(
        TERMS,
        says="Every token or row of a step has the same weight in its gradient.",
        why="Otherwise short batches count more than long ones (transformers 34191).",
        how="The number of terms that each accumulated loss averages, without ignored ones, is "
        "compared with the weight that the backward pass gives to one of them.",
        judge=terms,
    ),
)
