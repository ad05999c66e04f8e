"""Write a text file for a user; every command that writes one does it here."""

from __future__ import annotations

from pathlib import Path

from querykey.errors import QuerykeyError


class WriteError(QuerykeyError):
    """Says which file could not be written, and why."""


def write_file(path: str | Path, text: str) -> None:
    """Write text as UTF-8; a WriteError says why where the file system refuses."""
    try:
        # Text may hold a file's name, and such a name need not be valid Unicode.
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise WriteError(f"`{path}` cannot be written: {error.strerror}") from error
