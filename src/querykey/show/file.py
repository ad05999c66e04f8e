"""Write files for a user; every command that writes one does it here, beside and then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from querykey.errors import QuerykeyError
from querykey.words import checked


class WriteError(QuerykeyError):
    """Says which file could not be written, and why."""


@checked
def write_file(path: str | Path, text: str) -> None:
    """Write text as UTF-8; a WriteError says why where the file system refuses.

    A full disk or a kill in the middle leaves what was there before.
    """
    with replacing(path) as aside:
        # Text may hold a file's name, and such a name need not be valid Unicode.
        aside.write_text(text, encoding="utf-8", errors="backslashreplace")


@checked
def unwritable(file: Path) -> str:
    """Return why a file cannot be written, or the empty string where it can."""
    try:
        if file.is_dir():
            return "it is a folder"
    except OSError as error:  # such as a name that is too long
        return str(error.strerror)
    if not file.parent.is_dir():
        return f"there is no folder `{file.parent}`"
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        return "writing there is not allowed"
    return ""


@checked
def make_folder(path: Path) -> None:
    """Make a folder and those above it; a WriteError says why where the file system refuses."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"`{path}` cannot be made: {error.strerror}") from error


@checked
@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a path beside a file, which takes the file's place where the block ends well.

    What is no regular file, such as a pipe or a device, is written where it is.
    """
    try:
        final = Path(os.path.realpath(path))  # a link stays a link, to a new file
        aside = _aside(final)
        try:
            yield aside
            if aside != final:
                _synced(aside, final)
        except BaseException:
            if aside != final:
                with suppress(OSError):
                    aside.unlink()
            raise
    except OSError as error:
        raise WriteError(f"`{path}` cannot be written: {error.strerror or error}") from error
    except ValueError as error:
        if "null" not in str(error):
            raise
        raise WriteError(f"`{path}` cannot be written: a path holds no null character") from error


def _aside(final: Path) -> Path:
    """Return where to write first: beside the file, or the file itself where that cannot be."""
    if final.exists() and (not final.is_file() or not os.access(final.parent, os.W_OK)):
        return final
    if final.exists() and not os.access(final, os.W_OK):
        raise PermissionError(13, os.strerror(13))  # a rename would get around it
    # Names are at most 255 bytes long; two processes that write one file do not meet.
    kept = os.fsencode(final.name)[:200].decode(errors="ignore")
    return final.with_name(f".{kept}.{os.getpid()}.partial")


def _synced(aside: Path, final: Path) -> None:
    """Bring a file to the disk, give it the rights of the one before, and its name."""
    with aside.open("rb") as stream:
        os.fsync(stream.fileno())
    if final.exists():
        os.chmod(aside, final.stat().st_mode & 0o7777)
    os.replace(aside, final)
