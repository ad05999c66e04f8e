"""A report as tables: the totals, then the modules with repeated layers folded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from querykey.costs.report import VALUES, NotComputed, Report

if TYPE_CHECKING:
    from rich.console import RenderableType

DEPTH = 3  # how far down the tree of modules a table goes
WORDS = {
    "flops.forward": "FLOPs forward",
    "flops.backward": "FLOPs backward",
    "flops.visible": "  forward, visible",
    "flops.recomputed": "  backward, again",
    "flops.pointwise": "pointwise forward",
    "flops.pointwise_backward": "pointwise backward",
    "params": "parameters",
    "saved_bytes": "saved bytes",
}
COLUMNS = (
    "module",
    "class",
    "times",
    "FLOPs forward",
    "FLOPs backward",
    "parameters",
    "saved bytes",
)


def tables(report: Report) -> list[RenderableType]:
    """Tables for a terminal."""
    from querykey.show import table

    return [table(("cost", _at(report)), totals(report)), table(COLUMNS, rows(report))]


def totals(report: Report) -> list[tuple[str, Any]]:
    """One line per value and per remark."""
    found = [(WORDS[name], _cell(report[name])) for name in VALUES if name in WORDS]
    hidden = {"flops.visible": "flops.forward", "flops.recomputed": None}
    for name, same_as in hidden.items():
        if report[name] == (report[same_as] if same_as else 0):
            found = [each for each in found if each[0] != WORDS[name]]
    found.append(("holds for", str(report.valid)))
    if report.below is not None:
        found.append(("another holds for", str(report.below.valid)))
    for op, where in report.unknown.items():
        places = ", ".join(path or "the whole" for path in list(where)[:3])
        found.append(
            ("NO FORMULA", f"{op}, {sum(where.values())} call(s) in {places}: not counted")
        )
    return [*found, *(("note", note) for note in report.notes)]


def rows(report: Report) -> list[tuple[Any, ...]]:
    """A row per module, equal numbered siblings in one."""
    found = [("(all)", report.modules[""].kind, 1, *_costs(report, ""))]
    found += _children(report, "", "", DEPTH, 1)
    return found


def page(report: Report, title: str) -> str:
    """One HTML page."""
    from querykey.show import grid, heading, text
    from querykey.show import page as html

    return html(
        f"What {title} costs",
        text(f"FLOPs of matrix products, a multiply-add being 2; {_at(report)}."),
        grid(("cost", "formula"), totals(report)),
        heading("Per module"),
        grid(COLUMNS, rows(report)),
    )


def as_text(report: Report) -> str:
    """The tables as plain text."""
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=160)
    for each in tables(report):
        console.print(each)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _at(report: Report) -> str:
    sizes = ", ".join(f"{name}={size}" for name, size in report.sizes.items())
    free = ", ".join(report.symbols)
    return " and ".join(filter(None, (f"at {sizes}" * bool(sizes), f"in {free}" * bool(free)))) or (
        "at fixed sizes"
    )


def _children(report: Report, path: str, shown: str, depth: int, times: int) -> list[Any]:
    if depth == 0:
        return []
    found = []
    for names in _runs(report, path):
        first = f"{path}.{names[0]}" if path else names[0]
        name = names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}"
        label = f"{shown}.{name}" if shown else name
        module, count = report.modules[first], times * len(names)
        # A list of layers is a grouping, not a level of its own.
        group = module.kind in ("ModuleList", "ModuleDict")
        if not group and any(value != 0 for value in _costs(report, first)):
            found.append((label, module.kind, count, *_costs(report, first)))
        found += _children(report, first, label, depth if group else depth - 1, count)
    return found


def _runs(report: Report, path: str) -> Iterator[list[str]]:
    """Names of the children that cost anything, numbered neighbours that cost the same joined."""
    prefix = f"{path}." if path else ""
    names = [p[len(prefix) :] for p in report.modules if p.startswith(prefix) and p != path]
    names = [name for name in names if name and "." not in name]
    run: list[str] = []
    for name in names:
        alike = (
            run and name.isdigit() and run[-1].isdigit() and _alike(report, prefix, run[-1], name)
        )
        if run and not alike:
            yield run
            run = []
        run.append(name)
    if run:
        yield run


def _alike(report: Report, prefix: str, first: str, second: str) -> bool:
    a, b = (
        {p[len(prefix + name) :]: m for p, m in report.modules.items() if _within(p, prefix + name)}
        for name in (first, second)
    )
    return a == b


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.")


def _costs(report: Report, path: str) -> tuple[Any, ...]:
    module = report.modules[path]
    values = (module.flops.forward, module.flops.backward, module.params, module.saved_bytes)
    return tuple(_cell(value) for value in values)


def _cell(value: Any) -> Any:
    if isinstance(value, NotComputed | str):
        return str(value)
    if isinstance(value, int) or value.is_Integer:
        return int(value)
    return str(value).replace("**", "^").replace("*", " ")
