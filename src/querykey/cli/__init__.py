"""The command `qk`: one function per verb, each in a file of its name.

Every error is one sentence on standard error. Exit codes: 0 well, 2 a bad call or a target that
cannot be built; a verb with more of them says so in its help.
"""

from querykey.cli.command import app, main, run

__all__ = ["app", "main", "run"]
