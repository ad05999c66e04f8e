"""A cost report as text and as a page: the totals, then the modules as a tree of shares."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from typing import TYPE_CHECKING, Any

from querykey.costs.compared import Compared
from querykey.costs.timing.prediction import Prediction
from querykey.costs.timing.roofline import Roofline, duration
from querykey.costs.tree import ModuleRow, shares_at, tree
from querykey.costs.values import CostValues, ModuleCost, NotComputed
from querykey.costs.written import written
from querykey.show import Formula, figure, grid, heading, text
from querykey.show import page as html_page
from querykey.words import checked

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult


DEPTH = 3  # how many levels of modules a tree shows, unless all are asked for
WIDTH = 100  # of a report that is printed from Python
LABELS = {
    "flops.forward": "FLOPs forward",
    "flops.visible": "  forward, visible pairs",
    "flops.backward": "FLOPs backward",
    "flops.recomputed": "  backward, recomputed",
    "flops.pointwise": "pointwise forward",
    "flops.pointwise_backward": "pointwise backward",
    "params": "parameters",
    "saved_bytes": "saved bytes",
    "state_bytes": "state bytes",
}
DERIVED = {  # when they are first asked for: shown at sizes, or with everything else
    "bytes_moved": "bytes moved",
    "peak_bytes": "peak, training",
    "inference_bytes": "peak, inference",
    "span": "span",
}
# The columns of the tree; the last ones are dropped where there is no room.
COSTS: dict[str, Callable[[ModuleCost], str]] = {
    "FLOPs forward": lambda module: written(module.flops.forward),
    "parameters": lambda module: written(module.params),
    "class": lambda module: module.kind,
    "FLOPs backward": lambda module: written(module.flops.backward),
    "saved bytes": lambda module: written(module.saved_bytes),
}
FIRST = 2  # columns that stay, whatever the room


@dataclass(frozen=True)
class View:
    """How much of a report is shown: every module, every value, and a device's roofline."""

    modules: bool = False
    full: bool = False
    time: Roofline | None = None
    compared: Sequence[Compared] = ()
    prediction: Prediction | None = None


@checked
def tables(report: CostValues, view: View | None = None) -> list[RenderableType]:
    """Return what a terminal shows, which fits into its width."""
    view = view or View()
    if view.compared:
        return [_SideBySide(report, view)]
    return [_Totals(report, view), _Modules(report, view)]


@checked
def totals(report: CostValues) -> list[tuple[str, str]]:
    """Return one row of text per value, for the range, for unknown operations, and per note."""
    return [(label, written(value)) for label, value in _totals(report, View())]


def _totals(report: CostValues, view: View) -> list[tuple[str, Any]]:
    """Return the same with formulas as they are."""
    names = list(LABELS)
    if isinstance(report.state_bytes, NotComputed):
        names.remove("state_bytes")
    if report["flops.visible"] == report["flops.forward"]:
        names.remove("flops.visible")
    if report["flops.recomputed"] == 0:
        names.remove("flops.recomputed")
    lines: list[tuple[str, Any]] = [(LABELS[name], report[name]) for name in names]
    if view.full or not report.symbols:  # as formulas they are long, and take longer to derive
        training = view.full or report.settings.get("backward", False)
        derived = [n for n in DERIVED if training or n != "peak_bytes"]
        derived = derived if view.full else [n for n in derived if n != "span"]
        values = {name: report[name] for name in derived}
        lines += [(DERIVED[n], v) for n, v in values.items() if not isinstance(v, NotComputed)]
    if view.time is not None:
        lines.append((f"time on {view.time.device.name}", str(view.time)))
        lines.append(("  data sheet", view.time.device.source))
    if view.prediction is not None:
        lines.append(("predicted here", str(view.prediction)))
    if report.settings.get("built"):
        lines.insert(0, ("model", report.settings["built"]))
    lines.append(("holds for", str(report.valid)))
    if report.below is not None:
        lines.append(("another holds for", str(report.below.valid)))
    for op, calls in report.unknown.items():
        places = ", ".join(path or "the whole model" for path in list(calls)[:3])
        count = sum(calls.values())
        lines.append(("NO FORMULA", f"{op}, {count} call(s) in {places}: not counted"))
    return [*lines, *(("note", note) for note in report.notes)]


def page(
    report: CostValues, title: str, view: View | None = None, figures: Sequence[str] = ()
) -> str:
    """Return the report as one HTML page, with figures in SVG."""
    view = view or View()
    origin = f"{_version()}, {date.today().isoformat()}"
    rows = [(label, _formula(value)) for label, value in _totals(report, view)]
    columns, cells = _grid(report, view)
    return html_page(
        f"What {title} costs",
        text(f"querykey {origin}: {report.settings.get('target', title)}, {_sizes(report)}."),
        text("FLOPs are those of matrix products, a multiply-add being 2."),
        grid(("cost", "formula"), rows),
        *(figure(svg, "") for svg in figures),
        *_versus(view),
        heading("Per module"),
        text(_about_shares(report)),
        grid(columns, cells),
    )


def as_text(report: CostValues, view: View | None = None) -> str:
    """Return the tables as plain text."""
    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=WIDTH)
    for part in tables(report, view):
        console.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


@dataclass(frozen=True)
class _Totals:
    """The totals; formulas lose their last terms, and sentences are broken between words."""

    report: CostValues
    view: View

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield Text(f"cost {_sizes(self.report)}", style="bold", no_wrap=True, overflow="ellipsis")
        rows = _totals(self.report, self.view)
        left = max(len(label) for label, _ in rows) + 2
        room = max(options.max_width - left, 20)
        for label, value in rows:
            if isinstance(value, str):
                lines = textwrap.wrap(value, room) or [""]
            else:
                lines = [written(value, None if self.view.full else room)]
            for number, line in enumerate(lines):
                yield Text(f"{'' if number else label:{left}}{line}")
        yield Text("")


@dataclass(frozen=True)
class _SideBySide:
    """The costs of two targets, one under the other, and where they are equal."""

    report: CostValues
    view: View

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        left = max(len(label) for label in LABELS.values()) + 2
        room = max(options.max_width - left - len("second  "), 20)
        yield Text(f"costs {_sizes(self.report)}", style="bold")
        for row in self.view.compared:
            full = None if self.view.full else room
            values = (
                ("first", [written(row.first, full)]),
                ("second", [written(row.second, full)]),
                ("equal", textwrap.wrap(row.equal.removeprefix("equal "), room)),
            )
            label = LABELS[row.of].strip()
            for name, lines in values:
                for number, line in enumerate(lines):
                    yield Text(f"{label:{left}}{'' if number else name:8}{line}")
                    label = ""


@dataclass(frozen=True)
class _Modules:
    """The tree of modules, with as many columns as there is room for."""

    report: CostValues
    view: View

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        columns, rows = _cells(self.report, self.view)
        keep = len(columns)
        room = options.max_width
        while keep > FIRST and not self.view.full and _width(columns[:keep], rows) > room:
            keep -= 1
        widths = [max(len(line[i]) for line in (columns, *rows)) for i in range(keep)]
        if sum(widths) + 2 * (keep - 1) > room:  # very long names lose their end
            widths[0] = max(12, room - sum(widths[1:]) - 2 * (keep - 1))
        unicode = console.encoding.startswith("utf")
        for line in (columns, *rows):
            cells = (_cut(line[i], widths[i]).ljust(widths[i]) for i in range(keep))
            shown = "  ".join(cells).rstrip()
            shown = shown if unicode else shown.replace("█", "#").replace("▏", ".")
            yield Text(shown, style="bold" if line is columns else "", no_wrap=not self.view.full)
        yield Text(f"\n{_about_shares(self.report)}", style="dim")
        if keep < len(columns):
            yield Text("All columns: --full. All modules: --modules.", style="dim")


def _cells(report: CostValues, view: View) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the tree as text, the columns to drop first at the end."""
    columns = ["module", "share", *(["time", "bound by"] if view.time is not None else []), *COSTS]
    rows = []
    for row in _rows(report, view):
        name = "  " * row.level + row.name + (f" ({row.times} times)" if row.times > 1 else "")
        share = f"{100 * row.share:3.0f} % {row.bar}"
        cells = [name, share]
        if view.time is not None:
            bound = view.time.modules.get(row.path)
            seconds = bound.seconds * row.times if bound else 0.0
            cells += [duration(seconds), bound.binds] if bound and seconds else ["-", "-"]
        cells += [cost(row.module) for cost in COSTS.values()]
        rows.append(cells)
    return columns, rows


def _grid(report: CostValues, view: View) -> tuple[list[str], list[list[Any]]]:
    """Return the head and the rows of the tree for a page."""
    columns, rows = _cells(report, view)

    def cells(line: list[str]) -> list[Any]:
        name = Formula(_raised(line[0].replace("  ", "\u2003")))
        return [name, *(Formula(_raised(cell.strip())) for cell in line[1:])]

    return columns, [cells(line) for line in rows]


def _versus(view: View) -> list[str]:
    if not view.compared:
        return []
    rows = [[Formula(_raised(cell)) for cell in row] for row in _compared(view.compared)]
    columns = ("cost", "this one", "the other", "equal")
    return [heading("Beside the other target"), grid(columns, rows)]


def _compared(rows: Sequence[Compared]) -> list[tuple[str, str, str, str]]:
    return [
        (LABELS[row.of].strip(), written(row.first), written(row.second), row.equal) for row in rows
    ]


def _rows(report: CostValues, view: View) -> list[ModuleRow]:
    return tree(report, None if view.modules or view.full else DEPTH)


def _about_shares(report: CostValues) -> str:
    whole = report.modules[""].flops
    of = "FLOPs" if whole.forward != 0 or whole.backward != 0 else "parameters"
    at = ", ".join(f"{name}={size}" for name, size in shares_at(report).items())
    where = f" at {at}" if at else ""
    return f"Shares are of all {of}{where}; a row of equal modules has the cost of one of them."


def _formula(value: Any) -> Any:
    return value if isinstance(value, str) else Formula(_raised(written(value)))


def _raised(words: str) -> str:
    """Return a formula in HTML, its powers as superscripts, on one line."""
    raised = re.sub(r"\^(-?\d+|\([^()]*\))", r"<sup>\1</sup>", escape(words))
    return raised.replace(" ", "\u00a0")


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    widths = [
        max(len(name), *(len(row[i]) for row in rows)) if rows else len(name)
        for i, name in enumerate(columns)
    ]
    return sum(widths) + 2 * (len(columns) - 1)


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 1] + "…"


def _sizes(report: CostValues) -> str:
    """Return which sizes were put in and which are free, such as `at batch=8 and in seq`."""
    fixed = ", ".join(f"{name}={size}" for name, size in report.sizes.items())
    free = ", ".join(report.symbols)
    parts = (f"at {fixed}" if fixed else "", f"in {free}" if free else "")
    return " and ".join(filter(None, parts)) or "at fixed sizes"


def _version() -> str:
    try:
        return version("querykey")
    except PackageNotFoundError:
        return "(not installed)"
