"""Count the cost of a model at concrete sizes: on tensors without values, else by running it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

from torch import nn

from querykey.costs.counting.counts import Counts, counts_of
from querykey.costs.counting.data_dependent import DataDependentSizes
from querykey.costs.counting.passes import PassOptions, PassSetting, run_pass
from querykey.costs.counting.tensors import random_state
from querykey.costs.counting.trace import Trace
from querykey.costs.formulas.formula_set import listed
from querykey.costs.inputs import CostError
from querykey.costs.measured_model import MeasuredModel
from querykey.costs.private import static_shapes
from querykey.costs.sums import Key, fold_sums
from querykey.words import last_line

MOST = 2  # modules that a refusal names
STATIC, REAL = "static", "real"  # tensors without values, and tensors with random values


class ValuesError(CostError):
    """Says that the cost depends on the values that go in."""


class NotRunningError(CostError):
    """Says that the model does not run at some sizes."""


class FoldedError(CostError):
    """Says that values share the work among numbered modules: only their sum has a formula."""


class ConcreteCounter:
    """Counts costs and parameters by (module, metric) at one choice of sizes after the other."""

    def __init__(
        self,
        measured: MeasuredModel,
        options: PassOptions,
        never_run: bool = False,
        copy_layers: bool = False,
    ):
        self.measured, self.options, self.copy_layers = measured, options, copy_layers
        self.unknown: dict[str, dict[str, int]] = {}
        self.ran = False  # whether the model had to run on values
        self.operations: set[int] = set()  # the numbers of operations per valueless pass
        self.last = 0  # the number of operations in the last pass
        self._ways: list[tuple[str, str]] | None = None  # (STATIC or REAL, device), once known
        if never_run:
            self._ways = _ways(measured.model(measured.base()), static=True)

    def __call__(self, sizes: Mapping[str, int]) -> dict[Key, int]:
        """Return the counts at these sizes, without those that are 0."""
        counts = self._count(self.measured.model(sizes), sizes)
        for op, calls in counts.unknown.items():
            self.unknown.setdefault(op, {}).update(calls)
        fold, totals = self.measured.fold, {}
        for (path, metric), total in counts.own.items():
            key = fold(path), metric
            totals[key] = totals.get(key, 0) + int(sum(total.values()))
        for path, parameters in counts.params.items():
            key = fold(path), "params"
            totals[key] = totals.get(key, 0) + parameters
        return {key: total for key, total in totals.items() if total}

    def _count(self, model: nn.Module, sizes: Mapping[str, int]) -> Counts:
        reason = ""
        for way, device in self._ways or _ways(model, static=bool(self.measured.picked)):
            try:
                if way == STATIC:
                    counts = self._count_static(model, sizes, device)
                else:
                    counts = self._count_real(model, sizes, device)
            except CostError:
                raise
            except (Exception, SystemExit) as error:
                reason = reason or last_line(error, 200)
            else:
                self._ways, self.ran = [(way, device)], way == REAL
                return counts
        at = f" with {listed(sizes)}" if sizes else ""
        raise NotRunningError(
            f"the model does not run{at} ({reason}); a size that the model fixes is written as a "
            "number, and one that must divide another is said with sizes={...}"
        )

    def _count_static(self, model: nn.Module, sizes: Mapping[str, int], device: str) -> Counts:
        picked = DataDependentSizes(sizes.__getitem__) if self.measured.picked else None
        setting = PassSetting(sizes, device, static_shapes(), picked, self.copy_layers)
        counts = self._run(model, setting)
        self.operations.add(self.last)
        return counts

    def _count_real(self, model: nn.Module, sizes: Mapping[str, int], device: str) -> Counts:
        runs = []
        for seed in (0, 1):
            with random_state(seed):
                runs.append(self._run(model, PassSetting(sizes, device, nullcontext())))
        self._compare(*runs)
        return runs[0]

    def _run(self, model: nn.Module, setting: PassSetting) -> Counts:
        trace: Trace = run_pass(model, self.measured.inputs, self.options, setting)
        self.last = sum(trace.operations.values())
        return counts_of(trace, model, self.options.formulas)

    def _compare(self, first: Counts, second: Counts) -> None:
        """Refuse costs that differ between two runs with different values."""
        measured, varied = self.measured, self.measured.varies
        for measured.varies in (varied, True):
            a, b = (
                {k: sum(v.values()) for k, v in fold_sums(counts.own, measured.fold).items()}
                for counts in (first, second)
            )
            if a == b:
                if measured.varies != varied:
                    raise FoldedError("values decide which module does what")
                return
        measured.varies = varied
        raise ValuesError(
            f"the cost depends on the values that go in: {_differing(first, second)} differs "
            "between two runs on random values, and no formula bounds it"
        )


def _differing(first: Counts, second: Counts) -> str:
    """Return where the costs of two runs differ, by module."""
    keys = dict.fromkeys([*first.own, *second.own])
    differ = (key for key in keys if first.own.get(key) != second.own.get(key))
    paths = list(dict.fromkeys(path for path, _ in differ))
    shown = ", ".join(f"`{path}`" if path else "the model's own code" for path in paths[:MOST])
    return f"what {shown}{' and others' if len(paths) > MOST else ''} cost"


def devices(model: nn.Module) -> list[str]:
    """Return the devices on which a model can be traced, the preferred one first."""
    tensors = [*model.parameters(), *model.buffers()]
    return ["cpu", "meta"] if all(t.device.type == "cpu" for t in tensors) else ["meta"]


def _ways(model: nn.Module, static: bool = False) -> list[tuple[str, str]]:
    """Return how to count: on tensors without values, then (unless `static`) on real ones."""
    ways = [(STATIC, device) for device in devices(model)]
    return [*ways, (REAL, "cpu")] if ways[0][1] == "cpu" and not static else ways
