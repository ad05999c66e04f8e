"""The cost report: formulas in named sizes, in total and per module."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from querykey.costs.devices import device_of, memory_of
from querykey.costs.formulas.bottleneck import Share, shares
from querykey.costs.formulas.comparison import CostComparison, crossings, deciding_size
from querykey.costs.formulas.formula_set import RefusedError, listed
from querykey.costs.formulas.order import Order, order_of
from querykey.costs.formulas.validity import written
from querykey.costs.inputs import CostError, OutsideError, whole_size
from querykey.costs.memory.memory import PeakMemory, dtype_of, largest_that
from querykey.costs.memory.peak import Peak
from querykey.costs.memory.training import TrainingBytes, sharded, training_parts
from querykey.costs.render import as_text
from querykey.costs.span import Span
from querykey.costs.substitution import Substitution, moved_by
from querykey.costs.timing.bytes_moved import BytesMoved
from querykey.costs.timing.calibration import Calibration, read
from querykey.costs.timing.prediction import Prediction
from querykey.costs.timing.roofline import Roofline, roofline
from querykey.costs.values import (
    PER_MODULE,
    VALUES,
    CostValues,
    NotComputed,
    value_of,
)
from querykey.words import checked, suggest

SCHEMA = 1  # the version of what `to_dict` returns, which docs/schema/cost.json describes


@dataclass(frozen=True)
class CostReport(CostValues):
    """Formulas as sympy expressions in `symbols`; `print` shows them as tables."""

    below: CostReport | None = None  # the report of smaller sizes, where this one does not hold
    memory: PeakMemory | None = field(default=None, compare=False, repr=False)
    depth: Span | None = field(default=None, compare=False, repr=False)
    traffic: BytesMoved | None = field(default=None, compare=False, repr=False)
    # The report in which some of the inputs' sizes are 1, where this one does not hold.
    at_one: Callable[[frozenset[str]], CostReport] | None = field(
        default=None, compare=False, repr=False
    )
    state: Any = None  # the bytes that generation hands on, in its phases

    @property
    def state_bytes(self) -> Any:
        """Return the bytes of the cache or state after the tokens, in a phase of generation."""
        if self.state is None:
            return NotComputed("only the phases prefill and decode have a state: phase='decode'")
        return self.state

    @property
    def peak_bytes(self) -> Any:
        """Return the most memory of a training step, or of inference without a backward pass.

        Weights, inputs and gradients are in it. Derived when first asked for.
        """
        return self._peak(self.memory)

    @property
    def span(self) -> Any:
        """Return the parallel depth of the forward pass, every sum a tree, math attention."""
        return self.span_with()

    @checked
    def span_with(self, serial: Collection[str] = ()) -> Any:
        """Return the depth where sums over the sizes in `serial` are serial, and others trees."""
        if self.depth is None:
            return NotComputed("the parallel depth is not known here")
        try:
            values = {sympy.Symbol(name): size for name, size in self.sizes.items()}
            depth = self.depth.formula(serial).subs(values)
        except RefusedError as error:
            return NotComputed(str(error))
        return int(depth) if depth.is_Integer else depth

    @property
    def inference_bytes(self) -> Any:
        """Return the most memory of a forward pass without gradients, weights and inputs in it."""
        return self._peak(self.memory and self.memory.training(False))

    @checked
    def peak(self, phase: str = "train", **sizes: int) -> Peak:
        """Return the peak in bytes of a phase, "train" or "inference", and what is alive there."""
        if phase not in ("train", "inference"):
            raise CostError(f"a peak is that of train or inference, not of `{phase}`")
        report = self.at(**sizes) if sizes else self
        if report.symbols:
            raise CostError(f"put all sizes in: {', '.join(report.symbols)} is free")
        if report.memory is None:
            raise CostError("the peak of memory is not known here")
        return report.memory.training(phase == "train").at(report.sizes)

    def _peak(self, memory: PeakMemory | None) -> Any:
        if memory is None:
            return NotComputed("the peak of memory is not known here")
        try:
            if not self.symbols:
                return memory.at(self.sizes).bytes
            values = {sympy.Symbol(name): size for name, size in self.sizes.items()}
            return memory.formula.subs(values)
        except CostError as error:
            return NotComputed(str(error))

    def at(self, **sizes: int) -> CostReport:
        """Return the report with these sizes put in; values without a free size are ints."""
        sizes = self._checked(sizes)
        all_sizes = {**self.sizes, **sizes}
        broken = self.valid.broken(all_sizes)
        if broken and self.below is not None and not self.below.valid.broken(all_sizes):
            return self.below.at(**all_sizes)
        if broken and (there := self._at_one(all_sizes)) is not None:
            return there
        if broken:
            raise OutsideError(
                f"{listed(sizes)} is outside the range of this formula ({written(broken[0])})"
            )
        put = Substitution({self.symbols[n]: sympy.Integer(size) for n, size in sizes.items()})
        modules = {
            path: replace(put.into(module), moved=moved_by(self.traffic, path, all_sizes))
            for path, module in self.modules.items()
        }
        left = {n: s for n, s in self.symbols.items() if n not in sizes}
        state = None if self.state is None else put.value(self.state)
        return replace(self, modules=modules, symbols=left, sizes=all_sizes, state=state)

    def _at_one(self, sizes: Mapping[str, int]) -> CostReport | None:
        """Return the report at sizes some of which are 1, from the formula of these, if any."""
        ones = frozenset(name for name, size in sizes.items() if size == 1)
        if self.at_one is None or not ones:
            return None
        rest = {name: size for name, size in sizes.items() if name not in ones}
        try:
            report = self.at_one(ones)
            report = report.at(**rest) if rest else report
        except CostError:
            return None
        return replace(report, sizes=dict(sizes), settings=self.settings)

    @checked
    def order(
        self,
        name: str = "flops.forward",
        given: Mapping[str, Any] | None = None,
        serial: Collection[str] = (),
    ) -> Order:
        """Return the order of a value as its sizes grow, such as O(batch seq^2).

        `given` relates sizes: {"d": "h*k"}, or bounds one: {"u": "<= d"}. In the order of `span`
        sums over the sizes in `serial` are serial, and others trees.
        """
        if serial and name != "span":
            raise CostError(f"sums are serial or trees in `span` alone, not in `{name}`")
        value = self.span_with(serial) if serial else self[name]
        if isinstance(value, str):
            raise CostError(f"`{name}`: {value}")
        return order_of(value, list(self.symbols), given)

    @checked
    def compare(
        self, other: CostReport, size: str = "", of: str = "flops.forward", **sizes: int
    ) -> CostComparison:
        """Return where two models cost the same as one size grows, and both formulas hold.

        Without a size it is solved for the only one on which their order depends.
        """
        first, second = (
            report.at(**{name: s for name, s in sizes.items() if name in report.symbols})
            for report in (self, other)
        )
        size = size or deciding_size(first[of], second[of], of)
        if size not in {**first.symbols, **second.symbols}:
            self._checked({size: 1})
        comparison = crossings(first[of], second[of], size, of)

        def outside(root: Any) -> bool:
            broken = [c for r in (first, second) for c in r.valid.broken({**r.sizes, size: root})]
            return any(not c.has(sympy.Mod) for c in broken)  # a crossing between multiples counts

        inside = tuple(root for root in comparison.crossings if not outside(root))
        return replace(comparison, crossings=inside)

    @checked
    def training_bytes(
        self,
        optimizer: str = "adamw",
        dtype: torch.dtype | str | None = None,
        checkpointing: bool = False,
        sharding: int = 1,
    ) -> TrainingBytes:
        """Return what training takes on one device, in parts and in total.

        `dtype` puts weights and floating inputs into another precision, `checkpointing` computes
        every numbered layer again in the backward pass, and `sharding` divides weights, gradients
        and the optimizer's state among so many ranks.
        """
        if self.memory is None:
            raise CostError("the memory of training is not known here")
        kind = dtype_of(dtype)
        memory = self.memory.with_settings(kind, checkpointing)
        peak = self._peak(memory)
        if isinstance(peak, str):
            raise CostError(str(peak))
        model = memory.measured.model({**memory.measured.base(), **self.sizes})
        parts = training_parts(model, peak, optimizer, kind.itemsize if kind else None)
        return sharded(parts, whole_size("sharding", sharding), model)

    @checked
    def largest(
        self, size: str, memory: int | str, optimizer: str | None = "adamw", **sizes: int
    ) -> int:
        """Return the largest value of one size at which the peak fits `memory`, 0 where none does.

        `memory` is a number of bytes or the name of a device; the others of the sizes are given in
        `sizes`. With an optimizer its state has to fit too; None asks about inference.
        """
        report = self.at(**sizes) if sizes else self
        report._checked({size: 1})
        if len(report.symbols) > 1 or self.memory is None:
            raise CostError(f"put the other sizes in: {', '.join(s for s in report.symbols)}")
        most = memory_of(memory)

        def needed(of: CostReport) -> Any:
            return of.inference_bytes if optimizer is None else of.training_bytes(optimizer).total

        try:
            formula = needed(report)
        except CostError as error:
            formula = NotComputed(str(error))
        symbol = sympy.Symbol(size)

        def fits(number: int) -> bool:
            if isinstance(formula, str):  # no formula, but the peak at sizes is known
                return needed(report.at(**{size: number})) <= most
            return formula.subs({symbol: number}) <= most

        return largest_that(fits, self.valid, size)

    @checked
    def time(
        self, device: str = "h200", dtype: torch.dtype | str | None = None, **sizes: int
    ) -> Roofline:
        """Return the least time of a pass on a device, what binds it, in total and by module.

        `dtype` puts weights and floating inputs into another precision. No two operations are
        fused, and starting them costs nothing.
        """
        traffic, at = self._traffic_at(sizes)
        calls = traffic.calls_at(at, dtype_of(dtype))
        return roofline(calls, device_of(device), traffic.options.formulas, traffic.measured.fold)

    def predict(
        self,
        calibration: Calibration | None = None,
        dtype: torch.dtype | str | None = None,
        **sizes: int,
    ) -> Prediction:
        """Return the time of a forward pass and of a training step on the device measured.

        Without a calibration, that which `qk cost --calibrate` wrote for this machine is read.
        `dtype` puts weights and floating inputs into another precision.
        """
        traffic, at = self._traffic_at(sizes)
        found = calibration or read("cuda") or read("cpu")
        if found is None:
            raise CostError("this machine is not measured yet; measure it: qk cost --calibrate")
        return found.predict(traffic, at, dtype_of(dtype))

    def _traffic_at(self, sizes: Mapping[str, int]) -> tuple[BytesMoved, dict[str, int]]:
        """Return what the operations move, and all sizes."""
        report = self.at(**sizes) if sizes else self
        if report.symbols:
            raise CostError(f"put all sizes in: {', '.join(report.symbols)} is free")
        if report.traffic is None:
            raise CostError("the bytes moved are not known here")
        return report.traffic, report.sizes

    @checked
    def bottleneck(
        self, growing: str | None = None, of: str = "flops.forward", **sizes: int
    ) -> tuple[Share, ...]:
        """Return each module's own share of a cost, the largest first.

        With `growing` these are the shares that are left as that one size grows without end.
        Equal modules of numbered layers are in one row, and a module's children are not in it.
        """
        report = self.at(**sizes) if sizes else self
        if of not in PER_MODULE:
            raise CostError(f"modules have no `{of}`; they have {', '.join(PER_MODULE)}")
        if growing is not None:
            report._checked({growing: 1})
        return shares({path: value_of(m, of) for path, m in report.modules.items()}, growing)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, numbers as numbers and formulas as text (docs/json.md)."""
        values = {name: plain(self[name]) for name in VALUES}
        modules = {
            path: {"kind": m.kind, **{n: plain(value_of(m, n)) for n in PER_MODULE}}
            for path, m in self.modules.items()
        }
        return {
            "schema": SCHEMA, "sizes": list(self.symbols), "at": self.sizes, "picked": self.picked,
            **values, "valid": str(self.valid), "unknown": self.unknown, "notes": self.notes,
            "engine": self.engine, "settings": self.settings, "modules": modules,
            "below": self.below and self.below.to_dict(),
            "time": None, "predicted": None, "versus": [],
        }  # fmt: skip

    def to_json(self) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        return as_text(self)

    def _checked(self, sizes: Mapping[str, Any]) -> dict[str, int]:
        for name in sizes:
            if name not in self.symbols:
                have = ", ".join(self.symbols) or "none is free"
                hint = suggest(name, self.symbols)
                raise CostError(f"there is no size `{name}`{hint} (the sizes: {have})")
        return {n: whole_size(n, size, 0 if n in self.picked else 1) for n, size in sizes.items()}


def plain(value: Any) -> Any:
    """Return a value for JSON: a whole number, or a formula or a reason as text."""
    return int(value) if isinstance(value, int | sympy.Integer) else str(value)
