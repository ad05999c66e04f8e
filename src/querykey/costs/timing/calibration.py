"""Measure a device once, for at most a minute, and keep what was measured in the user's cache.

Every operation is timed in several rounds, one after the other, and its best time is kept. On a CPU
with one thread the processor's time is taken, which others on the machine do not lengthen.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from querykey.costs.counting.passes import PassOptions
from querykey.costs.inputs import CostError, Inputs, array
from querykey.costs.measured_model import MeasuredModel
from querykey.costs.timing.bytes_moved import BytesMoved
from querykey.costs.timing.prediction import Prediction, Rates, TimedOperation, kind_of, predict
from querykey.costs.timing.probes import (
    TimingProbe,
    Work,
    call_of,
    operations,
    overheads,
    small_streams,
)
from querykey.show import write_file

SCHEMA = 1
SECONDS = 60.0  # a calibration takes no longer
SHORT = 5e-4  # seconds that one timing lasts at least
ROUNDS = 8  # at most
PART = 0.8  # of the seconds, for operations; the rest is for models that check them
OVERHEADS = ("plain", "recorded", "backward", "view", "module", "mixed")
# Models that check it: width, layers, hidden width, batch, length.
MODELS = (
    (192, 3, 768, 2, 100), (64, 2, 128, 4, 48), (256, 4, 1024, 1, 256), (128, 2, 512, 3, 33),
    (320, 2, 960, 1, 130),
)  # fmt: skip


@dataclass(frozen=True)
class Calibration:
    """What was measured on a device: seconds of operations, overheads, and errors on models."""

    device: str  # cpu or cuda
    name: str  # of the processor
    threads: int
    dtype: str
    torch: str
    operations: tuple[TimedOperation, ...]
    overheads: dict[str, float]
    factors: tuple[float, float]  # by which models took longer, forward and a training step
    errors: tuple[float, ...]  # relative, of each of these models with the factors of the others
    seconds: float

    @property
    def error(self) -> float:
        """Return the median relative error on the models that checked it."""
        return statistics.median(map(abs, self.errors)) if self.errors else 0.0

    def predict(self, traffic: BytesMoved, sizes: dict[str, int]) -> Prediction:
        """Return the time of a forward pass and of a training step at these sizes."""
        moved = traffic.traffic_at(sizes)
        dtypes = {call.dtype for call, _, _ in moved.calls if call.operation.floating}
        if dtypes - {self.dtype, ""}:
            raise CostError(
                f"the calibration measured {self.dtype}, and the model computes in "
                f"{', '.join(sorted(dtypes - {''}))}"
            )
        modules = sum(1 for _ in traffic.measured.model(sizes).modules())
        forward, step = predict(
            moved.calls, moved.views, modules, Rates(self.operations), self.overheads,
            traffic.options.formulas, self.device,
        )  # fmt: skip
        forward, step = forward * self.factors[0], step * self.factors[1]
        return Prediction(forward, step if traffic.options.backward else None, self.error)


def calibrate(seconds: float = SECONDS, device: str = "", file: Path | None = None) -> Calibration:
    """Measure this device, write the result into the user's cache, and return it."""
    began = time.perf_counter()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float32
    clock = clock_of(device)
    probes = [*overheads(device, dtype), *operations(device, dtype)]
    best: dict[str, float] = {}
    kinds: dict[str, TimedOperation] = {}
    for round_ in range(ROUNDS):
        for probe in probes:
            if round_ and time.perf_counter() - began > PART * seconds:
                break
            spent = _timed(probe, clock)
            best[probe.name] = min(spent, best.get(probe.name, spent))
            if probe.runs == 1 and probe.name not in kinds:
                kinds[probe.name] = _described(probe)
    measured = tuple(
        TimedOperation(m.kind, m.features, m.work, best[name])
        for name, m in kinds.items()
        if m.work
    )
    costs = {probe.name: best[probe.name] for probe in probes if probe.runs > 1}
    alone = [best[probe.name] for probe in small_streams(device, dtype)]
    costs["module"] = max(0.0, costs["module"] - costs.pop("small product"))
    costs["mixed"] = max(0.0, costs["mixed"] - statistics.fmean(alone))
    calibration = Calibration(
        device, processor(device), torch.get_num_threads(), str(dtype).removeprefix("torch."),
        torch.__version__, measured, costs, (1.0, 1.0), (), 0.0,
    )  # fmt: skip
    ratios: list[tuple[float, float]] = []
    for sizes in MODELS:
        if len(ratios) < 2 or time.perf_counter() - began < seconds:
            ratios.append(_ratios(calibration, sizes, clock))
    errors = [
        _factors([*ratios[:place], *ratios[place + 1 :]])[which] / pair[which] - 1
        for place, pair in enumerate(ratios)
        for which in (0, 1)
    ]
    spent = time.perf_counter() - began
    calibration = replace(
        calibration, factors=_factors(ratios), errors=tuple(errors), seconds=spent
    )
    write(calibration, file or place(device))
    return calibration


def clock_of(device: str) -> Callable[[], float]:
    """Return the clock of a device: the processor's for one thread, else that of the wall."""
    if device != "cpu":

        def synchronized() -> float:
            torch.cuda.synchronize()
            return time.perf_counter()

        return synchronized
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def processor(device: str) -> str:
    """Return the name of the processor."""
    if device != "cpu":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def place(device: str) -> Path:
    """Return the file in the user's cache folder in which a device's calibration is kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "querykey" / f"calibration-{device}.json"


def write(calibration: Calibration, file: Path) -> None:
    """Write a calibration as JSON."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CostError(f"`{file.parent}` cannot be made: {error.strerror}") from error
    write_file(file, json.dumps({"schema": SCHEMA, **asdict(calibration)}, indent=1))


def read(device: str = "cpu", file: Path | None = None) -> Calibration | None:
    """Return the calibration that was kept for a device, None where there is none."""
    file = file or place(device)
    try:
        values = json.loads(file.read_text())
        if values.pop("schema") != SCHEMA:
            raise ValueError("another version wrote it")
        points = tuple(
            TimedOperation(p["kind"], tuple(p["features"]), p["work"], p["seconds"])
            for p in values.pop("operations")
        )
        errors = tuple(values.pop("errors"))
        factors = tuple(values.pop("factors"))
        calibration = Calibration(operations=points, errors=errors, factors=factors, **values)
        if {*OVERHEADS} - {*calibration.overheads}:
            raise ValueError("another version wrote it")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = error if isinstance(error, ValueError | OSError) else "its fields are not those here"
        raise CostError(
            f"`{file}` is no calibration ({why}); measure once more: qk cost --calibrate"
        ) from error
    return calibration


def timed(work: Work, clock: Callable[[], float], times: int = 1) -> float:
    """Return the seconds of one call, the mean of several."""
    began = clock()
    for _ in range(times):
        work()
    return (clock() - began) / times


def _timed(probe: TimingProbe, clock: Callable[[], float]) -> float:
    with torch.enable_grad():
        work = probe.make()
        once = timed(work, clock)  # the first call is slower than any other
        once = min(once, timed(work, clock))
        times = max(1, min(200, round(SHORT / max(once, 1e-7))))
        return min(once, timed(work, clock, times)) / probe.runs


def _described(probe: TimingProbe) -> TimedOperation:
    call = call_of(probe.make())
    if call is None:
        return TimedOperation("", (), 0.0, 0.0)
    return TimedOperation(*kind_of(call, {}), 0.0)


def _factors(ratios: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the medians, forward and training: caches and Python cost what no operation shows."""
    forward, step = zip(*ratios, strict=True)
    return statistics.median(forward), statistics.median(step)


def _ratios(
    calibration: Calibration, sizes: Sequence[int], clock: Callable[[], float]
) -> tuple[float, float]:
    """Return measured over predicted seconds of one model of torch's own layers."""
    width, layers, hidden, batch, length = sizes
    layer = [
        nn.TransformerEncoderLayer(width, 4, hidden, 0.0, "gelu", batch_first=True)
        for _ in range(layers)
    ]
    model = nn.Sequential(*layer)
    measured = MeasuredModel(model, Inputs.of(array("b", "t", width)), {}, {})
    traffic = BytesMoved(measured, PassOptions())
    predicted = calibration.predict(traffic, {"b": batch, "t": length})
    forward, step = times_of(model.to(calibration.device), (batch, length, width), clock)
    return forward / predicted.forward, step / (predicted.step or step)


def times_of(
    model: nn.Module, shape: Sequence[int], clock: Callable[[], float], rounds: int = 3
) -> tuple[float, float]:
    """Return the best seconds of a forward pass and of a training step on ones of this shape."""
    device = next(model.parameters()).device
    x = torch.ones(*shape, device=device)
    return best_times(model, lambda: model(x), clock, rounds)


def best_times(
    model: nn.Module, run: Callable[[], Any], clock: Callable[[], float], rounds: int = 3
) -> tuple[float, float]:
    """Return the best seconds of a forward pass without gradients, and of one with and backward."""
    forward, step = [], []
    for _ in range(rounds + 1):
        with torch.no_grad():
            forward.append(timed(run, clock))
        model.zero_grad()
        gradient = torch.ones_like(run())
        model.zero_grad()
        step.append(timed(lambda gradient=gradient: run().backward(gradient), clock))
        gc.collect()
    return min(forward[1:]), min(step[1:])
