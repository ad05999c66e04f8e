"""Tables in a terminal; rich draws them, and is loaded when the first is drawn."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from querykey.errors import QuerykeyError, visible
from querykey.words import checked

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

UNWRAPPED = 10_000  # columns


@checked
def number(value: int | float) -> str:
    """Return a number as a person reads it: 12_345 as 12,345, and 1.5e9 as 1.5 G."""
    if isinstance(value, int) and abs(value) < 10_000_000:
        return f"{value:,}"
    if abs(value) >= 1e4:
        for unit, suffix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= unit:
                return f"{value / unit:.3g} {suffix}"
    return f"{value:.3g}"


@checked
def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> Table:
    """Return a rich table; a column whose cells are all numbers is aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    for row in cells:
        if len(row) != len(columns):
            raise QuerykeyError(
                f"a row has {len(row)} cells but the table has {len(columns)} columns: {row}"
            )
    drawn = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = bool(cells) and all(_is_number(row[index]) for row in cells)
        drawn.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        # Text, not str, because rich would read a cell such as `[batch, seq]` as markup.
        texts = (number(cell) if _is_number(cell) else visible(str(cell)) for cell in row)
        drawn.add_row(*map(Text, texts))
    return drawn


def console() -> Console:
    """Return a console on standard output that raises BrokenPipeError when its reader has left."""
    from rich.console import Console

    terminal = Console()
    terminal.on_broken_pipe = _reader_has_left  # rich itself would leave with exit code 1
    if terminal.width < 1:  # COLUMNS=0, which some tools set, is no width
        terminal.width = shutil.get_terminal_size().columns
    return terminal


def stdout() -> Console:
    """Return the console of standard output, which wraps no lines in a file or a pipe."""
    terminal, columns = console(), os.environ.get("COLUMNS", "")
    wanted = columns.isdecimal() and int(columns) > 0
    if not (terminal.is_terminal or terminal.is_jupyter or wanted):
        terminal.width = UNWRAPPED
    return terminal


@contextmanager
def until_the_reader_leaves() -> Iterator[None]:
    """Print, and stop without an error when the reader leaves early, as in `qk ... | head`."""
    try:
        yield
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # Python would raise the error again while closing it


@checked
def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    title: str = "",
    console: Console | None = None,
) -> None:
    """Print a table on a console, by default on standard output."""
    (console or stdout()).print(table(columns, rows, title))


def _reader_has_left() -> None:
    raise BrokenPipeError


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)
