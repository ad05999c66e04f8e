"""Plain values made visible: tables in a terminal, SVG figures, one self-contained HTML page."""

from querykey.show.figure import Series, line_chart
from querykey.show.page import page
from querykey.show.table import (
    console,
    number,
    print_table,
    stdout,
    table,
    until_the_reader_leaves,
)

__all__ = [
    "Series",
    "console",
    "line_chart",
    "number",
    "page",
    "print_table",
    "stdout",
    "table",
    "until_the_reader_leaves",
]
