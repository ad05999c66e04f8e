"""Line charts as SVG text, without a dependency and equal on every machine.

line_chart([Series("ours", [(1024, 2.0), (2048, 4.1)])], x="tokens", y="ms", log=True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from querykey.errors import QuerykeyError
from querykey.words import check_fields, checked

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 88, 176, 44, 52
# From Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("", "6 4", "2 3")
DENSE = 40  # points of a line, from which on their dots are small
Places = list[tuple[float, float]]  # in pixels


@dataclass(frozen=True)
class Series:
    """One line of a chart: its name in the legend, and its points; only finite ones are drawn.

    Points that are not joined stand alone, as rings: for what a line is compared with.
    """

    name: str
    points: Sequence[tuple[float, float]]
    joined: bool = True

    def __post_init__(self):
        check_fields(self)


@dataclass(frozen=True)
class _Axis:
    """An axis, which maps values to pixels and knows its ticks."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    binary: bool = False  # most values are powers of two

    def place(self, value: float) -> float:
        low, high = self._scale(self.low), self._scale(self.high)
        return self.start + (self.end - self.start) * (self._scale(value) - low) / (high - low)

    def ticks(self) -> list[float]:
        if not self.log:
            return _ticks(self.low, self.high)
        return _log_ticks(self.low, self.high, self.binary)

    def _scale(self, value: float) -> float:
        return math.log(value) if self.log else value


@checked
def line_chart(series: Sequence[Series], x: str, y: str, title: str = "", log: bool = False) -> str:
    """Return the SVG text of series on shared axes; `log` makes both axes logarithmic."""
    drawn = [_drawable(s, log) for s in series]
    points = [point for s in drawn for point in s.points]
    if not points:
        raise QuerykeyError("a chart needs at least one finite point (and a positive one if log)")
    across = _axis([p[0] for p in points], LEFT, WIDTH - RIGHT, log)
    up = _axis([p[1] for p in points], HEIGHT - BOTTOM, TOP, log)
    parts = [*_frame(across, up, x, y, title)]
    places = [[(across.place(a), up.place(b)) for a, b in s.points] for s in drawn]
    for index, s in enumerate(drawn):
        alike = [i for i, other in enumerate(drawn) if other.joined == s.joined
                 and _alike(places[i], places[index])]  # fmt: skip
        parts += _line(s, places[index], index, (alike.index(index), len(alike)))
    style = "font-family:system-ui,sans-serif;font-size:12px"
    # Letters are some 7 pixels wide, those of the title some 9; the legend stands to the right.
    legend = max(RIGHT, 52 + 7 * max(len(s.name) for s in drawn))
    width = max(WIDTH - RIGHT + legend, LEFT + 9 * len(title))
    # A white ground, so that the figure reads the same on a dark page.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        f'width="{width}" height="{HEIGHT}" role="img" style="{style}">\n'
        f'<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _drawable(s: Series, log: bool) -> Series:
    """Return a line with the points that its axes have; its name tells of zeros left out."""
    finite = sorted((float(a), float(b)) for a, b in s.points if math.isfinite(a + b))
    if not log:
        return replace(s, points=finite)
    points = [(a, b) for a, b in finite if a > 0 and b > 0]
    zeros = len(points) < len([a for a, b in finite if a > 0 and b >= 0])
    return replace(s, points=points, name=s.name + " (0 not drawn)" * zeros)


def _alike(places: Places, others: Places) -> bool:
    """Return whether one line would hide the other, by places in pixels."""
    return len(places) == len(others) and all(
        math.dist(one, other) < 3 for one, other in zip(places, others, strict=True)
    )


def _axis(values: list[float], start: float, end: float, log: bool) -> _Axis:
    low, high = min(values), max(values)
    if log:
        powers = sum(math.log2(value).is_integer() for value in values)
        binary = 2 * powers > len(values) and high <= 2**20  # larger ones say little
        return _Axis(low / 1.15, high * 1.15, start, end, log, binary)
    low = min(low, 0.0)
    room = (high - low) * 0.05 or 1.0
    return _Axis(low, high + room, start, end, log)


def _ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 7
    step = 10 ** math.floor(math.log10(rough))
    step *= next(m for m in (1, 2, 5, 10) if m * step >= rough)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float, binary: bool) -> list[float]:
    """Return powers of two for values that are; otherwise those of ten, or parts of them if few."""
    bases = ((2, (1,)),) * binary + ((10, (1,)), (10, (1, 2, 5)), (10, range(1, 10)))
    for base, parts in bases:
        first = math.floor(math.log(low, base) + 1e-9)
        last = math.floor(math.log(high, base) + 1e-9)
        ticks = [part * float(base) ** i for i in range(first, last + 1) for part in parts]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) > 2:
            return ticks[:: (len(ticks) + 7) // 8] if parts == (1,) else ticks
    return _ticks(low, high)


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


def _line(s: Series, places: Places, index: int, turn: tuple[int, int]) -> list[str]:
    """Return a line with its points and its legend.

    Of lines that lie on each other, which `turn` counts, each is drawn in every so many dashes, and
    its points within those of the line before, so that all of them are seen.
    """
    number, count = turn
    colour = COLOURS[index % len(COLOURS)]
    dash = DASHES[index // len(COLOURS) % len(DASHES)]
    stroke = f'stroke="{colour}" stroke-width="2"'
    shared = f' stroke-dasharray="10 {10 * (count - 1)}" stroke-dashoffset="{-10 * number}"'
    own = f' stroke-dasharray="{dash}"' * bool(dash)
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [
        f'<polyline points="{line}" fill="none" {stroke}{shared if count > 1 else own}/>'
    ] * s.joined
    size = (1.5 if len(places) > DENSE else 3) + 1.5 * (count - 1 - number)
    dot = f'r="{size:g}" fill="{colour}"' if s.joined else f'r="{size + 3:g}" fill="none" {stroke}'
    for (x, y), (a, b) in zip(places, s.points, strict=True):
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" {dot}>'
            f"<title>{escape(s.name)}: {a:g}, {b:g}</title></circle>"
        )
    at = TOP + 10 + 20 * index
    left = WIDTH - RIGHT + 16
    if s.joined:
        parts.append(f'<line x1="{left}" y1="{at}" x2="{left + 22}" y2="{at}" {stroke}{own}/>')
    else:
        parts.append(f'<circle cx="{left + 11}" cy="{at}" r="6" fill="none" {stroke}/>')
    parts.append(_text(left + 28, at + 4, s.name, "start", "#333333"))
    return parts


def _segment(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str, more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}{more}>{escape(text)}</text>"


def _label(value: float) -> str:
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        digits, power = f"{value:.3e}".split("e")
        if abs(value) < 1e-3 or abs(value) >= 1e8 or float(f"{digits}e{power}") == value:
            return f"{float(digits):g}e{int(power)}"
    return f"{value:,.10g}"
