"""The backend asked for, or a refusal that says why; "auto" picks, `explain` tells.

attend(q, k, v, mask=Causal())                     # auto
attend(q, k, v, mask=Causal(), backend="flex")     # flex, or an error with the reason
print(explain(q, k, v, mask=Causal()))             # what auto takes, and why not the others
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

from querykey.attention import (
    FULL,
    Array,
    Bias,
    Kernel,
    Mask,
    Mechanism,
    Recur,
    Recurrent,
    Softmax,
    State,
    Ways,
    library,
    reference,
)
from querykey.attention.decoding import extend as state
from querykey.backends.backend import Request
from querykey.errors import QuerykeyError
from querykey.words import suggest

# In the order in which auto asks them; the reference serves everything.
NAMES = ("sdpa", "flex", "triton", "chunked", "reference")
# New tokens from which kernel attention takes them in by chunks; fewer are quicker by the equation.
LONG = 256


class BackendError(QuerykeyError):
    """Why the backend that was asked for cannot serve this call."""


@dataclass(frozen=True)
class Explanation:
    """Which backend a call takes and why, what it promises, and why the others were not taken."""

    backend: str
    why: str
    notes: tuple[str, ...] = ()
    others: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.backend}: {self.why}"]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  not {name}: {reason}" for name, reason in self.others.items()]
        return "\n".join(lines)


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    mechanism: Mechanism = Softmax(),  # noqa: B008 - a frozen value
    mask: Mask = FULL,
    bias: Array | Bias | None = None,
    start: Any = None,
    backend: str = "auto",
) -> Array:
    """Return sums of values: q (..., T, D), k (..., S, D), v (..., S, M) -> (..., T, M)."""
    request = Request.of(q, k, v, mechanism, mask, bias, start)
    name = _pick(request) if backend == "auto" else _asked_for(backend, request)
    return _run(name, request)


def explain(
    q: Array,
    k: Array,
    v: Array,
    *,
    mechanism: Mechanism = Softmax(),  # noqa: B008 - a frozen value
    mask: Mask = FULL,
    bias: Array | Bias | None = None,
    start: Any = None,
) -> Explanation:
    """Say which backend `attend` takes for these arguments, and why."""
    request = Request.of(q, k, v, mechanism, mask, bias, start)
    name = _pick(request)
    others = {}
    for other in NAMES:
        if other != name:
            others[other] = _refusal(other, request) or _slower(other, name)
    module = None if name == "reference" else _module(name)
    notes = () if module is None else module.notes(request)
    return Explanation(name, _reason(name, request), notes, others)


def extend(
    q: Array, k: Array, v: Array, state_before: State, real: Any = None, *, bias: Bias | None = None
) -> tuple[Array, State]:
    """Return the outputs of new tokens and the state after them; see `attention.decoding.extend`."""
    ways = Ways(attend, recurrence(q, k, v, state_before) if library(q) == "torch" else None)
    return state.extend(q, k, v, state_before, real, bias=bias, ways=ways)


def follow(
    q: Any,
    k: Any,
    v: Any,
    state_before: State,
    real: Any = None,
    *,
    bias: Bias | None = None,
    backend: str = "auto",
) -> tuple[Any, State]:
    """Do as `extend`, for torch tensors that are known to fit each other and the state."""
    if backend == "auto":
        ways = Ways(attend, recurrence(q, k, v, state_before))
    else:
        recur = {"chunked": _module("chunked").recur, "triton": _recur_on_gpu}.get(backend)
        ways = Ways(partial(attend, backend=backend), recur)
    return state.follow(q, k, v, state_before, real, bias=bias, ways=ways)


def _recur_on_gpu(kernel: Kernel, q: Any, k: Any, v: Any, *rest: Any) -> tuple[Any, ...]:
    """Do as `triton.recur`, or refuse with the reason."""
    triton = _module("triton")
    reason = triton.recurrence_refusal(kernel, q, k, v, *rest[:2])
    if reason is not None:
        raise BackendError(f"backend 'triton' cannot serve this call: {reason}")
    return triton.recur(kernel, q, k, v, *rest)


def recurrence(q: Any, k: Any, v: Any, state_before: State) -> Recur | None:
    """Return what takes new tokens into a recurrent state faster than the equation does."""
    if q.ndim != 4 or not isinstance(state_before, Recurrent):
        return None
    long = q.shape[-2] >= LONG
    if _plain_derivatives(q, k, v, *state_before.arrays) is not None:
        return None
    if q.is_cuda and (long or q.shape[-2] == 1):
        triton, mechanism = _module("triton"), state_before.mechanism
        if triton.recurrence_refusal(mechanism, q, k, v, *state_before.arrays) is None:
            return triton.recur
    return _module("chunked").recur if long else None


def _pick(request: Request) -> str:
    return next(
        name for name in NAMES if _refusal(name, request) is None and _wanted(name, request)
    )


def _wanted(name: str, request: Request) -> bool:
    """Whether auto takes a backend that could serve: flex pays only where it can skip blocks."""
    if name == "sdpa":
        return not (_on_gpu(request) and request.others and _refusal("flex", request) is None)
    return name != "flex" or _on_gpu(request)


def _on_gpu(request: Request) -> bool:
    return library(request.q) == "torch" and request.q.is_cuda


def _reason(name: str, request: Request) -> str:
    if name != "reference":
        return _module(name).WHY
    if library(request.q) != "torch":
        return f"the equation; fast backends take torch tensors, and q is of {library(request.q)}"
    return f"the equation; no fast backend serves {type(request.mechanism).__name__} here"


def _slower(name: str, taken: str) -> str:
    if name == "reference":
        return f"it would give the same, and {taken} is faster"
    if name == "flex":
        return (
            "it serves, but pays on a GPU and with masks that leave blocks out; ask for it by name"
        )
    return f"it serves, but {taken} is faster here; ask for it by name"


def _refusal(name: str, request: Request) -> str | None:
    """Why a backend cannot serve the call; None if it can."""
    if name == "reference":
        return None
    if library(request.q) != "torch":
        return f"it takes torch tensors, and q is of {library(request.q)}"
    call = request.call
    if 0 in (*call.batch, call.heads, call.queries, call.keys, call.key_dim):
        return "there is nothing to compute"
    if name == "triton" and _on_gpu(request):
        reason = _plain_derivatives(request.q, request.k, request.v)
        if reason is not None:
            return reason
    return _module(name).refusal(request)


def _plain_derivatives(*tensors: Any) -> str | None:
    """Why nothing with a plain backward alone can serve these tensors of torch."""
    from querykey.backends.operators import only_backward

    return only_backward(*tensors)


def _asked_for(name: str, request: Request) -> str:
    if name not in NAMES:
        hint = suggest(str(name), ["auto", *NAMES])
        raise BackendError(f"there is no backend `{name}`{hint} (auto, {', '.join(NAMES)})")
    reason = _refusal(name, request)
    if reason is not None:
        raise BackendError(f"backend {name!r} cannot serve this call: {reason}")
    return name


def _run(name: str, request: Request) -> Array:
    if name == "reference":
        return reference.attend(
            request.q, request.k, request.v, mechanism=request.mechanism, mask=request.mask,
            bias=request.bias, start=request.call.start,
        )  # fmt: skip
    return _module(name).run(request)


def _module(name: str) -> ModuleType:
    """Load a backend when it is first asked: NumPy callers never load torch."""
    if name == "sdpa":
        from querykey.backends import sdpa

        return sdpa
    if name == "flex":
        from querykey.backends import flex

        return flex
    if name == "triton":
        from querykey.backends import triton

        return triton
    from querykey.backends import chunked

    return chunked
