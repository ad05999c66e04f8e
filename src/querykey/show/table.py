"""Tables in a terminal, alike in every room; rich draws them and is loaded when one is drawn."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

UNWRAPPED = 10_000  # columns


def number(value: int | float) -> str:
    """Write a number so that a person can read it: 12_345 as 12,345, and 1.5e9 as 1.5 G."""
    if isinstance(value, int) and abs(value) < 10_000_000:
        return f"{value:,}"
    if abs(value) >= 1e4:
        for unit, suffix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= unit:
                return f"{value / unit:.3g} {suffix}"
    return f"{value:.3g}"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> Table:
    """Make a rich table; a column whose cells are all numbers is set to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    for row in cells:
        if len(row) != len(columns):
            raise ValueError(
                f"a row has {len(row)} cells but the table has {len(columns)} columns: {row}"
            )
    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = bool(cells) and all(_is_number(row[index]) for row in cells)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        # Text, not str: a cell such as `[batch, seq]` is not markup.
        made.add_row(*(Text(number(cell) if _is_number(cell) else str(cell)) for cell in row))
    return made


def console() -> Console:
    """Return a console on standard output that says so when its reader has left."""
    from rich.console import Console

    made = Console()
    made.on_broken_pipe = _reader_has_left  # rich itself would leave with exit code 1
    if made.width < 1:  # COLUMNS=0, which some tools set, is no width
        made.width = shutil.get_terminal_size().columns
    return made


def stdout() -> Console:
    """Return the console of standard output: in a file or a pipe lines are as long as they are."""
    made, asked = console(), os.environ.get("COLUMNS", "")
    wanted = asked.isdecimal() and int(asked) > 0
    if not (made.is_terminal or made.is_jupyter or wanted):
        made.width = UNWRAPPED
    return made


@contextmanager
def until_the_reader_leaves() -> Iterator[None]:
    """Print; a reader who leaves before the end, as in `qk ... | head`, has seen enough."""
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:
        sys.stdout = None  # Python would complain again while closing it


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    title: str = "",
    console: Console | None = None,
) -> None:
    """Draw a table on the console (standard output unless another is given)."""
    (console or stdout()).print(table(columns, rows, title))


def _reader_has_left() -> None:
    raise BrokenPipeError


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)
