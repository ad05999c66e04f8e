"""The equation as a backend: it computes every call, on every array library."""

from __future__ import annotations

from typing import Any

from querykey.attention import (
    Array,
    Mechanism,
    attend_checked,
    library,
)
from querykey.backends.backend import Request

computes: type[Mechanism] = Mechanism
beaten = "it gives the same for finite numbers, but {taken} is faster"


def why(request: Request[Any]) -> str:
    """Say that it is the equation, and why no faster backend computes the call."""
    kind = library(request.q)
    if kind != "torch":
        return f"the equation itself; fast backends take torch tensors, and q is a {kind} array"
    name = type(request.mechanism).__name__
    return f"the equation itself; no fast backend can compute {name} with these arguments"


def refusal(request: Request[Any]) -> str | None:
    """Return None: the equation computes every call."""
    return None


def defers_to(request: Request[Any]) -> str | None:
    """Return None: auto asks this backend last of all."""
    return None


def notes(request: Request[Any]) -> tuple[str, ...]:
    """Return nothing: the equation keeps every convention."""
    return ()


def run(request: Request[Any]) -> Array:
    """Compute the call by its equation."""
    return attend_checked(
        request.q, request.k, request.v, request.mechanism, request.mask, request.call,
        request.bias, request.decay,
    )  # fmt: skip
