"""The laws listed in words: for a terminal, one law in full, and as a table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from querykey.laws.catalogue.table import LAWS
from querykey.laws.check import named
from querykey.laws.law import Law
from querykey.laws.training.law import TrainingLaw
from querykey.laws.training.table import TRAINING_LAWS
from querykey.show import table
from querykey.words import checked

AnyLaw = Law | TrainingLaw
COLUMNS = ("law", "what must hold", "why it matters", "how it is tried")


@checked
def described(name: str) -> str:
    """Return every law of this name, or that begins so, in full: of models and of training."""
    return "\n\n".join(in_full(law) for law in named(name, (*LAWS, *TRAINING_LAWS)))


@checked
def terminal_table(laws: Iterable[AnyLaw]) -> Any:
    """Return a table for a terminal: the laws and what must hold; `described` has the rest."""
    listed = table(COLUMNS[:2], [(law.name, law.says) for law in laws])
    listed.columns[0].no_wrap = True  # names stay whole, to be copied
    return listed


def in_full(law: AnyLaw) -> str:
    """Return one law as lines of text: its name, what it says, why it matters, how it is tried."""
    return f"{law.name}\n  says: {law.says}\n  why:  {law.why}\n  how:  {law.how}"


@checked
def markdown_table(laws: Iterable[AnyLaw]) -> str:
    """Return a table of the laws in Markdown."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(_row, laws)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _row(law: AnyLaw) -> tuple[str, str, str, str]:
    return law.name, law.says, law.why, law.how
