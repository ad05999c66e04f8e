"""Replacing a function for a while."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any


def replaced(undone: ExitStack, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function by `around(original, *args, **kwargs)` until the end."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    if name in vars(owner):
        undone.callback(setattr, owner, name, vars(owner)[name])
    else:
        undone.callback(delattr, owner, name)
    setattr(owner, name, replacement)
