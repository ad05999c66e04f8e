"""The modules of a report as a tree: equal layers in one row, each with its share of the total."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sympy

from querykey.costs.values import CostValues, ModuleCost
from querykey.show import fold_numbered, group_name

SHOWN_AT = 512  # the number that stands for a free size where shares are compared
BAR = 10  # letters of a whole bar
GROUPS = ("ModuleList", "ModuleDict")  # a grouping, not a level of its own


@dataclass(frozen=True)
class ModuleRow:
    """One module, or equal numbered neighbours, of a tree."""

    name: str  # below the module around it, such as h.0-11
    path: str  # of the first of them, in full
    level: int
    times: int  # how often it is there in the whole model
    share: float  # of the whole model's FLOPs, all of them together; of its parameters without any
    module: ModuleCost

    @property
    def bar(self) -> str:
        """Return the share as a bar."""
        return "█" * round(BAR * self.share) or ("▏" if self.share >= 0.005 else "")


def tree(report: CostValues, depth: int | None = None) -> list[ModuleRow]:
    """Return the rows of the modules that cost anything, to a depth or to any."""
    total = _weight(report, report.modules[""])
    whole = ModuleRow("(all)", "", 0, 1, 1.0, report.modules[""])
    return [whole, *_below(report, "", "", depth, 1, 1, total)]


def shares_at(report: CostValues) -> dict[str, int]:
    """Return the numbers that stand for the free sizes in shares, within the formula's range."""
    most = report.valid.upper_bounds()
    return {name: min(SHOWN_AT, int(most.get(name, SHOWN_AT))) for name in report.symbols}


def _below(
    report: CostValues,
    path: str,
    label: str,
    depth: int | None,
    level: int,
    times: int,
    total: float,
) -> Iterator[ModuleRow]:
    if depth is not None and level > depth:
        return
    prefix = f"{path}." if path else ""
    for names in fold_numbered(
        _children(report, prefix), lambda a, b: _equal(report, prefix + a, prefix + b)
    ):
        first = prefix + names[0]
        name = f"{label}.{group_name(names)}" if label else group_name(names)
        module, count = report.modules[first], times * len(names)
        if module.kind in GROUPS:
            yield from _below(report, first, name, depth, level, count, total)
            continue
        if any(value != 0 for value in _values(module)):
            share = len(names) * times * _weight(report, module) / total if total else 0.0
            yield ModuleRow(name, first, level, count, share, module)
        yield from _below(report, first, "", depth, level + 1, count, total)


def _values(module: ModuleCost) -> tuple[Any, ...]:
    return module.flops.forward, module.flops.backward, module.params, module.saved_bytes


def _weight(report: CostValues, module: ModuleCost) -> float:
    """Return what shares are made of: FLOPs, or parameters in a model without matrix products."""
    whole = report.modules[""].flops
    flops = whole.forward != 0 or whole.backward != 0
    value = module.flops.forward + module.flops.backward if flops else module.params
    at = {sympy.Symbol(name): size for name, size in shares_at(report).items()}
    number = sympy.sympify(value).subs(at)
    return float(number) if number.is_number else 0.0


def _children(report: CostValues, prefix: str) -> list[str]:
    inner = (path.removeprefix(prefix) for path in report.modules if path.startswith(prefix))
    return [name for name in inner if name and "." not in name]


def _equal(report: CostValues, first: str, second: str) -> bool:
    """Return whether two modules cost the same, child by child."""
    a, b = (
        {p[len(outer) :]: m for p, m in report.modules.items() if _within(p, outer)}
        for outer in (first, second)
    )
    return a == b


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.")
