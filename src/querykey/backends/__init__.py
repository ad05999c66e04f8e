"""Fast ways to run the same spec on torch tensors, and the equation for the rest."""

from querykey.backends.backend import BackendError
from querykey.backends.decoding import extend, follow
from querykey.backends.dispatch import NAMES, Explanation, attend, check_name, explain

__all__ = [
    "NAMES",
    "BackendError",
    "Explanation",
    "attend",
    "check_name",
    "explain",
    "extend",
    "follow",
]
