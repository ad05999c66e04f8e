"""The command `qk` as a whole: its verbs, and what ends a run of it."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from cyclopts import App, CycloptsError, Parameter

from querykey.cli.check import check
from querykey.cli.cost import cost
from querykey.cli.demo import demo
from querykey.cli.generate import generate
from querykey.cli.lab import lab
from querykey.cli.laws import laws
from querykey.cli.output import refuse
from querykey.cli.report import report
from querykey.cli.targets import targets
from querykey.cli.train import train
from querykey.errors import QuerykeyError, visible

app = App(
    name="qk",
    help="An attention workbench: is a model right, what does it cost, and how is it trained?",
    version=lambda: f"querykey {version('querykey')}",
    default_parameter=Parameter(negative=""),  # no --no-json beside --json
    suppress_keyboard_interrupt=False,  # `run` asks whose it is
)
for _verb in (targets, check, laws, cost, generate, train, lab, report, demo):
    app.command(_verb)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    warnings.showwarning = _show_warning
    sys.exit(run(sys.argv[1:] if words is None else words))


def _show_warning(message: Warning | str, *where: Any) -> None:
    """Print a warning as a sentence; the line of code that it comes from is not the user's."""
    print(f"qk: {visible(str(message))}", file=sys.stderr)


def run(words: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    from querykey.show import console, until_the_reader_leaves

    code, pressed = 0, []
    if not _is_somewhere():
        return refuse("the current folder has been deleted; change to one that is there")
    try:
        with _ctrl_c() as pressed, until_the_reader_leaves():
            code = app(
                words,
                console=console(),
                exit_on_error=False,
                print_error=False,
                result_action="return_value",
            )
    except CycloptsError as error:
        return refuse(f"{_sentence(str(error))} See `qk --help`.")
    except QuerykeyError as error:  # anything else is a defect and shows its traceback
        return refuse(str(error))
    except KeyboardInterrupt as error:
        from querykey.words import raised

        return 130 if pressed else refuse(f"the code that was run raised {raised(error)}")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stdout = None
        return refuse("there is no room left where the output was to be written")
    return code or 0


def _is_somewhere() -> bool:
    """Return whether the current folder exists: torch ends a process that computes elsewhere."""
    try:
        return bool(os.getcwd())
    except OSError:
        return False


@contextmanager
def _ctrl_c() -> Iterator[list[int]]:
    """Yield a list that is empty until the user presses Ctrl-C, which still raises.

    A model may raise KeyboardInterrupt too, and that is not the user's.
    """
    pressed: list[int] = []

    def press(number: int, frame: Any) -> None:
        pressed.append(number)
        signal.default_int_handler(number, frame)

    elsewhere = threading.current_thread() is not threading.main_thread()
    if elsewhere or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield [signal.SIGINT]  # whoever calls us watches by itself
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _sentence(words: str) -> str:
    words = " ".join(words.split())
    return words if words.endswith((".", "?", "!")) else f"{words}."
