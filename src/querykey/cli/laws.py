"""The verb `qk laws`: the laws, listed or explained."""

from __future__ import annotations

from querykey.cli.output import display, say, status


def laws(name: str = "", /) -> int:
    """List the laws, or show some in full: what must hold, why it matters, how it is tried.

    Parameters
    ----------
    name
        Show this law in full, or every law whose name begins with this: `qk laws causality`.
    """
    with status("loading the laws"):
        from querykey.laws import LAWS, TRAINING_LAWS, described, terminal_table
    if name:
        say(described(name))
    else:
        display(terminal_table(LAWS), terminal_table(TRAINING_LAWS))
        say("`qk laws NAME` also shows why it matters and how it is tried.")
    return 0
