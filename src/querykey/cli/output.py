"""What every verb prints, and where: its answer, its refusal, and that it is under way."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from querykey.errors import visible

if TYPE_CHECKING:
    from rich.status import Status


@contextmanager
def status(words: str) -> Iterator[Status]:
    """Show on a terminal that something is under way; standard output stays clean."""
    from rich.console import Console

    console = Console(stderr=True)
    console.quiet = not console.is_terminal  # a file of errors, which may be full, gets nothing
    with console.status(words) as status:
        yield status


@contextmanager
def prints_aside() -> Iterator[None]:
    """Send what a model prints, from Python or from C, to standard error: it is not our answer."""
    import ctypes

    ours = sys.stdout
    if ours is None or sys.stderr is None:  # closed by the caller
        yield
        return
    ours.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ours.flush()
        ctypes.CDLL(None).fflush(None)  # what C has not written yet
        os.dup2(kept, 1)
        os.close(kept)


def display(*parts: Any) -> None:
    """Print tables and texts as a terminal or a file shows them."""
    from querykey.show import stdout

    console = stdout()
    for part in parts:
        console.print(part)


def say(words: str) -> None:
    """Print a text as it is."""
    print(words)


def refuse(sentence: str) -> int:
    """Print a sentence on standard error, and return the exit code of a bad call."""
    try:
        print(f"qk: {visible(sentence)}", file=sys.stderr, flush=True)
    except OSError:  # nobody can read it, and the exit code still says that something was wrong
        sys.stderr = None
    return 2
