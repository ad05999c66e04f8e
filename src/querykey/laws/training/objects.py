"""All objects of a class, whoever holds them."""

from __future__ import annotations

import gc
from typing import Any


def alive(kind: type) -> list[Any]:
    """Return all objects of a class that there are now."""
    return [candidate for candidate in gc.get_objects() if issubclass(type(candidate), kind)]
