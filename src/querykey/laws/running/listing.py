"""The laws listed in words: for a terminal, one law in full, and as a table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from querykey.laws.law import Law
from querykey.show import table

COLUMNS = ("law", "what must hold", "why it matters", "how it is tried")


def terminal_table(laws: Iterable[Law]) -> Any:
    """Return a table of the laws for a terminal."""
    return table(COLUMNS, [_row(law) for law in laws])


def in_full(law: Law) -> str:
    """Return one law as lines of text: its name, what it says, why it matters, how it is tried."""
    return f"{law.name}\n  says: {law.says}\n  why:  {law.why}\n  how:  {law.how}"


def markdown_table(laws: Iterable[Law]) -> str:
    """Return a table of the laws in Markdown."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(_row, laws)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _row(law: Law) -> tuple[str, str, str, str]:
    return law.name, law.says, law.why, law.how
