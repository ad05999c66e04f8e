"""How the process of `qk` ends: with its own exit code, whatever the code that it ran has left.

A model's file may leave a thread that never ends, a child process, or a function that Python calls
at exit; and it may end the process itself, by os._exit, before there is an answer.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from querykey.cli.output import refuse

SECONDS = 5.0  # for what is still running when the answer is out
BAD = 2  # the exit code of a call without an answer
_exit = os._exit


@contextmanager
def no_exit() -> Iterator[None]:
    """Turn a call of os._exit into an exception, as sys.exit is, so that it can be answered."""
    os._exit = _raising(os.getpid())
    try:
        yield
    finally:
        os._exit = _exit


def _raising(process: int) -> Callable[[int], NoReturn]:
    """Return what stands in for os._exit in this process; its children end as they did."""

    def ended(status: int) -> NoReturn:
        if os.getpid() != process:
            _exit(status)
        if threading.current_thread() is not threading.main_thread():
            refuse(f"a thread of the code that was run ended this process: os._exit({status})")
            _exit(status or BAD)
        raise SystemExit(f"os._exit({status})")

    return ended


def leave(code: int) -> NoReturn:
    """End this process with an exit code, after a few seconds for what is still running.

    What is printed from now on is no part of the answer and goes to standard error.
    """
    sys.unraisablehook = _tell
    if sys.stdout is not None and sys.stderr is not None:
        sys.stdout = sys.stderr
        os.dup2(2, 1)
    watch = threading.Timer(SECONDS, _cut, [code])
    watch.daemon = True
    watch.start()
    os._exit = _raising(os.getpid())
    sys.exit(code)


def _tell(failure: Any) -> None:
    """Say in a sentence what was raised where nobody could catch it, as by a function at exit."""
    from querykey.words import raised

    refuse(f"while the process ended, the code that was run raised {raised(failure.exc_value)}")


def _cut(code: int) -> None:
    """End the process and its children at once, and say for what it does not wait."""
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    children = multiprocessing.active_children()
    left = [f"the process `{child.name}`" for child in children]
    left += [f"the thread `{thread.name}`" for thread in others if not thread.daemon]
    for child in children:
        child.kill()
    what = left[0] if left else "a function at exit"
    refuse(f"the code that was run left {what}, which did not end in {SECONDS:g} s; it was stopped")
    _exit(code)
