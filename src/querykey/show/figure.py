"""Line charts as SVG text, without a dependency and equal on every machine.

line_chart([Series("ours", [(1024, 2.0), (2048, 4.1)])], x="tokens", y="ms", log=True)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape

from querykey.errors import QuerykeyError

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 72, 176, 44, 52
# From Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("", "6 4", "2 3")


@dataclass(frozen=True)
class Series:
    """One line of a chart: its name in the legend, and its points; only finite ones are drawn.

    Points that are not joined stand alone, as rings: for what a line is compared with.
    """

    name: str
    points: Sequence[tuple[float, float]]
    joined: bool = True


@dataclass(frozen=True)
class _Axis:
    """An axis, which maps values to pixels and knows its ticks."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def place(self, value: float) -> float:
        low, high = self._scale(self.low), self._scale(self.high)
        return self.start + (self.end - self.start) * (self._scale(value) - low) / (high - low)

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high)

    def _scale(self, value: float) -> float:
        return math.log(value) if self.log else value


def line_chart(series: Sequence[Series], x: str, y: str, title: str = "", log: bool = False) -> str:
    """Return the SVG text of series on shared axes; `log` makes both axes logarithmic."""
    drawn = [replace(s, points=_drawable(s.points, log)) for s in series]
    points = [point for s in drawn for point in s.points]
    if not points:
        raise QuerykeyError("a chart needs at least one finite point (and a positive one if log)")
    across = _axis([p[0] for p in points], LEFT, WIDTH - RIGHT, log)
    up = _axis([p[1] for p in points], HEIGHT - BOTTOM, TOP, log)
    parts = [*_frame(across, up, x, y, title)]
    for index, s in enumerate(drawn):
        parts += _line(s, index, across.place, up.place)
    style = "font-family:system-ui,sans-serif;font-size:12px"
    # Letters are some 7 pixels wide; the legend stands to the right of the axes.
    width = WIDTH - RIGHT + max(RIGHT, 52 + 7 * max(len(s.name) for s in drawn))
    # A white ground, so that the figure reads the same on a dark page.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        f'width="{width}" height="{HEIGHT}" role="img" style="{style}">\n'
        f'<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _drawable(points: Sequence[tuple[float, float]], log: bool) -> list[tuple[float, float]]:
    floor = 0.0 if log else -math.inf
    return sorted(
        (float(a), float(b))
        for a, b in points
        if math.isfinite(a) and math.isfinite(b) and a > floor and b > floor
    )


def _axis(values: list[float], start: float, end: float, log: bool) -> _Axis:
    low, high = min(values), max(values)
    if log:
        return _Axis(low / 1.15, high * 1.15, start, end, log)
    low = min(low, 0.0)
    room = (high - low) * 0.05 or 1.0
    return _Axis(low, high + room, start, end, log)


def _ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 5
    step = 10 ** math.floor(math.log10(rough))
    step *= next(m for m in (1, 2, 5, 10) if m * step >= rough)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten where the range spans two of them, otherwise powers of two."""
    for base in (10, 2):
        first = math.ceil(math.log(low, base) - 1e-9)
        last = math.floor(math.log(high, base) + 1e-9)
        if last - first >= 1:
            every = max(1, (last - first + 1) // 8)
            return [float(base) ** i for i in range(first, last + 1, every)]
    return [low, high]


def _frame(across: _Axis, up: _Axis, x: str, y: str, title: str) -> list[str]:
    grid, ink = "#e3e3e3", "#333333"
    parts = []
    for tick in across.ticks():
        at = across.place(tick)
        parts.append(_segment(at, TOP, at, HEIGHT - BOTTOM, grid))
        parts.append(_text(at, HEIGHT - BOTTOM + 18, _label(tick), "middle", ink))
    for tick in up.ticks():
        at = up.place(tick)
        parts.append(_segment(LEFT, at, WIDTH - RIGHT, at, grid))
        parts.append(_text(LEFT - 8, at + 4, _label(tick), "end", ink))
    parts.append(_segment(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, ink))
    parts.append(_segment(LEFT, TOP, LEFT, HEIGHT - BOTTOM, ink))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x, "middle", ink))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text transform="translate(16 {middle:.1f}) rotate(-90)" text-anchor="middle" '
        f'fill="{ink}">{escape(y)}</text>'
    )
    if title:
        parts.append(_text(LEFT, 24, title, "start", ink, ' font-weight="600" font-size="14"'))
    return parts


def _line(
    s: Series, index: int, x: Callable[[float], float], y: Callable[[float], float]
) -> list[str]:
    colour = COLOURS[index % len(COLOURS)]
    dash = DASHES[index // len(COLOURS) % len(DASHES)]
    stroke = f'stroke="{colour}" stroke-width="2"' + (f' stroke-dasharray="{dash}"' if dash else "")
    places = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in s.points)
    parts = [f'<polyline points="{places}" fill="none" {stroke}/>'] if s.joined else []
    dot = f'r="3" fill="{colour}"' if s.joined else f'r="6" fill="none" {stroke}'
    for a, b in s.points:
        parts.append(
            f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" {dot}>'
            f"<title>{escape(s.name)}: {a:g}, {b:g}</title></circle>"
        )
    at = TOP + 10 + 20 * index
    left = WIDTH - RIGHT + 16
    if s.joined:
        parts.append(f'<line x1="{left}" y1="{at}" x2="{left + 22}" y2="{at}" {stroke}/>')
    else:
        parts.append(f'<circle cx="{left + 11}" cy="{at}" {dot}/>')
    parts.append(_text(left + 28, at + 4, s.name, "start", "#333333"))
    return parts


def _segment(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str, more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}{more}>{escape(text)}</text>"


def _label(value: float) -> str:
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{value:,.10g}"
