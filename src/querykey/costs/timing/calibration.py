"""Measure a device once, for at most a minute, and keep what was measured in the user's cache.

Every operation is timed in several rounds, one after the other, and its best time is kept. On a CPU
with one thread the processor's time is taken, which others on the machine do not lengthen.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from querykey.costs.inputs import CostError
from querykey.costs.timing.bytes_moved import BytesMoved
from querykey.costs.timing.factors import (
    Factors,
    ModelTime,
    errors_of,
    factors_of,
    refuse_far,
    with_factors,
)
from querykey.costs.timing.measuring import best_time, clock_of, processor
from querykey.costs.timing.prediction import PassTime, Prediction, predict
from querykey.costs.timing.probes import (
    TimingProbe,
    call_of,
    operations,
    overheads,
    small_streams,
)
from querykey.costs.timing.rates import Rates, TimedOperation, kind_of
from querykey.costs.timing.streams import Work
from querykey.costs.timing.trials import TRIALS, least_trials
from querykey.show import write_file
from querykey.words import checked, number

SCHEMA = 3
SECONDS = 60.0  # a calibration takes no longer
ROUNDS = 8  # at most
PART = 0.75  # of the seconds, for operations; the rest is for models that check them
OVERHEADS = ("plain", "recorded", "backward", "view", "module", "mixed")
DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.bfloat16)}


@dataclass(frozen=True)
class Calibration:
    """What was measured on a device: seconds of operations, overheads, and errors on models."""

    device: str  # cpu or cuda
    name: str  # of the processor
    threads: int
    dtypes: tuple[str, ...]
    torch: str
    operations: tuple[TimedOperation, ...]
    overheads: dict[str, float]
    factors: Factors  # by dtype: by which models took longer, forward and a training step
    errors: tuple[float, ...]  # relative, of each of these models with the factors of the others
    seconds: float

    @property
    def error(self) -> float:
        """Return the median relative error on the models that checked it."""
        return statistics.median(map(abs, self.errors)) if self.errors else 0.0

    def predict(
        self, traffic: BytesMoved, sizes: dict[str, int], dtype: torch.dtype | None = None
    ) -> Prediction:
        """Return the time of a forward pass and of a training step at these sizes."""
        moved = traffic.traffic_at(sizes, dtype)
        formulas = traffic.options.formulas
        used = {call.dtype for call, _, _ in moved.calls if len(kind_of(call, formulas)[1]) > 2}
        if used - {*self.dtypes, ""}:
            raise CostError(
                f"the calibration measured {' and '.join(self.dtypes)}, and the model computes in "
                f"{', '.join(sorted(used - {''}))}"
            )
        name = next(iter(sorted(used - {""})), self.dtypes[0])
        forward, step = (
            self._seconds(part, name, bool(train))
            for train, part in enumerate(self.parts(traffic, sizes, dtype))
        )
        return Prediction(forward, step if traffic.options.backward else None, self.error)

    def parts(
        self, traffic: BytesMoved, sizes: dict[str, int], dtype: torch.dtype | None = None
    ) -> tuple[PassTime, PassTime]:
        """Return the time of a forward pass and of a training step, without factors."""
        moved = traffic.traffic_at(sizes, dtype)
        modules = sum(1 for _ in traffic.measured.model(sizes).modules())
        rates = Rates(self.operations, self.device)
        formulas = traffic.options.formulas
        return predict(moved.calls, moved.views, modules, rates, self.overheads, formulas)

    def _seconds(self, part: PassTime, dtype: str, train: bool) -> float:
        return with_factors(part, self.factors, dtype, train, self.device)


@checked
def calibrate(seconds: float = SECONDS, device: str = "", file: Path | None = None) -> Calibration:
    """Measure this device, write the result into the user's cache, and return it."""
    began = time.perf_counter()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in DTYPES:
        raise CostError(f"`{device}` cannot be measured; name one of {', '.join(DTYPES)}")
    number("seconds", seconds)
    dtypes = DTYPES[device]
    clock = clock_of(device)
    probes = {
        (str(dtype).removeprefix("torch."), probe.name): probe
        for dtype in dtypes
        for probe in (*overheads(device, dtype), *operations(device, dtype))
        if probe.runs == 1 or dtype is dtypes[0]
    }
    best: dict[tuple[str, str], float] = {}
    kinds: dict[tuple[str, str], TimedOperation] = {}
    for round_ in range(ROUNDS):
        for key, probe in probes.items():
            if round_ and time.perf_counter() - began > PART * seconds:
                break
            work = probe.make()
            if probe.runs == 1 and key not in kinds:
                kinds[key] = _described(work, probe, key[0])
            best[key] = min(best_time(work, probe.runs, clock, device), best.get(key, float("inf")))
    measured = tuple(replace(m, seconds=best[key]) for key, m in kinds.items() if m.work)
    names = tuple(str(dtype).removeprefix("torch.") for dtype in dtypes)
    costs = {name: best[names[0], name] for (_, name), p in probes.items() if p.runs > 1}
    alone = [best[names[0], probe.name] for probe in small_streams(device, dtypes[0])]
    costs["module"] = max(0.0, costs["module"] - costs.pop("small product"))
    costs["mixed"] = max(0.0, costs["mixed"] - statistics.fmean(alone))
    calibration = Calibration(
        device, processor(device), torch.get_num_threads(), names, torch.__version__, measured,
        costs, {}, (), 0.0,
    )  # fmt: skip
    models = trial_times(calibration, clock, began + seconds)
    factors, errors = factors_of(models, device), tuple(errors_of(models, device))
    refuse_far(factors)
    spent = time.perf_counter() - began
    calibration = replace(calibration, factors=factors, errors=errors, seconds=spent)
    write(calibration, file or place(device))
    return calibration


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
            TimedOperation(p["kind"], tuple(p["features"]), p["work"], p["seconds"], p["dtype"])
            for p in values.pop("operations")
        )
        errors, dtypes = tuple(values.pop("errors")), tuple(values.pop("dtypes"))
        factors = {name: tuple(pair) for name, pair in values.pop("factors").items()}
        calibration = Calibration(
            operations=points, errors=errors, dtypes=dtypes, factors=factors, **values
        )
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


def _described(work: Work, probe: TimingProbe, dtype: str) -> TimedOperation:
    call = call_of(work)
    if call is None:
        return TimedOperation("", (), 0.0, 0.0)
    kind, features, size = kind_of(call, {})
    return TimedOperation(f"{probe.prefix}{kind}", features, size, 0.0, dtype)


def trial_times(
    calibration: Calibration, clock: Callable[[], float], until: float
) -> list[ModelTime]:
    """Return the times of models, of as many as are done by then if each takes what one took."""
    models: list[ModelTime] = []
    longest, least = 0.0, least_trials(calibration.device)
    for trial in TRIALS[calibration.device]:
        began = time.perf_counter()
        if len(models) >= least and began + longest > until:
            break
        predicted = calibration.parts(*trial.traffic())
        models.append(trial.timed(calibration.device, clock, predicted))
        longest = max(longest, time.perf_counter() - began)
    return models
