"""Grids of numbers as SVG text: the larger a number is beside the others, the darker its cell.

cell_chart([[1, 0], [0.5, 0.5]], rows=("query 1", "query 2"), columns=("key 1", "key 2"))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

LABELLED = 12  # columns, at most, of a grid whose numbers are written into their cells
TOP, ROOM, LETTER = 44, 16, 7  # pixels: above the grid, around it, the width of a letter
INK, FAINT = "#333333", "#cccccc"


def cell_chart(
    values: Sequence[Sequence[float]],
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    title: str = "",
) -> str:
    """Return the SVG text of a grid; numbers are written into the cells of a small one."""
    across = max((len(row) for row in values), default=0)
    if not across:
        raise ValueError("a grid needs at least one cell")
    small = across <= LABELLED
    longest = max((len(name) for name in columns), default=0)
    side = max(64, round(LETTER * longest) + 8) if small else max(4, 560 // across)
    height = 32 if small else side
    left = ROOM + LETTER * max((len(row) for row in rows), default=0) + 8
    top = TOP + (20 if columns else 0)
    largest = max((abs(v) for row in values for v in row if math.isfinite(v)), default=0.0) or 1.0
    parts = [_text(ROOM, 24, title, "start", ' font-weight="600" font-size="14"')] if title else []
    for index, name in enumerate(columns):
        parts.append(_text(left + (index + 0.5) * side, top - 8, name, "middle"))
    for line, row in enumerate(values):
        y = top + line * height
        if line < len(rows):
            parts.append(_text(left - 8, y + height / 2 + 4, rows[line], "end"))
        if not small:
            parts += _line_of_cells(left, y, side, [value / largest for value in row])
            continue
        for index, value in enumerate(row):
            x = left + index * side
            parts.append(_cell(x, y, (side, height), value / largest, edge=True))
            shade = "#ffffff" if abs(value / largest) > 0.55 else INK
            label = _text(x + side / 2, y + height / 2 + 4, f"{value:.3g}", "middle")
            parts.append(label.replace(INK, shade))
    width = max(left + across * side, ROOM + 8 * len(title)) + ROOM
    bottom = top + len(values) * height + ROOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom}" width="{width}" '
        f'height="{bottom}" role="img" style="font-family:system-ui,sans-serif;font-size:12px">\n'
        f'<rect width="{width}" height="{bottom}" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _line_of_cells(left: float, y: float, side: int, shares: list[float]) -> Iterator[str]:
    """Yield the cells of a row of a large grid: equal neighbours as one, and none for a 0."""
    start = 0
    for _, run in groupby(f"{share:.3f}" for share in shares):
        count, share = len(list(run)), shares[start]
        if round(abs(share), 3) > 0 or not math.isfinite(share):
            yield _cell(left + start * side, y, (count * side, side), share, edge=False)
        start += count


def _cell(x: float, y: float, size: tuple[int, int], share: float, edge: bool) -> str:
    """Return a rectangle: blue for numbers above 0, orange below, dashed where not finite."""
    place = f'x="{x:g}" y="{y:g}" width="{size[0]}" height="{size[1]}"'
    if not math.isfinite(share):
        return f'<rect {place} fill="#ffffff" stroke="#D55E00" stroke-dasharray="2 2"/>'
    colour = "#0072B2" if share >= 0 else "#D55E00"
    stroke = f' stroke="{FAINT}" stroke-width="0.5"' if edge else ""
    return f'<rect {place} fill="{colour}" fill-opacity="{abs(share):.3f}"{stroke}/>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}"'
    return f"<text {place}{more}>{escape(text)}</text>"
