"""Gradients neither die nor explode by depth, and attention passes them on at the start."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from querykey.laws.blaming.guilty_module import source_of
from querykey.laws.catalogue.saturation import FLAT
from querykey.laws.finding import Finding
from querykey.laws.training.depths import Derivative
from querykey.laws.training.law import TrainingLaw
from querykey.laws.training.recording import Recording
from querykey.words import and_more

GRADIENTS, SATURATION = "training.gradients", "training.saturation"
FAR, NOTABLE = 1e4, 1e3  # ratios of derivatives along a chain of layers: a breach, and advice


def gradients(recording: Recording) -> Finding:
    """Judge how derivatives change along chains of layers, and whether gradients are finite."""
    broken = _not_finite(recording) or _dead(recording)
    if broken:
        return broken
    chains = recording.depths.chains()
    if not chains:
        note = "no model has four layers of one kind"
        return Finding(GRADIENTS, "not-applicable", note=note)
    worst = max(chains, key=lambda chain: abs(math.log(_ratio(chain))))
    ratio = _ratio(worst)
    size = max(ratio, 1 / ratio)
    first, last = worst[0], worst[-1]
    if size < NOTABLE or not _steady(worst):
        return Finding(GRADIENTS, "holds", size)
    dying = ratio < 1
    note = (
        f"gradients {'die' if dying else 'explode'} by depth: the derivative of the loss is "
        f"{first.size:.2g} at {first.path} and {last.size:.2g} at {last.path}, {size:.1e} times "
        f"{'less' if dying else 'more'} over {len(worst)} layers; skip connections, normalisation "
        f"or another initialisation keep it up"
    )
    # Through time derivatives fade where a model need not look far back.
    sure = size >= FAR and len({d.path for d in worst}) == len(worst)
    return _at(
        recording, first, Finding(GRADIENTS, "violated" if sure else "advice", size, note=note)
    )


def _ratio(chain: list[Derivative]) -> float:
    """Return the derivative at the first layer relative to that at the last."""
    return max(chain[0].size, 1e-300) / max(chain[-1].size, 1e-300)


def _steady(chain: list[Derivative]) -> bool:
    """Return whether derivatives change along a chain in one direction, but for some noise."""
    logs = [math.log(max(d.size, 1e-300)) for d in chain]
    steps = [b - a for a, b in pairwise(logs)]
    along = sum(step for step in steps if step * (logs[-1] - logs[0]) > 0)
    return abs(logs[-1] - logs[0]) > 0.7 * sum(map(abs, steps)) and bool(along)


def _at(recording: Recording, derivative: Derivative, finding: Finding) -> Finding:
    """Return the finding with the module of a derivative."""
    for root in recording.roots():
        named = dict(root.named_modules())
        if derivative.path in named:
            source = source_of(named[derivative.path])
            return replace(finding, module=derivative.path or "(model)", source=source)
    return finding


def _not_finite(recording: Recording) -> Finding | None:
    """Return the breach of a gradient that is not finite when it is applied."""
    for step in recording.steps:
        for key, size in step.gradients.items():
            if not math.isfinite(size):
                note = (
                    f"step {step.number + 1} of {step.name} applies a gradient that is not finite, "
                    f"that of {recording.name_of(key)} ({step.site})"
                )
                return Finding(GRADIENTS, "violated", size, note=note, source=step.source)
    return None


def _dead(recording: Recording) -> Finding | None:
    """Return the breach of a layer whose gradient is exactly zero in every step.

    The first steps do not count: a branch that begins at zero, such as LoRA's, has none in them.
    """
    sizes: dict[int, list[float]] = {}
    for step in recording.steps:
        if any(step.rates):
            for key, size in step.gradients.items():
                sizes.setdefault(key, []).append(size)
    dead = [
        key
        for key, all_sizes in sizes.items()
        if len(all_sizes) > 2 and not any(all_sizes) and recording.ledger.parameters[key].dim() > 1
    ]
    use = recording.uses.owner(dead[0]) if dead else None
    if not dead or use is None:
        return None
    paths = {id(m): path for root in recording.roots() for path, m in root.named_modules()}
    path = paths.get(id(use.module), "")
    sizes_there = [
        d.size for d in recording.depths.all if d.path == path and not math.isnan(d.size)
    ]
    if not sizes_there or any(sizes_there):
        return None  # nothing passed through it, as through an expert that is not chosen
    more = and_more(len(dead) - 1, "matrix", "matrices")
    note = (
        f"the gradient of {recording.name_of(dead[0])}{more} is exactly 0 in every step: what "
        f"comes after it is dead, as a ReLU that is never positive"
    )
    return Finding(
        GRADIENTS,
        "violated",
        1.0,
        module=path or "(model)",
        source=source_of(use.module),
        note=note,
    )


def saturation(recording: Recording) -> Finding:
    """Judge how spread attention is in the first forward pass."""
    if not recording.spreads:
        return Finding(SATURATION, "not-applicable", note="no softmax over four keys or more ran")
    spread, path = min(recording.spreads)
    if spread >= FLAT:
        return Finding(SATURATION, "holds", 1 - spread)
    note = (
        f"attention is sharp at the start: its entropy is {spread:.2f} of that of equal weights, "
        f"so that hardly any gradient passes; is the scale 1/sqrt(width) missing, or are the "
        f"weights too large?"
    )
    for root in recording.roots():
        named = dict(root.named_modules())
        if path in named:
            source = source_of(named[path])
            return Finding(
                SATURATION, "advice", 1 - spread, module=path or "(model)", source=source, note=note
            )
    return Finding(SATURATION, "advice", 1 - spread, note=note)


LAWS = (
    TrainingLaw(
        GRADIENTS,
        says="Gradients are finite, and neither die nor explode by depth.",
        why="Otherwise the layers far from the loss do not learn, or training diverges.",
        how="The derivative of the loss by the output of every layer is measured in the first "
        "backward pass, and compared along layers of one kind; gradients are looked at in "
        "every step.",
        judge=gradients,
    ),
    TrainingLaw(
        SATURATION,
        says="Attention is spread over several keys in the first step (advice, not a breach).",
        why="Otherwise hardly any gradient passes the softmax: the scale is often missing.",
        how="The entropy of every softmax of the first forward pass is compared with that of equal "
        "weights.",
        judge=saturation,
    ),
)
