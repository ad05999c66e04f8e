"""The base of every error whose text is written for the person who made the call."""

from __future__ import annotations


class QuerykeyError(ValueError):
    """An error that says in one sentence what was wrong, where, and what to do.

    The command line prints that sentence and exits with code 2. Any other exception that reaches it
    is a defect of ours and shows its traceback. Control characters of a name or a model are shown
    as escapes, for a terminal would obey them.
    """

    def __str__(self) -> str:
        return visible(super().__str__())


def visible(text: str) -> str:
    """Return text with its control characters, but line ends, as escapes: `\\x1b`."""
    return "".join(map(_shown, text))


def _shown(letter: str) -> str:
    return letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1]


class WrongTypeError(QuerykeyError, TypeError):
    """Says which argument is of a type, or has a dtype, that does not serve, and which do."""


class WrongIndexError(QuerykeyError, IndexError):
    """Says which place is not there, and how many there are."""


class GraphError(QuerykeyError, RuntimeError):
    """Says why no derivative can be taken here, and where one can be."""
