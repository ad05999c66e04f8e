"""The backend asked for, or a refusal that says why; "auto" picks, `explain` tells.

attend(q, k, v, mask=Causal())                     # auto
attend(q, k, v, mask=Causal(), backend="flex")     # flex, or an error with the reason
print(explain(q, k, v, mask=Causal()))             # what auto takes, and why not the others
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

from querykey.attention import (
    FULL,
    Array,
    Bias,
    Mask,
    Mechanism,
    Softmax,
    library,
)
from querykey.backends.backend import Backend, BackendError, Request
from querykey.words import suggest


@dataclass(frozen=True)
class Entry:
    """What is known of a backend before it is loaded: NumPy callers never load torch."""

    module: str
    library: str | None = None  # whose arrays it takes; None: those of every library
    device: str | None = None  # where auto considers it; None: everywhere


# In the order in which auto asks them.
ENTRIES = {
    "sdpa": Entry("querykey.backends.sdpa", "torch"),
    "flex": Entry("querykey.backends.flex", "torch", "cuda"),
    "triton": Entry("querykey.backends.triton", "torch", "cuda"),
    "chunked": Entry("querykey.backends.chunked", "torch"),
    "reference": Entry("querykey.backends.reference"),
}
NAMES = tuple(ENTRIES)


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
    decay: Array | None = None,
    start: Any = None,
    backend: str = "auto",
) -> Array:
    """Return sums of values: q (..., T, D), k (..., S, D), v (..., S, M) -> (..., T, M).

    A decay is the logarithm of a gate at every key, (*batch, kv_heads, S), at most 0: the
    similarity of a query at position i and a key j is multiplied by exp(decay[j + 1] + ... +
    decay[i]). It is for Kernel under Causal(), with Padding, whose tokens count as 0, and Documents
    or without.
    """
    return serve(Request.of(q, k, v, mechanism, mask, bias, start, decay), backend)


def serve(request: Request[Any], backend: str = "auto") -> Array:
    """Return the outputs of a checked call, by the backend of that name or the one auto picks."""
    name = _pick(request) if backend == "auto" else _asked_for(backend, request)
    return load(name).run(request)


def explain(
    q: Array,
    k: Array,
    v: Array,
    *,
    mechanism: Mechanism = Softmax(),  # noqa: B008 - a frozen value
    mask: Mask = FULL,
    bias: Array | Bias | None = None,
    decay: Array | None = None,
    start: Any = None,
) -> Explanation:
    """Say which backend `attend` takes for these arguments, and why."""
    request = Request.of(q, k, v, mechanism, mask, bias, start, decay)
    taken = _pick(request)
    others = {
        name: _refusal(name, request) or load(name).beaten.format(taken=taken)
        for name in NAMES
        if name != taken
    }
    backend = load(taken)
    return Explanation(taken, backend.why(request), backend.notes(request), others)


def load(name: str) -> Backend:
    """Return the module of a backend, imported when it is first asked for."""
    module = ENTRIES[name].module
    return cast(Backend, sys.modules.get(module) or import_module(module))


def considered(name: str, q: Array) -> bool:
    """Whether auto considers a backend for arrays of this library, on this device."""
    entry = ENTRIES[name]
    if entry.library not in (None, library(q)):
        return False
    return entry.device is None or q.device.type == entry.device


def _pick(request: Request[Any]) -> str:
    return next(name for name in NAMES if _serves(name, request) and not _yields(name, request))


def _serves(name: str, request: Request[Any]) -> bool:
    return considered(name, request.q) and _refusal(name, request) is None


def _yields(name: str, request: Request[Any]) -> bool:
    better = load(name).defers_to(request)
    return better is not None and _serves(better, request)


def _refusal(name: str, request: Request[Any]) -> str | None:
    """Why a backend cannot serve the call; None if it can."""
    if ENTRIES[name].library not in (None, library(request.q)):
        return f"it takes {ENTRIES[name].library} tensors, and q is of {library(request.q)}"
    backend = load(name)
    if not isinstance(request.mechanism, backend.computes):
        kind = backend.computes.__name__.lower()
        return f"it computes {kind} attention, not {type(request.mechanism).__name__}"
    return backend.refusal(request)


def _asked_for(name: str, request: Request[Any]) -> str:
    if name not in NAMES:
        hint = suggest(str(name), ["auto", *NAMES])
        raise BackendError(f"there is no backend `{name}`{hint} (auto, {', '.join(NAMES)})")
    reason = _refusal(name, request)
    if reason is not None:
        raise BackendError(f"backend {name!r} cannot serve this call: {reason}")
    return name
