"""Quadratic kernels on an NVIDIA GPU: which calls they serve, and how a request becomes one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch

from querykey.attention import Documents, Kernel, Mechanism, PowerSeries, moved, real_keys
from querykey.backends.backend import Request
from querykey.backends.operators import only_backward
from querykey.backends.triton import linear
from querykey.backends.triton.plans import SIZES

__all__ = [
    "beaten",
    "computes",
    "defers_to",
    "notes",
    "recur",
    "recurrence_pays",
    "recurrence_refusal",
    "refusal",
    "repeated",
    "run",
    "why",
]

# Asked once: torch.compile does not trace into the import system.
HAS_TRITON = find_spec("triton") is not None
MOST_HEADS = 65535  # programs along the second axis of a GPU's grid
DECODED = (torch.bfloat16, torch.float16, torch.float32)  # dtypes of single tokens
PACKED = 64  # entries of keys and values among documents: larger heads were not run on a GPU yet
LONG = 256  # new tokens from which the kernels are quicker than the equation, if not one alone
computes: type[Mechanism] = Kernel
beaten = "it could compute this, but {taken} is faster here; ask for it by name"


def why(request: Request[Kernel]) -> str:
    """Say why auto takes this backend for a call."""
    return "quadratic kernels on the GPU: ahead of chunks at every length measured"


def refusal(request: Request[Kernel]) -> str | None:
    """Say why this backend cannot serve the call; None if it can."""
    if request.empty:
        return "there is nothing to compute"
    reason = _other_mechanism(request.mechanism)
    if reason is not None:
        return reason
    others = [part for part in request.others if not isinstance(part, Documents)]
    if others:
        shown = " & ".join(map(str, others))
        return f"it takes Causal(), padding and documents, and {shown} is none of these"
    if request.decay is not None and request.others:
        return "it takes a decay or Documents(...), not both"
    if len(request.others) > 1:
        return "it takes one Documents(...), not several at once"
    ordered = request.starts_at_zero and request.call.queries == request.call.keys
    if (request.causal or request.others) and not ordered:
        name = "Causal()" if request.causal else "Documents(...)"
        return f"with {name} it takes as many queries as keys, the first at position 0"
    most = PACKED if request.others else SIZES[-1]
    if max(request.call.key_dim, request.v.shape[-1]) > most:
        where = ", with Documents(...)" if request.others else ""
        return f"it takes keys and values of at most {most} entries{where}"
    if request.v.shape[-1] == 0:
        return "there is nothing to compute"
    tensors = (request.q, request.k, request.v, request.decay)
    one_way = _machine(request.q) or only_backward(*tensors)
    return one_way or _precision(request.q) or _crowd(*request.q.shape[:-2])


def defers_to(request: Request[Kernel]) -> str | None:
    """Return None: nothing that is asked later is faster on a GPU."""
    return None


def recurrence_pays(tokens: int) -> bool:
    """Whether the kernels take so many new tokens in faster than the equation does."""
    return tokens == 1 or tokens >= LONG


def recurrence_refusal(
    mechanism: Mechanism,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *sums: torch.Tensor,
    decay: torch.Tensor | None = None,
) -> str | None:
    """Say why `recur` cannot take these tokens (batch, heads, T, ...) into sums; None if it can."""
    reason = _other_mechanism(mechanism)
    if reason is not None:
        return reason
    given = (q, k, v, *sums) if decay is None else (q, k, v, *sums, decay)
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return "it gives no gradients through a state"
    if q.shape[2] == 1 and q.dtype not in DECODED:
        return f"it takes no {str(q.dtype)[6:]}"
    if q.shape[2] == 1:
        return _machine(q) or only_backward(q, k, v, *sums, decay)
    if max(q.shape[-1], v.shape[-1]) > SIZES[-1]:
        return f"it takes keys and values of at most {SIZES[-1]} entries, or one token"
    one_way = _machine(q) or only_backward(q, k, v, *sums, decay)
    return one_way or _precision(q) or _crowd(*q.shape[:2])


def _other_mechanism(mechanism: Mechanism) -> str | None:
    """Say why the kernels do not compute this mechanism; None if they do."""
    if not isinstance(mechanism, Kernel):
        return f"it computes kernel attention, not {type(mechanism).__name__}"
    features = mechanism.features
    if not isinstance(features, PowerSeries) or not _quadratic(features):
        return f"it takes kernels of degree 2 in q.k, and {features} is none"
    return None


def _quadratic(features: PowerSeries) -> bool:
    """Whether the similarity is c0 + c1 d + c2 d^2 with c2 above 0."""
    return len(features.coefficients) == 3 and features.coefficients[2] > 0


def _machine(q: torch.Tensor) -> str | None:
    """Say why these tensors cannot go to a kernel on this machine; None if they can."""
    if not q.is_cuda:
        hint = "" if torch.cuda.is_available() else ", and there is no CUDA device"
        return f"it takes tensors on a GPU; q is on {q.device.type}{hint}"
    if not HAS_TRITON:
        return "triton is not installed"
    if torch.cuda.get_device_properties(q.device).major < 8:
        return "it needs a GPU of compute capability 8.0 or newer"
    return None


def _precision(q: torch.Tensor) -> str | None:
    """Say why the kernels do not compute in this precision; None if they do."""
    dtype = linear.compute_dtype(q)
    return None if dtype == torch.bfloat16 else f"it computes in bfloat16, not {str(dtype)[6:]}"


def _crowd(*heads: int) -> str | None:
    """Say why so many heads cannot be served; None if they can.

    This is asked last: a cost formula holds only for sizes that give the same answers, and the
    number of heads is compared with a bound here.
    """
    if math.prod(heads) > MOST_HEADS:
        return f"it takes at most {MOST_HEADS} heads, those of all rows counted"
    return None


def notes(request: Request[Kernel]) -> tuple[str, ...]:
    """What a user should know about the numbers."""
    lines = ["sums over far tokens are kept in bfloat16"]
    if request.others and not request.causal:
        lines = ["every pair of a document is met, so time grows with the square of its length"]
    if request.causal:
        lines.append("NaN or inf in a key that only some queries may see can reach the others")
    return tuple(lines)


def run(request: Request[Kernel]) -> torch.Tensor:
    """Compute the call; padded keys, and queries that see only those, may hold anything."""
    real = real_keys(request.mask, request.q)
    ids = next((moved(part.ids, request.q) for part in _documents(request)), None)
    return linear.attend(
        request.q, request.k, request.v, request.mechanism, causal=request.causal, real=real,
        decay=request.decay, ids=ids,
    )  # fmt: skip


def repeated(request: Request[Kernel]) -> Callable[..., torch.Tensor]:
    """Return the function of q, k and v that computes every call like this one."""
    return partial(linear.attend, kernel=request.mechanism, causal=request.causal)


def _documents(request: Request[Kernel]) -> list[Documents]:
    """Return the rules of the mask that keep documents apart."""
    return [part for part in request.others if isinstance(part, Documents)]


def recur(
    kernel: Kernel,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    outer: torch.Tensor,
    total: torch.Tensor,
    real: torch.Tensor | None,
    decay: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take new tokens into the sums of a recurrent state; `real` is (batch, 1, tokens)."""
    real = None if real is None else real[:, 0]
    return linear.extend(q, k, v, kernel, outer, total, real=real, decay=decay)
