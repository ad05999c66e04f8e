"""Fast ways to run the same spec on torch tensors, and the equation for the rest."""

from querykey.backends.dispatch import (
    NAMES,
    BackendError,
    Explanation,
    attend,
    explain,
    extend,
    follow,
)

__all__ = [
    "NAMES",
    "BackendError",
    "Explanation",
    "attend",
    "explain",
    "extend",
    "follow",
]
