"""By how much longer models take than their operations, and the error that remains."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from querykey.costs.inputs import CostError
from querykey.costs.timing.prediction import PassTime

FAR = 2.0  # factors beyond it, up or down, are no property of a device
STARTING = "starting"  # the factors of the time of starting operations on a GPU
Factors = dict[str, tuple[float, float]]  # by dtype: for a forward pass, and a training step


@dataclass(frozen=True)
class ModelTime:
    """What was predicted without factors and measured of one model: forward, and a step."""

    dtype: str
    predicted: tuple[PassTime, PassTime]
    measured: tuple[float, float]


def with_factors(part: PassTime, factors: Factors, dtype: str, train: bool, device: str) -> float:
    """Return the seconds of a pass, with the factors that were found for its dtype."""
    work, starting = (factors.get(name, (1.0, 1.0))[train] for name in (dtype, STARTING))
    return part.seconds(device, work, starting)


def factors_of(models: Sequence[ModelTime], device: str) -> Factors:
    """Return the medians by dtype: caches, clocks and Python cost what no operation shows.

    On a GPU a model tells the factor of what it waited for: its operations, or their start.
    """
    ratios: dict[str, tuple[list[float], list[float]]] = {}
    for model in models:
        for train, (part, seconds) in enumerate(zip(model.predicted, model.measured, strict=True)):
            waits = device != "cpu" and part.starting > part.work
            name = STARTING if waits else model.dtype
            without = part.seconds(device)
            ratios.setdefault(name, ([], []))[train].append(seconds / without)
    return {
        name: (_median(forward or step), _median(step or forward))
        for name, (forward, step) in ratios.items()
    }


def refuse_far(factors: Factors) -> None:
    """Raise a CostError where models take so much longer or shorter that something is wrong."""
    for dtype, pair in factors.items():
        far = max(pair, key=lambda factor: abs(math.log(factor)))
        if dtype != STARTING and abs(math.log(far)) > math.log(FAR):
            raise CostError(
                f"this calibration does not hold: whole models in {dtype} took {far:.2g} times as "
                f"long as their operations one by one, and up to {FAR:g} is expected; stop what "
                "else runs on this device and measure once more: qk cost --calibrate"
            )


def _median(ratios: Sequence[float]) -> float:
    return statistics.median(ratios)


def errors_of(models: Sequence[ModelTime], device: str) -> Iterator[float]:
    """Yield the relative error on each model, forward and step, with the others' factors."""
    for place, model in enumerate(models):
        factors = factors_of([*models[:place], *models[place + 1 :]], device)
        for train, (part, seconds) in enumerate(zip(model.predicted, model.measured, strict=True)):
            yield with_factors(part, factors, model.dtype, bool(train), device) / seconds - 1
