"""Quadratic kernels on an NVIDIA GPU: which calls they serve, and how a request becomes one."""

from __future__ import annotations

import math
from importlib.util import find_spec

import torch

from querykey.attention import Documents, Kernel, Mechanism, PowerSeries, moved, real_keys
from querykey.backends.backend import Request
from querykey.backends.operators import only_backward
from querykey.backends.triton import linear
from querykey.backends.triton.plans import SIZES, SUMMED
from querykey.backends.triton.recurrence import KINDS, recur

__all__ = [
    "beaten",
    "computes",
    "defers_to",
    "notes",
    "recur",
    "recurrence_pays",
    "recurrence_refusal",
    "refusal",
    "run",
    "why",
]

# Asked once: torch.compile does not trace into the import system.
HAS_TRITON = find_spec("triton") is not None
MOST = 65535  # of a GPU's grid along its second axis
LONG = 256  # new tokens from which the kernels are quicker than the equation, if not one alone
computes = Kernel
beaten = "it serves, but {taken} is faster here; ask for it by name"


def why(request: Request[Kernel]) -> str:
    """Say where it is ahead."""
    return "quadratic kernels on the GPU: ahead of chunks at every length measured"


def refusal(request: Request[Kernel]) -> str | None:
    """Say why this backend cannot serve the call; None if it can."""
    if request.empty:
        return "there is nothing to compute"
    unknown = _unknown(request.mechanism)
    if unknown is not None:
        return unknown
    others = [part for part in request.others if not isinstance(part, Documents)]
    if others:
        shown = " & ".join(map(str, others))
        return f"it takes Causal(), padding and documents, and {shown} is none of these"
    if request.decay is not None:
        return "it has no decay"
    if len(request.others) > 1:
        return "it takes one Documents(...), not several at once"
    ordered = request.starts_at_zero and request.call.queries == request.call.keys
    if (request.causal or request.others) and not ordered:
        name = "Causal()" if request.causal else "Documents(...)"
        return f"with {name} it takes as many queries as keys, the first at position 0"
    most = SUMMED if request.others else SIZES[-1]
    if max(request.call.key_dim, request.v.shape[-1]) > most:
        known = ", with Documents(...)" if request.others else ""
        return f"it takes keys and values of at most {most} entries{known}"
    if request.v.shape[-1] == 0:
        return "there is nothing to compute"
    one_way = _machine(request.q) or only_backward(request.q, request.k, request.v)
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
    unknown = _unknown(mechanism)
    if unknown is not None:
        return unknown
    if decay is not None:
        return "it has no decay"
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, *sums)):
        return "it gives no gradients through a state"
    if q.shape[2] == 1 and q.dtype not in KINDS:
        return f"it takes no {str(q.dtype)[6:]}"
    if q.shape[2] == 1:
        return _machine(q) or only_backward(q, k, v, *sums)
    if max(q.shape[-1], v.shape[-1]) > SUMMED:
        return f"it takes keys and values of at most {SUMMED} entries, or one token"
    one_way = _machine(q) or only_backward(q, k, v, *sums)
    return one_way or _precision(q) or _crowd(*q.shape[:2])


def _unknown(mechanism: Mechanism) -> str | None:
    """Why it is not the mechanism that the kernels compute."""
    if not isinstance(mechanism, Kernel):
        return f"it computes kernel attention, not {type(mechanism).__name__}"
    features = mechanism.features
    if not isinstance(features, PowerSeries) or not _quadratic(features):
        return f"it takes kernels of degree 2 in q.k, and {features} is none"
    return None


def _quadratic(features: PowerSeries) -> bool:
    return len(features.coefficients) == 3 and features.coefficients[2] > 0


def _machine(q: torch.Tensor) -> str | None:
    """Why these tensors cannot go to a kernel here."""
    if not q.is_cuda:
        known = "" if torch.cuda.is_available() else ", and there is no CUDA device"
        return f"it takes tensors on a GPU; q is on {q.device.type}{known}"
    if not HAS_TRITON:
        return "triton is not installed"
    if torch.cuda.get_device_properties(q.device).major < 8:
        return "it needs a GPU of compute capability 8.0 or newer"
    return None


def _precision(q: torch.Tensor) -> str | None:
    dtype = linear.compute_dtype(q)
    return None if dtype == torch.bfloat16 else f"it computes in bfloat16, not {str(dtype)[6:]}"


def _crowd(*heads: int) -> str | None:
    """Why so many heads cannot be served; asked last, as costs hold for sizes that were asked."""
    if math.prod(heads) > MOST:
        return f"it takes at most {MOST} heads, those of all rows counted"
    return None


def notes(request: Request[Kernel]) -> tuple[str, ...]:
    """What a user should know about the numbers."""
    said = ["sums over far tokens are kept in bfloat16"]
    if request.others:
        said = ["every pair of a document is met, so time grows with the square of its length"]
    elif max(request.call.key_dim, request.v.shape[-1]) > SUMMED:
        said = [
            f"heads above {SUMMED} meet every pair, so time grows with the square of the tokens"
        ]
    if request.causal:
        said.append("NaN or inf in a key that only some queries may see can reach the others")
    return tuple(said)


def run(request: Request[Kernel]) -> torch.Tensor:
    """Compute the call; padded keys, and queries that see only those, may hold anything."""
    real = real_keys(request.mask, request.q)
    ids = next((moved(part.ids, request.q) for part in _documents(request)), None)
    return linear.attend(
        request.q, request.k, request.v, request.mechanism, causal=request.causal, real=real,
        ids=ids,
    )  # fmt: skip


def _documents(request: Request[Kernel]) -> list[Documents]:
    return [part for part in request.others if isinstance(part, Documents)]
