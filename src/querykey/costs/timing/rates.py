"""How long single operations take, between those that a calibration measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from querykey.costs.counting.operations import (
    CAUSAL,
    FUSED,
    FUSED_BACKWARD,
    Operation,
    Shape,
    count,
    first,
)
from querykey.costs.counting.traffic import OperationCall
from querykey.costs.timing.roofline import flops_of

Features = tuple[float, ...]
NEAREST = 6  # measured shapes that a rate is taken from
ATTENTION, PRODUCT, BATCHED, BIASED = "attention", "product", "batched product", "biased product"
ROWS = "aten.sum of rows"  # along the last axis, which other kernels do than sums of columns
SPREAD = "elementwise by a row"  # an operand is smaller than the result and read over and over
STANDARD = "aten.mul"  # stands for elementwise functions that were not measured
WIDTHS = {"bfloat16": 2, "float16": 2, "float64": 8}  # bytes of a number, else 4
# Operations that run as others do, in place or not, where they were not measured themselves.
LIKE = {
    BIASED: PRODUCT, SPREAD: STANDARD, f"{CAUSAL} {ATTENTION}": ATTENTION,
    f"{CAUSAL} {ATTENTION} backward": f"{ATTENTION} backward", ROWS: "aten.mean",
    "aten._to_copy": "aten.clone", "aten.copy": "aten.clone",
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
    features: Features  # of a product or an attention its sizes, else its bytes and last axis
    work: float
    seconds: float
    dtype: str = "float32"


class Rates:
    """Seconds of operations, interpolated between those that were measured on a device.

    On a GPU, what is interpolated is how much longer an operation took than the device's best rates
    of products and of bytes allow, because small operations are far from both.
    """

    def __init__(self, measured: Sequence[TimedOperation], device: str = "cpu"):
        self.device = device
        self._by_kind: dict[tuple[str, str], list[TimedOperation]] = {}
        self._bandwidth = 0.0
        for one in measured:
            self._by_kind.setdefault((one.kind, one.dtype), []).append(one)
            if len(one.features) < 3:
                self._bandwidth = max(self._bandwidth, one.work / one.seconds)

    def seconds(self, kind: str, features: Features, work: float, dtype: str = "") -> float:
        """Return the seconds of one operation."""
        points = self._points(kind, dtype)
        if not points:
            return 0.0
        if len(points[0].features) > 2:
            least = _Least(points, self._bandwidth, self.device)
            return least.seconds(features, work) * self._longer(points, features, least)
        return _stream(points, features[-1], work)

    def _points(self, kind: str, dtype: str) -> list[TimedOperation]:
        """Return what was measured of this kind, of one like it, or of elementwise functions."""
        kinds = [kind, *([LIKE[kind]] if kind in LIKE else []), STANDARD]
        dtypes = list(dict.fromkeys([dtype, *(found for _, found in self._by_kind)]))
        places = ((kind, dtype) for kind in kinds for dtype in dtypes)
        return next((self._by_kind[place] for place in places if place in self._by_kind), [])

    def _longer(self, points: Sequence[TimedOperation], features: Features, least: _Least) -> float:
        """Return how much longer shapes near these took, near ones weighing more."""
        distances = sorted((math.dist(p.features, features), i) for i, p in enumerate(points))
        total = weight = 0.0
        for distance, index in distances[:NEAREST]:
            point, near = points[index], 1 / (distance + 0.05) ** 3
            total += near * math.log(point.seconds / least.seconds(point.features, point.work))
            weight += near
        return math.exp(total / weight)


class _Least:
    """The seconds that a device's best rates allow; on a CPU, those in proportion to the work."""

    def __init__(self, points: Sequence[TimedOperation], bandwidth: float, device: str):
        self.bandwidth = bandwidth if device != "cpu" else 0.0
        self.peak = max(p.work / p.seconds for p in points)
        self.start = min(p.seconds for p in points) if self.bandwidth else 0.0
        self.width = WIDTHS.get(points[0].dtype, 4)
        self.attention = ATTENTION in points[0].kind

    def seconds(self, features: Features, work: float) -> float:
        """Return the least seconds of an operation with these sizes."""
        products = work / self.peak
        if not self.bandwidth:
            return products
        sizes = [2.0**feature for feature in features]
        if self.attention:
            batch, queries, keys, width = sizes
            moved = 2 * batch * (queries + keys) * width
        else:
            *batch, m, k, n = sizes
            moved = math.prod(batch) * (m * k + k * n + m * n)
        return max(products, moved * self.width / self.bandwidth) + self.start


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
        causal = f"{CAUSAL} " if operation.kind == CAUSAL else ""
        return f"{causal}{ATTENTION}{' backward' if back else ''}", _logs(shape), flops
    if flops > 0:
        out = operation.outs[0]
        n, m = (out[-1] if out else 1), (out[-2] if len(out) > 1 else 1)
        batch = max(1, count(out) / max(1, n * m))
        inner = flops / max(2 * count(out), 1)
        if batch > 1:
            return BATCHED, _logs((batch, m, inner, n)), flops
        return BIASED if name == "aten.addmm" else PRODUCT, _logs((m, inner, n)), flops
    shape = first(operation)
    of_rows = (*shape[:-1],), (*shape[:-1], 1)
    rows = name == "aten.sum" and operation.outs[0] in of_rows
    kind = ROWS if rows else SPREAD if _spreads(operation) else name.removesuffix("_")
    return kind, (_log(call.bytes), _log((shape or (1,))[-1])), float(call.bytes)


def _spreads(operation: Operation) -> bool:
    """Return whether an elementwise function repeats an operand along an axis, as x * row does."""
    if operation.kind != "pointwise" or not operation.outs:
        return False
    sizes = {count(arg) for arg in operation.args if isinstance(arg, Shape)}
    return bool(sizes - {1, count(operation.outs[0])})


def _stream(points: Sequence[TimedOperation], last: float, work: float) -> float:
    """Return the seconds of what streams through memory, between two measured last axes."""
    lasts = sorted({p.features[-1] for p in points})
    low = max((axis for axis in lasts if axis <= last), default=lasts[0])
    high = min((axis for axis in lasts if axis >= last), default=lasts[-1])
    slow, fast = (
        _between(sorted((p.work, p.seconds) for p in points if p.features[-1] == axis), work)
        for axis in (low, high)
    )
    share = (last - low) / (high - low) if high > low else 0.0
    return slow + share * (fast - slow)


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
