"""The command `qk`: one function per verb, each in a file of its name.

Every error is one sentence on standard error. Exit codes: 0 well, 2 a wrong call or a target that
cannot be built, 128 and the number of the signal that ended a call; a verb with more of them says
so in its help.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querykey.cli.command import app as app
    from querykey.cli.command import run as run


__all__ = ["app", "main", "run"]


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    _open_streams()
    try:
        from querykey.cli.command import begin
        from querykey.cli.ending import leave
    except KeyboardInterrupt:  # while the libraries are imported
        sys.exit(130)
    leave(begin(sys.argv[1:] if words is None else words))


def _open_streams() -> None:
    """Open on nothing what the caller has closed of the streams 0 to 2.

    Else a file of ours would get such a number, and what a model prints would go there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def __getattr__(name: str) -> Any:
    if name in __all__:
        from querykey.cli import command

        return getattr(command, name)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
