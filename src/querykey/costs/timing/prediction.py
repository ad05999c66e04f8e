"""The time of a pass, from the times of single operations that a calibration measured.

A product or an attention runs at the rate that shapes near its own reached, weighted by how near
they are; what streams through memory takes the time of as many bytes, between the sizes that were
measured. Starting an operation, making a view and calling a module cost what they were measured to.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from querykey.costs.counting.operations import FUSED, FUSED_BACKWARD, Shape, count
from querykey.costs.counting.trace import FORWARD
from querykey.costs.counting.traffic import OperationCall
from querykey.costs.timing.bytes_moved import Calls
from querykey.costs.timing.roofline import duration, flops_of

Features = tuple[float, ...]
NEAREST = 6  # measured shapes that a rate is taken from
ATTENTION = "attention"
STANDARD = "aten.mul"  # stands for elementwise functions that were not measured
# Operations that run as others do, in place or not.
LIKE = {
    "aten.clone": "aten.clone", "aten._to_copy": "aten.clone", "aten.copy": "aten.clone",
    "aten.sub": "aten.add", "aten.rsub": "aten.add", "aten.div": "aten.mul", "aten.neg": "aten.mul",
    "aten.sigmoid": "aten.exp", "aten.log": "aten.exp", "aten.sin": "aten.exp",
    "aten.cos": "aten.exp", "aten._safe_softmax": "aten._softmax",
    "aten._log_softmax": "aten._softmax", "aten.zero": "aten.zeros", "aten.fill": "aten.zeros",
    "aten.ones": "aten.zeros", "aten.full": "aten.zeros", "aten.new_zeros": "aten.zeros",
    "aten.zeros_like": "aten.zeros", "aten.select_backward": "aten.zeros",
    "aten.slice_backward": "aten.zeros", "aten.index_select": "aten.embedding",
}  # fmt: skip


@dataclass(frozen=True)
class TimedOperation:
    """One operation that was timed: what kind it is, its shape, its FLOPs or bytes, seconds."""

    kind: str
    features: Features
    work: float
    seconds: float


@dataclass(frozen=True)
class Prediction:
    """Seconds of a forward pass without gradients, and of forward and backward in training."""

    forward: float
    step: float | None
    error: float  # the median relative error on models that were timed after the calibration

    def __str__(self) -> str:
        step = f", {duration(self.step)} a training step" if self.step is not None else ""
        return f"{duration(self.forward)} forward{step} (median error {self.error:.0%})"


class Rates:
    """Seconds of operations, interpolated between those that were measured."""

    def __init__(self, measured: Sequence[TimedOperation]):
        self.by_kind: dict[str, list[TimedOperation]] = {}
        for one in measured:
            self.by_kind.setdefault(one.kind, []).append(one)

    def seconds(self, kind: str, features: Features, work: float) -> float:
        """Return the seconds of one operation."""
        points = self.by_kind.get(kind) or self.by_kind.get(STANDARD, [])
        if not points:
            return 0.0
        if len(points[0].features) == len(features) and len(features) > 1:
            return work / self._rate(points, features)
        return _between(sorted((p.work, p.seconds) for p in points), work)

    def _rate(self, points: Sequence[TimedOperation], features: Features) -> float:
        """Return the rate of shapes near these, near ones weighing more."""
        distances = sorted((math.dist(p.features, features), i) for i, p in enumerate(points))
        total = weight = 0.0
        for distance, index in distances[:NEAREST]:
            near = 1 / (distance + 0.05) ** 3
            total += near * math.log(points[index].work / points[index].seconds)
            weight += near
        return math.exp(total / weight)


def kind_of(call: OperationCall, formulas: Mapping[str, Any]) -> tuple[str, Features, float]:
    """Return what kind of operation a call is, the logarithms of its shape, and its work."""
    operation = call.operation
    flops = float(flops_of(operation, formulas))
    name = operation.name
    if "dot_product" in name or name in (FUSED, FUSED_BACKWARD):
        shapes = [arg for arg in operation.args if isinstance(arg, Shape)]
        back = name.endswith("backward")
        q, k = shapes[1:3] if back and name != FUSED_BACKWARD else shapes[:2]
        shape = count(Shape(q[:-2])), q[-2], k[-2], q[-1]
        return f"{ATTENTION} backward" if back else ATTENTION, _logs(shape), flops
    if flops > 0:
        out = operation.outs[0]
        n, m = (out[-1] if out else 1), (out[-2] if len(out) > 1 else 1)
        batch = max(1, count(out) / max(1, n * m))
        inner = flops / max(2 * count(out), 1)
        if batch > 1:
            return "batched product", _logs((batch, m, inner, n)), flops
        return "product", _logs((m, inner, n)), flops
    plain = name.removesuffix("_")
    return LIKE.get(plain, plain), (_log(call.bytes),), float(call.bytes)


def predict(
    calls: Calls,
    views: Mapping[str, int],
    modules: int,
    rates: Rates,
    overheads: Mapping[str, float],
    formulas: Mapping[str, Any],
    device: str = "cpu",
) -> tuple[float, float]:
    """Return seconds of the forward pass without gradients, and of forward and backward with them.

    On a GPU operations run while later ones are started, so the longer of both counts.
    """
    work = {True: 0.0, False: 0.0}
    started = {True: 0, False: 0}
    for (call, _, phase), times in calls.items():
        forward = phase == FORWARD
        work[forward] += times * rates.seconds(*kind_of(call, formulas))
        started[forward] += times
    looked = {
        forward: views.get(phase, 0) for forward, phase in ((True, FORWARD), (False, "backward"))
    }
    own = overheads["plain"]
    recorded = max(0.0, overheads["recorded"] - own)
    node = max(0.0, overheads["backward"] - own)
    outside = modules * overheads["module"] + looked[True] * overheads["view"]
    back = looked[False] * overheads["view"]
    noted = (started[True] + looked[True]) * recorded
    nodes = (started[True] + looked[True]) * node  # of the graph: one for what was recorded
    if device == "cpu":
        mixed = overheads["mixed"]  # an operation after another one is slower than after itself
        forward = work[True] + outside + started[True] * mixed
        return forward, forward + noted + work[False] + back + nodes + started[False] * mixed
    starting = started[True] * own + outside
    step = starting + noted + started[False] * own + back + nodes
    return max(work[True], starting), max(work[True] + work[False], step)


def _between(points: Sequence[tuple[float, float]], work: float) -> float:
    """Return the seconds between two measured amounts of work, in proportion beyond the last."""
    if work <= points[0][0]:
        return points[0][1]
    if work >= points[-1][0]:
        return points[-1][1] * work / points[-1][0]
    for (low, fast), (high, slow) in itertools.pairwise(points):
        if low <= work <= high:
            share = (work - low) / (high - low)
            return fast + share * (slow - fast)
    return points[-1][1]


def _log(value: Any) -> float:
    return math.log2(max(float(value), 1.0))


def _logs(shape: Sequence[Any]) -> Features:
    return tuple(_log(size) for size in shape)
