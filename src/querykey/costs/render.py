"""A cost report as tables: the totals, then the modules with equal layers in one row."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

from querykey.costs.values import VALUES, CostValues, NotComputed
from querykey.show import fold_numbered, grid, group_name, heading, table, text
from querykey.show import page as html_page

if TYPE_CHECKING:
    from rich.console import RenderableType

DEPTH = 3  # how many levels of modules a table shows
LABELS = {
    "flops.forward": "FLOPs forward",
    "flops.backward": "FLOPs backward",
    "flops.visible": "  forward, visible",
    "flops.recomputed": "  backward, again",
    "flops.pointwise": "pointwise forward",
    "flops.pointwise_backward": "pointwise backward",
    "params": "parameters",
    "saved_bytes": "saved bytes",
    "state_bytes": "state bytes",
}
PEAKS = {"peak_bytes": "peak, training", "inference_bytes": "peak, inference"}
COLUMNS = (
    "module",
    "class",
    "times",
    "FLOPs forward",
    "FLOPs backward",
    "parameters",
    "saved bytes",
)


def tables(report: CostValues) -> list[RenderableType]:
    """Return the tables that a terminal shows."""
    return [table(("cost", _sizes(report)), totals(report)), table(COLUMNS, rows(report))]


def totals(report: CostValues) -> list[tuple[str, Any]]:
    """Return one row per value, for the range, for unknown operations, and per note."""
    shown = {name: _cell(report[name]) for name in VALUES if name in LABELS}
    if isinstance(report.state_bytes, NotComputed):
        del shown["state_bytes"]
    if report["flops.visible"] == report["flops.forward"]:
        del shown["flops.visible"]
    if report["flops.recomputed"] == 0:
        del shown["flops.recomputed"]
    shown["params"] = (
        f"{shown['params']:,}" if isinstance(shown["params"], int) else shown["params"]
    )
    lines = [(LABELS[name], cell) for name, cell in shown.items()]
    if not report.symbols:  # as formulas they are long, and take longer to derive
        training = report.settings.get("backward", False)
        peaks = {name: report[name] for name in (PEAKS if training else [*PEAKS][1:])}
        lines += [(PEAKS[n], _cell(p)) for n, p in peaks.items() if not isinstance(p, NotComputed)]
    if "built" in report.settings:
        lines.insert(0, ("model", report.settings["built"]))
    lines.append(("holds for", str(report.valid)))
    if report.below is not None:
        lines.append(("another holds for", str(report.below.valid)))
    for op, calls in report.unknown.items():
        places = ", ".join(path or "the whole" for path in list(calls)[:3])
        count = sum(calls.values())
        lines.append(("NO FORMULA", f"{op}, {count} call(s) in {places}: not counted"))
    return [*lines, *(("note", note) for note in report.notes)]


def rows(report: CostValues) -> list[tuple[Any, ...]]:
    """Return a row per module, with equal numbered siblings in one."""
    return [
        ("(all)", report.modules[""].kind, 1, *_costs(report, "")),
        *_rows_below(report, "", "", DEPTH, 1),
    ]


def page(report: CostValues, title: str) -> str:
    """Return the report as one HTML page."""
    return html_page(
        f"What {title} costs",
        text(f"FLOPs of matrix products, a multiply-add being 2; {_sizes(report)}."),
        grid(("cost", "formula"), totals(report)),
        heading("Per module"),
        grid(COLUMNS, rows(report)),
    )


def as_text(report: CostValues) -> str:
    """Return the tables as plain text."""
    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=160)
    for part in tables(report):
        console.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _sizes(report: CostValues) -> str:
    """Return which sizes were put in and which are free, such as `at batch=8 and in seq`."""
    fixed = ", ".join(f"{name}={size}" for name, size in report.sizes.items())
    free = ", ".join(report.symbols)
    parts = (f"at {fixed}" if fixed else "", f"in {free}" if free else "")
    return " and ".join(filter(None, parts)) or "at fixed sizes"


def _rows_below(report: CostValues, path: str, label: str, depth: int, times: int) -> list[Any]:
    if depth == 0:
        return []
    below = []
    prefix = f"{path}." if path else ""
    for names in fold_numbered(
        _children(report, prefix), lambda a, b: _equal(report, prefix + a, prefix + b)
    ):
        first = prefix + names[0]
        name = f"{label}.{group_name(names)}" if label else group_name(names)
        module, count = report.modules[first], times * len(names)
        # A list of layers is a grouping, not a level of its own.
        group = module.kind in ("ModuleList", "ModuleDict")
        costs = _costs(report, first)
        if not group and any(value != 0 for value in costs):
            below.append((name, module.kind, count, *costs))
        below += _rows_below(report, first, name, depth if group else depth - 1, count)
    return below


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


def _costs(report: CostValues, path: str) -> tuple[Any, ...]:
    module = report.modules[path]
    values = (module.flops.forward, module.flops.backward, module.params, module.saved_bytes)
    return tuple(_cell(value) for value in values)


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int) or value.is_Integer:
        return int(value)
    return str(value).replace("**", "^").replace("*", " ")
