"""What a pass counted, as sums in the user's names of sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
from torch import nn

from querykey.costs.counting.operations import (
    FUSED_BACKWARD,
    Operation,
    Shape,
    count,
    pointwise,
    products,
    scores,
)
from querykey.costs.counting.trace import FORWARD, Trace
from querykey.costs.sums import Key, Sum, add_sum, as_sum

Formula = Callable[[list[Shape], list[Shape]], Any]


@dataclass(frozen=True)
class Counts:
    """Costs by (module, metric) without children, parameters by module, and what has no formula.

    The metrics are forward, backward, pointwise, pointwise_backward, hidden (by a causal flag),
    recomputed (by fused attention), saved (bytes) and state (bytes that generation hands on).
    """

    own: dict[Key, Sum]
    params: dict[str, int]  # with children
    unknown: dict[str, dict[str, int]]  # by operation: calls by module


def counts_of(
    trace: Trace,
    model: nn.Module,
    formulas: Mapping[str, Formula],
    plain: Callable[[Any], Any] = lambda e: e,
) -> Counts:
    """Return the costs of a traced pass; `plain` writes an expression in the user's names."""
    own: dict[Key, Sum] = {}
    prices: dict[tuple[Operation, str], Sum] = {}

    def add(
        path: str, metric: str, op: Operation, cost: Callable[[Operation], Any], times: int
    ) -> None:
        if (op, metric) not in prices:
            prices[op, metric] = as_sum(plain(cost(op)))
        if prices[op, metric]:
            add_sum(own.setdefault((path, metric), {}), prices[op, metric], times)

    for (op, path, phase), times in trace.operations.items():
        in_products, outside = _prices(op, formulas)
        add(path, phase, op, in_products, times)
        add(path, "pointwise" if phase == FORWARD else "pointwise_backward", op, outside, times)
        if op.name == FUSED_BACKWARD:
            add(path, "recomputed", op, _recomputed, times)
    for (op, path), times in trace.causal.items():
        add(path, "hidden", op, _hidden, times)
    for path, size in trace.saved:
        add_sum(own.setdefault((path, "saved"), {}), as_sum(plain(size)))
    for size in trace.state:
        add_sum(own.setdefault(("", "state"), {}), as_sum(plain(size)))
    unknown: dict[str, dict[str, int]] = {}
    for (name, path), times in trace.unknown.items():
        unknown.setdefault(name, {})[path] = times
    return Counts(own, parameters(model), unknown)


def parameters(model: nn.Module) -> dict[str, int]:
    """Return the parameters of every module and its children, a shared one counted once."""
    return {path: sum(p.numel() for p in m.parameters()) for path, m in model.named_modules()}


def _prices(op: Operation, formulas: Mapping[str, Formula]) -> tuple[Any, Any]:
    """Return the formulas of an operation, in matrix products and outside; the user's go first."""
    if op.name not in formulas:
        return products, pointwise

    def by_user(op: Operation) -> Any:
        shapes = [arg for arg in op.args if isinstance(arg, Shape)]
        return formulas[op.name](shapes, list(op.outs))

    return by_user, lambda op: 0


def _recomputed(op: Operation) -> Any:
    return 2 * scores(op.args[0], op.args[1]) * op.args[0][-1]


def _hidden(op: Operation) -> Any:
    """Return the FLOPs spent on the pairs above the diagonal, which a causal flag hides."""
    q, k, v = op.args
    queries, keys = q[-2], k[-2]
    if queries == keys:
        visible = sympy.sympify(queries) * (queries + 1) / 2
    else:
        short = sympy.Min(queries, keys)
        visible = short * (short + 1) / 2 + (queries - short) * keys
    hidden = (queries * keys - visible) * count(Shape(q[:-2]))
    flops = 2 * hidden * (q[-1] + v[-1])
    return int(flops) if flops.is_Integer else flops
