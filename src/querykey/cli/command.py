"""The command `qk` as a whole: its verbs, and what ends a run of it."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from querykey.cli.check import check
from querykey.cli.cost import cost
from querykey.cli.demo import demo
from querykey.cli.ending import no_exit
from querykey.cli.examples import examples_of
from querykey.cli.generate import generate
from querykey.cli.lab import lab
from querykey.cli.laws import laws
from querykey.cli.output import refuse
from querykey.cli.report import report
from querykey.cli.signals import interruption, stopped
from querykey.cli.targets import targets
from querykey.cli.train import train
from querykey.errors import QuerykeyError, visible


def is_worth_showing(default: object) -> bool:
    """Return whether the help shows a default: those that only say "not given" are left out."""
    return default not in ("", (), None) and default is not False


app = App(
    name="qk",
    help="An attention workbench: is a model right, what does it cost, and how is it trained?",
    version=lambda: f"querykey {version('querykey')}",
    help_epilogue=(
        "Begin with `qk demo`, which needs no model of yours. "
        "`qk COMMAND --help` explains a command and ends with examples."
    ),
    group_parameters="Options",
    default_parameter=Parameter(
        negative="",  # no --no-json beside --json
        show_default=lambda value: str(value) if is_worth_showing(value) else None,
    ),
    suppress_keyboard_interrupt=False,  # `run` asks whose it is
)
for _verb in (targets, check, laws, cost, generate, train, lab, report, demo):
    app.command(_verb, help_epilogue=examples_of(_verb.__name__))


def begin(words: Sequence[str]) -> int:
    """Run the command line of a process that does nothing else, and return its exit code."""
    warnings.showwarning = _show_warning
    return run(words)


def _show_warning(message: Warning | str, *where: Any) -> None:
    """Print a warning as a sentence; the line of code that it comes from is not the user's."""
    print(f"qk: {visible(str(message))}", file=sys.stderr)


def run(words: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    code, received = 0, []
    if not _is_somewhere():
        return refuse("the current folder has been deleted; change to one that is there")
    try:
        with interruption() as received, no_exit():
            code = _answer(words)
    except BaseException as error:
        if not received and isinstance(error, KeyboardInterrupt | SystemExit):
            from querykey.words import raised

            return refuse(f"the code that was run raised {raised(error)}")
        if not received:
            raise  # a defect, which shows its traceback
    if received:  # even where a library has swallowed what the signal raised
        refuse(stopped(received[0]))
        return 128 + received[0]
    return code


def _answer(words: Sequence[str]) -> int:
    """Run a verb; print one sentence where it refuses, or where nothing more can be printed."""
    from querykey.show import console, until_the_reader_leaves

    code = 0
    try:
        with until_the_reader_leaves():
            code = app(
                words,
                console=console(),
                exit_on_error=False,
                print_error=False,
                result_action="return_value",
            )
    except CycloptsError as error:
        return refuse(_wrong_call(error))
    except QuerykeyError as error:
        return refuse(str(error))
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


def _wrong_call(error: CycloptsError) -> str:
    """Return what is wrong with a call of the command, and whose help explains the right one."""
    verb = " ".join(["qk", *(error.command_chain or ())])
    reason = str(error)
    if isinstance(error, UnusedCliTokensError):
        reason = f"`{verb}` does not take {' '.join(error.unused_tokens or ())}"
    return f"{_sentence(reason)} See `{verb} --help`."


def _sentence(words: str) -> str:
    words = " ".join(words.split())
    return words if words.endswith((".", "?", "!")) else f"{words}."
