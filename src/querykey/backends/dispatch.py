"""The backend asked for, or a refusal that says why; "auto" picks, `explain` tells.

attend(q, k, v, mask=Causal())                     # auto
attend(q, k, v, mask=Causal(), backend="flex")     # flex, or an error with the reason
print(explain(q, k, v, mask=Causal()))             # what auto takes, and why not the others
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from querykey.attention import (
    FULL,
    Array,
    ArrayMask,
    Bias,
    Mask,
    Mechanism,
    Softmax,
    library,
    warn_of_overflow,
)
from querykey.backends.backend import Backend, BackendError, RecurrentBackend, Request
from querykey.words import suggest


def _sdpa() -> Backend:
    from querykey.backends import sdpa

    return sdpa


def _flex() -> Backend:
    from querykey.backends import flex

    return flex


def _triton() -> RecurrentBackend:
    from querykey.backends import triton

    return triton


def _chunked() -> RecurrentBackend:
    from querykey.backends import chunked

    return chunked


def _reference() -> Backend:
    from querykey.backends import reference

    return reference


@dataclass(frozen=True)
class Entry:
    """What is known of a backend before it is loaded: NumPy callers never load torch."""

    # An import statement in a function, since torch.compile traces no other late import.
    load: Callable[[], Backend]
    library: str | None = None  # whose arrays it takes; None: those of every library
    device: str | None = None  # where auto considers it; None: everywhere
    settled: bool = False  # whether it is a SettledBackend


# In the order in which auto asks them.
ENTRIES = {
    "sdpa": Entry(_sdpa, "torch", settled=True),
    "flex": Entry(_flex, "torch", "cuda"),
    "triton": Entry(_triton, "torch", "cuda", settled=True),
    "chunked": Entry(_chunked, "torch"),
    "reference": Entry(_reference),
}
NAMES = tuple(ENTRIES)
SETTLED = 1024  # calls that are remembered at most
_settled: dict[Any, Callable[..., Array]] = {}  # what computes a call, by likeness


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
    key = None
    if bias is None and decay is None and start is None:
        key = _likeness(q, k, v, mechanism, mask, backend)
    compute = None if key is None else _settled.get(key)
    if compute is not None:
        return compute(q, k, v)
    request = Request.of(q, k, v, mechanism, mask, bias, start, decay)
    name = _named(request, backend)
    if key is not None and _settles(name, mask):
        if len(_settled) >= SETTLED:
            _settled.clear()
        settled: Any = load(name)
        _settled[key] = settled.repeated(request)
    out = load(name).run(request)
    if mechanism.may_overflow:
        warn_of_overflow(mechanism, out, q, k, v)
    return out


def serve(request: Request[Any], backend: str = "auto") -> Array:
    """Return the outputs of a checked call, by the backend of that name or the one auto picks."""
    out = load(_named(request, backend)).run(request)
    if request.mechanism.may_overflow:
        warn_of_overflow(request.mechanism, out, request.q, request.k, request.v)
    return out


def _named(request: Request[Any], backend: str) -> str:
    """Return the backend that auto picks, or the one asked for if it serves the call."""
    return _pick(request) if backend == "auto" else _asked_for(backend, request)


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
    return ENTRIES[name].load()


def considered(name: str, q: Array) -> bool:
    """Whether auto considers a backend for arrays of this library, on this device."""
    entry = ENTRIES[name]
    if entry.library not in (None, library(q)):
        return False
    return entry.device is None or q.device.type == entry.device


def _likeness(q: Any, k: Any, v: Any, mechanism: Any, mask: Any, backend: str) -> Any:
    """Return what a call of torch has in common with those that are computed alike.

    None where there is more to a call, such as a transform around it. The questions that this
    saves take longer than attention of a short sequence does.
    """
    torch = sys.modules.get("torch")
    if torch is None or type(q) is not torch.Tensor:
        return None
    from querykey.backends.operators import unwatched

    if not unwatched(q, k, v) or q.is_nested or k.is_nested or v.is_nested:
        return None
    device = q.device
    kind = device.type
    if kind not in ("cpu", "cuda"):
        return None
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    shapes, dtypes = (q.shape, k.shape, v.shape), (q.dtype, k.dtype, v.dtype)
    places = (device, k.device, v.device, q.layout, k.layout, v.layout)
    key = (shapes, dtypes, places, mechanism, mask, backend, autocast)
    try:
        hash(key)
    except TypeError:  # a mechanism or a feature map of one's own need not have a hash
        return None
    return key


def _settles(name: str, mask: Mask) -> bool:
    """Whether to keep how a call is computed; an array in its mask would be kept with it."""
    return ENTRIES[name].settled and not any(isinstance(x, ArrayMask) for x in mask.leaves)


def _pick(request: Request[Any]) -> str:
    """Return the first backend that serves the call and does not defer to another that does."""
    for name in NAMES:
        if considered(name, request.q):
            backend = load(name)
            if _unserved(backend, request) is None:
                better = backend.defers_to(request)
                if better is None or not _serves(better, request):
                    return name
    raise BackendError("no backend serves this call")


def _serves(name: str, request: Request[Any]) -> bool:
    return considered(name, request.q) and _unserved(load(name), request) is None


def _refusal(name: str, request: Request[Any]) -> str | None:
    """Why a backend cannot serve the call; None if it can."""
    if ENTRIES[name].library not in (None, library(request.q)):
        return f"it takes {ENTRIES[name].library} tensors, and q is a {library(request.q)} array"
    return _unserved(load(name), request)


def _unserved(backend: Backend, request: Request[Any]) -> str | None:
    """Why a backend cannot serve a call of arrays that it takes; None if it can."""
    if not isinstance(request.mechanism, backend.computes):
        kind = backend.computes.__name__.lower()
        return f"it computes {kind} attention, not {type(request.mechanism).__name__}"
    return backend.refusal(request)


def check_name(name: Any) -> None:
    """Raise the error that lists the backends where `name` is neither auto nor one of them."""
    if name not in ("auto", *NAMES):
        hint = suggest(str(name), ["auto", *NAMES])
        raise BackendError(f"there is no backend `{name}`{hint} (auto, {', '.join(NAMES)})")


def _asked_for(name: str, request: Request[Any]) -> str:
    check_name(name)
    reason = _refusal(name, request)
    if reason is not None:
        raise BackendError(f"backend {name!r} cannot serve this call: {reason}")
    return name
