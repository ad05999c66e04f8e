"""A report made of the formulas of single modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sympy

from querykey.costs.counting.passes import PassOptions
from querykey.costs.formulas.formula_set import FormulaSet
from querykey.costs.measured_model import MeasuredModel
from querykey.costs.memory.memory import PeakMemory
from querykey.costs.report import CostReport
from querykey.costs.span import Span
from querykey.costs.substitution import moved_by
from querykey.costs.sums import Sum, add_sum, expression
from querykey.costs.timing.bytes_moved import BytesMoved
from querykey.costs.values import Flops, ModuleCost


def make_report(measured: MeasuredModel, formulas: FormulaSet, options: PassOptions) -> CostReport:
    """Return a report in which each module's cost includes its children's."""
    model = measured.model(measured.base())
    kinds: dict[str, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        known = kinds.setdefault(measured.fold(path), [])
        if type(module).__name__ not in known:
            known.append(type(module).__name__)
    totals: dict[str, dict[str, Sum]] = {path: {} for path in kinds}
    for (path, metric), total in formulas.own.items():
        for outer in _with_parents(path):
            add_sum(totals.setdefault(outer, {}).setdefault(metric, {}), total)
    params = {path: expression(total) for path, total in formulas.params.items()}
    traffic = BytesMoved(measured, options)
    modules = {
        path: replace(
            _module_cost(total, params.get(path, sympy.S.Zero), ", ".join(kinds.get(path, ()))),
            moved=moved_by(traffic, path, {}),
        )
        for path, total in totals.items()
    }
    loss = "sum of the first floating output" if options.loss is None else "given"
    return CostReport(
        modules,
        {name: sympy.Symbol(name) for name in measured.names},
        formulas.valid,
        formulas.unknown,
        formulas.notes,
        formulas.derivation.engine,
        {
            "backward": options.backward, "attention": options.attention, "loss": loss,
            "phase": options.phase,
        },
        picked=measured.picked,
        below=formulas.below and make_report(measured, formulas.below, options),
        memory=PeakMemory(measured, replace(options, graph=options.backward)),
        depth=Span(measured, options),
        traffic=traffic,
        state=expression(totals[""].get("state", {})) if options.phase != "train" else None,
    )  # fmt: skip


def _module_cost(total: Mapping[str, Sum], params: Any, kind: str) -> ModuleCost:
    values = {metric: expression(terms) for metric, terms in total.items()}
    zero = sympy.S.Zero
    forward = values.get("forward", zero)
    flops = Flops(
        forward,
        values.get("backward", zero),
        values.get("pointwise", zero),
        values.get("pointwise_backward", zero),
        visible=sympy.expand(forward - values.get("hidden", zero)),
        recomputed=values.get("recomputed", zero),
    )
    return ModuleCost(flops, params, values.get("saved", zero), kind)


def _with_parents(path: str) -> list[str]:
    """Return a path and the paths of all modules around it, the whole model last."""
    parts = path.split(".") if path else []
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]
