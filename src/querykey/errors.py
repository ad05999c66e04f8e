"""The base of every error whose text is written for the person who made the call."""

from __future__ import annotations


class QuerykeyError(ValueError):
    """An error that says in one sentence what was wrong, where, and what to do.

    The command line prints that sentence and exits with code 2. Any other exception that reaches it
    is a defect of ours and shows its traceback.
    """
