"""One HTML page that loads no other file: headings, text, tables, figures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from querykey.show.table import number
from querykey.words import checked

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .25rem .75rem; text-align: left; border-bottom: 1px solid #8884; }
td { vertical-align: top; }
th, td { white-space: nowrap; }
td.long { white-space: normal; min-width: 14rem; }
h1, h2 { overflow-wrap: anywhere; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
pre, code { font-family: ui-monospace, monospace; font-size: .9em; }
pre { overflow-x: auto; padding: .75rem; background: #8881; }
figure { margin: 1rem 0; }
svg { max-width: 100%; height: auto; }
@media (max-width: 40rem) {
  th, td { padding: .25rem .4rem; }
  td:first-child { white-space: normal; }
  td.long { min-width: 10rem; }
}
"""


SHORT = 30  # letters, at most, of a cell that stays on one line


class Formula(str):
    """HTML of a formula, which stands in a table as it is."""


@checked
def page(title: str, *sections: str) -> str:
    """Return one page of sections made by `heading`, `text`, `code`, `grid` and `figure`."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(sections) + "\n</body>\n</html>\n"
    )


@checked
def heading(words: str) -> str:
    """Return a heading of the second level."""
    return f"<h2>{escape(words)}</h2>"


@checked
def text(words: str) -> str:
    """Return one paragraph of text."""
    return f"<p>{escape(words)}</p>"


@checked
def code(words: str) -> str:
    """Return lines as they are, in a fixed-width font."""
    return f"<pre>{escape(words)}</pre>"


@checked
def grid(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table; numbers are aligned to the right and written as in a terminal."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "\n".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


@checked
def figure(svg: str, caption: str) -> str:
    """Return an SVG drawing, part of the page itself, with its caption."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _cell(cell: Any) -> str:
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return f'<td class="number">{escape(number(cell))}</td>'
    if isinstance(cell, Formula):
        return f"<td>{cell}</td>"
    words = str(cell)
    tag = '<td class="long">' if len(words) > SHORT else "<td>"
    return f"{tag}{escape(words)}</td>"
