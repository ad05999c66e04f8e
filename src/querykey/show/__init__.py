"""Plain values made visible: tables in a terminal, SVG figures, one HTML page, one file writer."""

from querykey.show.cells import cell_chart
from querykey.show.figure import Series, line_chart
from querykey.show.file import WriteError, make_folder, replacing, unwritable, write_file
from querykey.show.folding import fold_numbered, group_name
from querykey.show.page import Formula, code, figure, grid, heading, page, text
from querykey.show.table import (
    console,
    number,
    print_table,
    stdout,
    table,
    until_the_reader_leaves,
)

__all__ = [
    "Formula",
    "Series",
    "WriteError",
    "cell_chart",
    "code",
    "console",
    "figure",
    "fold_numbered",
    "grid",
    "group_name",
    "heading",
    "line_chart",
    "make_folder",
    "number",
    "page",
    "print_table",
    "replacing",
    "stdout",
    "table",
    "text",
    "until_the_reader_leaves",
    "unwritable",
    "write_file",
]
