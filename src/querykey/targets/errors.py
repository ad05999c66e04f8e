"""The error of a target that cannot be built."""

from __future__ import annotations

from querykey.errors import QuerykeyError


class TargetError(QuerykeyError):
    """Says in one sentence which target cannot be built, why, and what to do."""
