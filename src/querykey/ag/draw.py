"""Drawings of a graph in SVG and DOT: labels, shapes, and on request values and gradients."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from operator import attrgetter
from pathlib import Path

import numpy as np

from querykey.ag.tensor import Tensor, history
from querykey.errors import QuerykeyError
from querykey.show import write_file

WIDTH, LINE, GAP_X, GAP_Y = 150, 15, 18, 34
MANY = 1000
UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML


@dataclass(frozen=True)
class Drawing:
    """A picture as SVG and as DOT. It prints as its SVG, and a notebook shows it."""

    svg: str
    dot: str

    def __str__(self) -> str:
        return self.svg

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> None:
        """Write the SVG, or the DOT where the name ends in .dot."""
        write_file(path, self.dot if Path(path).suffix == ".dot" else self.svg)


def draw(end: Tensor, values: bool = False, gradients: bool = False) -> Drawing:
    """Return a drawing of how `end` was computed; leaves are round, labelled Tensors stand out.

    Backward frees the graph, so draw before it. To see `gradients`, which leaves and labels keep,
    call backward(retain_graph=True) first.
    """
    history(end)  # which complains where there is nothing left to draw
    nodes = ancestry(end)
    if len(nodes) > MANY:
        raise QuerykeyError(
            f"{len(nodes)} Tensors would make no picture; draw a part, of at most {MANY}"
        )
    texts = [caption(node, values, gradients) for node in nodes]
    number = {node: i for i, node in enumerate(nodes)}
    arrows = [(number[source], number[node]) for node in nodes for source in sources_of(node)]
    return Drawing(svg_of(nodes, texts, arrows), dot_of(nodes, texts, arrows))


def sources_of(node: Tensor) -> list[Tensor]:
    """Return the Tensors that one was computed from, with and without a gradient to them."""
    divided = [x for x in node.saved if isinstance(x, Tensor)]  # by a softmax written by hand
    freed = isinstance(node.edges, str)  # by an earlier backward
    return divided or ([] if freed else [source for source, _ in node.edges])


def ancestry(end: Tensor) -> list[Tensor]:
    """Return every Tensor that `end` was computed from, constants too, the earliest first."""
    seen, stack = {end}, [end]
    while stack:
        for source in sources_of(stack.pop()):
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return sorted(seen, key=attrgetter("stamp"))


def caption(node: Tensor, values: bool, gradients: bool) -> list[str]:
    """Return the lines inside a box: the name, the operation and shape, then the numbers."""
    shape = "×".join(map(str, node.shape)) or "scalar"
    title = UNPRINTABLE.sub("\ufffd", str(node.label or node.op or "leaf"))
    operation = f"{node.op} · " if node.op and node.label else ""
    lines = [title, f"{operation}{shape} {node.dtype}"]
    if values:
        lines.append(numbers("=", node._data))
    if gradients and node.grad is not None:
        lines.append(numbers("∂", node.grad))
    return lines


def numbers(mark: str, array: np.ndarray) -> str:
    """Return the elements of an array where they are few, else their range."""
    if array.size <= 3:
        return f"{mark} {', '.join(f'{float(x):.3g}' for x in array.ravel())}"
    return f"{mark} {float(array.min()):.3g} … {float(array.max()):.3g}"


def layers_of(nodes: list[Tensor], arrows: list[tuple[int, int]]) -> list[list[int]]:
    """Return the nodes row by row: each below its sources, near the middle of those."""
    sources: list[list[int]] = [[] for _ in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for a, b in arrows:
        sources[b].append(a)
        users[a].append(b)
    depth = [0] * len(nodes)
    for b in range(len(nodes)):  # the nodes come in the order in which they were computed
        depth[b] = 1 + max((depth[a] for a in sources[b]), default=-1)
    for a in reversed(range(len(nodes))):  # a leaf sits just above its first reader
        if not sources[a] and users[a]:
            depth[a] = min(depth[b] for b in users[a]) - 1
    rows: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for i, d in enumerate(depth):
        rows[d].append(i)
    place = {i: float(x) for row in rows for x, i in enumerate(row)}
    for row in rows[1:]:
        row.sort(key=lambda i: np.mean([place[a] for a in sources[i]]) if sources[i] else place[i])
        place |= {i: float(x) for x, i in enumerate(row)}
    return rows


def svg_of(nodes: list[Tensor], texts: list[list[str]], arrows: list[tuple[int, int]]) -> str:
    """Return the graph as an SVG picture."""
    rows = layers_of(nodes, arrows)
    height = LINE * max(map(len, texts)) + 12
    across = max(map(len, rows)) * (WIDTH + GAP_X) + GAP_X
    down = len(rows) * (height + GAP_Y) + GAP_Y
    corner = {}
    for y, row in enumerate(rows):
        left = (across - len(row) * (WIDTH + GAP_X) + GAP_X) / 2
        for x, i in enumerate(row):
            corner[i] = (left + x * (WIDTH + GAP_X), GAP_Y / 2 + y * (height + GAP_Y))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across:g} {down:g}" '
        f'width="{across:g}" height="{down:g}" font-family="sans-serif" font-size="11" '
        'text-anchor="middle">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#777"/></marker></defs>',
    ]
    for a, b in arrows:
        (x1, y1), (x2, y2) = corner[a], corner[b]
        x1, x2, y1, bend = x1 + WIDTH / 2, x2 + WIDTH / 2, y1 + height, GAP_Y / 2
        parts.append(
            f'<path d="M{x1:g},{y1:g} C{x1:g},{y1 + bend:g} {x2:g},{y2 - bend:g} {x2:g},{y2:g}" '
            'fill="none" stroke="#777" marker-end="url(#tip)"/>'
        )
    for i, node in enumerate(nodes):
        x, y = corner[i]
        fill, round_ = (
            ("#fff3d6" if node.label else "#eef2f7"),
            (height / 2 if not node.edges else 4),
        )
        parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{height}" rx="{round_:g}" '
            f'fill="{fill}" stroke="#555"/>'
        )
        for n, line in enumerate(texts[i]):
            weight = ' font-weight="bold"' if n == 0 else ""
            middle, base = x + WIDTH / 2, y + LINE * (n + 1) + 2
            parts.append(f'<text x="{middle:g}" y="{base:g}"{weight}>{escape(line)}</text>')
    return "\n".join([*parts, "</svg>"])


def dot_of(nodes: list[Tensor], texts: list[list[str]], arrows: list[tuple[int, int]]) -> str:
    """Return the graph in the DOT language, for Graphviz."""
    lines = ["digraph ag {", '  node [fontname="sans-serif", fontsize=11, style=filled];']
    for i, (node, text) in enumerate(zip(nodes, texts, strict=True)):
        quoted = "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in text)
        shape, fill = "box" if node.edges else "ellipse", "#fff3d6" if node.label else "#eef2f7"
        lines.append(f'  n{i} [label="{quoted}", shape={shape}, fillcolor="{fill}"];')
    lines += [f"  n{a} -> n{b};" for a, b in arrows]
    return "\n".join([*lines, "}"])
