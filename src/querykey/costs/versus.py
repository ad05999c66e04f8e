"""Two reports side by side: each cost of both, and the sizes at which they are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from querykey.costs.compared import Compared
from querykey.costs.inputs import CostError
from querykey.costs.report import CostReport
from querykey.show import Series, line_chart

COMPARED = ("flops.forward", "flops.backward", "flops.pointwise", "params", "saved_bytes")
POINTS = 40  # of a curve, spread evenly over the logarithm of the size


def versus(first: CostReport, second: CostReport) -> list[Compared]:
    """Return the costs of two models side by side, solved for every size of the first that is free.

    A cost that is linear in a size, for both, crosses nowhere in it, so that size is left out.
    """
    rows = []
    sizes = dict.fromkeys([*first.symbols, *second.symbols])
    for of in COMPARED:
        crossings, unsolved = [], []
        for size in sizes:
            if first[of] == second[of]:
                continue
            try:
                crossings.append(first.compare(second, size, of))
            except CostError as error:
                unsolved.append(f"{size}: {error}")
        rows.append(Compared(of, first[of], second[of], tuple(crossings), tuple(unsolved)))
    return rows


def chart(reports: Sequence[tuple[str, CostReport]], size: str, low: int, high: int) -> str:
    """Return the FLOPs of reports against one size as SVG text, where their formulas hold."""
    series = []
    for name, report in reports:
        others = [free for free in report.symbols if free != size]
        if size not in report.symbols:
            have = ", ".join(report.symbols) or "none is free"
            raise CostError(f"--plot: there is no size `{size}` (the sizes: {have})")
        if others:
            raise CostError(
                f"--plot draws one size, so put the others in: --at {others[0]}=8"
                + "".join(f",{other}=8" for other in others[1:])
            )
        label = f"{name} " if len(reports) > 1 else ""
        points = [(n, _flops(report, size, n)) for n in _spread(low, high)]
        drawn = [(n, flops) for n, flops in points if flops is not None]
        series.append(Series(f"{label}forward", [(n, forward) for n, (forward, _) in drawn]))
        if report.settings.get("backward"):
            series.append(Series(f"{label}backward", [(n, back) for n, (_, back) in drawn]))
    if not any(point for s in series for point in s.points):
        raise CostError(f"--plot: no formula holds for {size} from {low} to {high}")
    return line_chart(series, x=size, y="FLOPs", title=f"FLOPs against {size}", log=True)


def _flops(report: CostReport, size: str, number: int) -> tuple[float, float] | None:
    """Return FLOPs forward and backward at a size, None where the formula does not hold."""
    below = report.below
    symbol = report.symbols[size]
    for part in (report, *([below] if below is not None else [])):
        if not part.valid.broken({**report.sizes, size: number}):
            flops = part.flops.forward, part.flops.backward
            forward, backward = (float(_put(value, symbol, number)) for value in flops)
            return forward, backward
    return None


def _put(value: Any, symbol: Any, number: int) -> Any:
    return value if isinstance(value, int) else value.subs(symbol, number)


def _spread(low: int, high: int) -> list[int]:
    ratio = (high / low) ** (1 / (POINTS - 1))
    return [*dict.fromkeys([*(round(low * ratio**i) for i in range(POINTS - 1)), high])]
