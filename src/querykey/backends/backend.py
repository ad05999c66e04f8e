"""What a backend is: a module that says which calls it serves and computes them.

Every backend takes a `Request`, which is one call of attend whose arguments were checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from querykey.attention import (
    And,
    Array,
    Bias,
    Blocks,
    Call,
    Causal,
    Dilated,
    Documents,
    Full,
    Mask,
    Mechanism,
    Or,
    Padding,
    Window,
    check_inputs,
    split,
)
from querykey.errors import QuerykeyError, WrongTypeError

REFLEXIVE = (Full, Causal, Window, Dilated, Blocks, Documents)
M = TypeVar("M", bound=Mechanism)


class BackendError(QuerykeyError):
    """The error raised when the backend that was asked for cannot serve a call."""


@dataclass(frozen=True)
class Request(Generic[M]):
    """The arguments of attend and their sizes."""

    q: Any
    k: Any
    v: Any
    mechanism: M
    mask: Mask
    bias: Array | Bias | None
    decay: Array | None
    call: Call

    @classmethod
    def of(
        cls,
        q: Any,
        k: Any,
        v: Any,
        mechanism: M,
        mask: Mask,
        bias: Any = None,
        start: Any = None,
        decay: Any = None,
    ) -> Request[M]:
        """Check the arguments, or raise the one error that says what does not fit."""
        if v is None:
            raise WrongTypeError("`v` is no array but None; qk.weights takes q and k alone")
        call = check_inputs(q, k, v, mechanism, mask, bias, start, decay)
        return cls(q, k, v, mechanism, mask, bias, decay, call)

    @property
    def empty(self) -> bool:
        """Whether there is no query, no key or no number to compare."""
        call = self.call
        return 0 in (*call.batch, call.heads, call.queries, call.keys, call.key_dim)

    @property
    def starts_at_zero(self) -> bool:
        """Whether query i stands at position i, known without looking into an array."""
        return isinstance(self.call.start, int) and self.call.start == 0

    @property
    def sees_itself(self) -> bool:
        """Whether every query surely sees its own key, so that none of either is alone."""
        square = self.call.queries == self.call.keys and self.starts_at_zero
        return square and _reflexive(self.mask)

    @property
    def causal(self) -> bool:
        """Whether the mask asks for Causal(), be it with others."""
        return Causal() in split(self.mask)

    @property
    def others(self) -> tuple[Mask, ...]:
        """What must hold beside Causal() and padding."""
        return tuple(
            part for part in split(self.mask) if part != Causal() and not isinstance(part, Padding)
        )


def _reflexive(mask: Mask) -> bool:
    if isinstance(mask, Or):
        return any(_reflexive(part) for part in mask.parts)
    if isinstance(mask, And):
        return all(_reflexive(part) for part in mask.parts)
    return isinstance(mask, REFLEXIVE)


class Backend(Protocol):
    """The module of a backend, as dispatch uses it; see `dispatch.ENTRIES` for their order."""

    computes: type[Mechanism]  # the mechanisms that it knows
    beaten: str  # why auto did not take it though it serves; {taken} is the backend it took

    def why(self, request: Request[Any]) -> str:
        """Say why auto takes it for this call."""
        ...

    def refusal(self, request: Request[Any]) -> str | None:
        """Say why it cannot serve a call of a mechanism it knows; None if it can."""
        ...

    def defers_to(self, request: Request[Any]) -> str | None:
        """Name the backend that auto should take in its place, if that one serves the call."""
        ...

    def notes(self, request: Request[Any]) -> tuple[str, ...]:
        """Say what a user should know about the numbers."""
        ...

    def run(self, request: Request[Any]) -> Any:
        """Compute a call that it does not refuse."""
        ...


# (kernel, q, k, v, outer, total, real, decay) -> (out, outer, total): see `attention.recur`.
Recur = Callable[..., tuple[Any, Any, Any]]


class SettledBackend(Backend, Protocol):
    """A backend that serves calls alike in the same way, so that one may be asked for many."""

    def repeated(self, request: Request[Any]) -> Callable[..., Any]:
        """Return the function of q, k and v that computes every call like this one."""
        ...


class RecurrentBackend(Backend, Protocol):
    """A backend that also takes new tokens into the sums of a recurrent state."""

    recur: Recur

    def recurrence_refusal(
        self, kernel: Any, q: Any, k: Any, v: Any, /, *sums: Any, decay: Any = None
    ) -> str | None:
        """Say why it cannot take new tokens (batch, heads, T, ...) into sums; None if it can."""
        ...

    def recurrence_pays(self, tokens: int) -> bool:
        """Whether it is faster than the equation for so many new tokens in each row."""
        ...
