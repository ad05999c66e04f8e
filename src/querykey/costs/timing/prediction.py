"""The time of a pass, from the times of single operations that a calibration measured.

A product or an attention runs at the rate that shapes near its own reached, weighted by how near
they are; what streams through memory takes the time of as many bytes, between the sizes that were
measured. Starting an operation, making a view and calling a module cost what they were measured to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from querykey.costs.counting.trace import FORWARD
from querykey.costs.timing.bytes_moved import Calls
from querykey.costs.timing.rates import Rates, kind_of
from querykey.costs.timing.roofline import duration


@dataclass(frozen=True)
class Prediction:
    """Seconds of a forward pass without gradients, and of forward and backward in training."""

    forward: float
    step: float | None
    error: float  # the median relative error on models that were timed after the calibration

    def __str__(self) -> str:
        step = f", {duration(self.step)} a training step" if self.step is not None else ""
        return f"{duration(self.forward)} forward{step} (median error {self.error:.0%})"


@dataclass(frozen=True)
class PassTime:
    """Seconds in which the operations of a pass run, and seconds in which they are started."""

    work: float
    starting: float

    def seconds(self, device: str, work: float = 1.0, starting: float = 1.0) -> float:
        """Return the seconds of the pass, with factors for both parts.

        On a GPU operations run while later ones are started, so the longer of both counts.
        """
        if device == "cpu":
            return work * (self.work + self.starting)
        return max(work * self.work, starting * self.starting)


def predict(
    calls: Calls,
    views: Mapping[str, int],
    modules: int,
    rates: Rates,
    overheads: Mapping[str, float],
    formulas: Mapping[str, Any],
) -> tuple[PassTime, PassTime]:
    """Return the time of the forward pass without gradients, and of forward and backward."""
    work = {True: 0.0, False: 0.0}
    started = {True: 0, False: 0}
    for (call, _, phase), times in calls.items():
        forward = phase == FORWARD
        work[forward] += times * rates.seconds(*kind_of(call, formulas), call.dtype)
        started[forward] += times
    looked = {
        forward: views.get(phase, 0) for forward, phase in ((True, FORWARD), (False, "backward"))
    }
    plain = overheads["plain"]
    recorded = max(0.0, overheads["recorded"] - plain)
    node = max(0.0, overheads["backward"] - plain)
    each = overheads["mixed"] if rates.device == "cpu" else plain
    outside = modules * overheads["module"] + looked[True] * overheads["view"]
    noted = started[True] + looked[True]  # nodes of the graph: one for what was recorded
    starting = outside + started[True] * each
    back = looked[False] * overheads["view"] + started[False] * each
    step = starting + noted * (recorded + node) + back
    return PassTime(work[True], starting), PassTime(work[True] + work[False], step)
