"""Grids of numbers as SVG text: the larger a number is beside the others, the darker its cell.

cell_chart([[1, 0], [0.5, 0.5]], rows=("query 1", "query 2"), columns=("key 1", "key 2"))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from querykey.errors import QuerykeyError
from querykey.words import checked

LABELLED = 12  # columns, at most, of a grid whose numbers are written into their cells
TOP, ROOM, LETTER = 44, 16, 7  # pixels: above the grid, around it, the width of a letter
DARK = 0.9  # of the largest number: from here on white is read more easily than black on blue
INK, FAINT = "#333333", "#cccccc"


@checked
def cell_chart(
    values: Sequence[Sequence[float]],
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    title: str = "",
) -> str:
    """Return the SVG text of a grid with its numbers; a large one has a scale of shades instead."""
    across = max((len(row) for row in values), default=0)
    if not across:
        raise QuerykeyError("a grid needs at least one cell")
    small = across <= LABELLED
    longest = max((len(name) for name in columns), default=0)
    if small:
        longest = max(longest, *(len(f"{value:.3g}") for row in values for value in row))
    side = max(64, LETTER * longest + 8) if small else max(4, 560 // across)
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
        shares = [value / largest for value in row]
        if small:
            parts += _numbered_cells(row, shares, left, y, (side, height))
        else:
            parts += _line_of_cells(left, y, side, shares)
    width = max(left + across * side, ROOM + 9 * len(title)) + ROOM
    bottom = top + len(values) * height + ROOM
    if not small:
        parts.append(_scale(left, bottom, largest, any(v < 0 for row in values for v in row)))
        bottom += 20 + ROOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom}" width="{width}" '
        f'height="{bottom}" role="img" style="font-family:system-ui,sans-serif;font-size:12px">\n'
        f'<rect width="{width}" height="{bottom}" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _numbered_cells(
    row: Sequence[float], shares: list[float], left: float, y: float, size: tuple[int, int]
) -> Iterator[str]:
    """Yield the cells of a row of a small grid and their numbers, which are white in dark cells."""
    for index, (value, share) in enumerate(zip(row, shares, strict=True)):
        x = left + index * size[0]
        yield _cell(x, y, size, share, edge=True)
        label = _text(x + size[0] / 2, y + size[1] / 2 + 4, f"{value:.3g}", "middle")
        yield label.replace(INK, "#ffffff" if share > DARK else "#000000")


def _line_of_cells(left: float, y: float, side: int, shares: list[float]) -> Iterator[str]:
    """Yield the cells of a row of a large grid: equal neighbours as one, and none for a 0."""
    start = 0
    for _, run in groupby(f"{share:.3f}" for share in shares):
        count, share = len(list(run)), shares[start]
        if round(abs(share), 3) > 0 or not math.isfinite(share):
            yield _cell(left + start * side, y, (count * side, side), share, edge=False)
        start += count


def _scale(left: float, y: float, largest: float, negative: bool) -> str:
    """Return which number is how dark, as a row of cells from the smallest to the largest."""
    shares = [share / 4 for share in range(-4 if negative else 0, 5)]
    first, last = f"{shares[0] * largest:.3g}", f"{largest:.3g}"
    x = left + LETTER * len(first) + 8
    end = x + 24 * len(shares)
    row = [_cell(x + 24 * i, y, (24, 16), share, edge=True) for i, share in enumerate(shares)]
    return "\n".join(
        ["<g>", _text(x - 8, y + 12, first, "end"), *row, _text(end + 8, y + 12, last, "start"),
         "</g>"]
    )  # fmt: skip


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
