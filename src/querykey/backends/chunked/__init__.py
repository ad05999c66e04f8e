"""Kernel attention in chunks: which calls it serves, and how a request becomes one."""

from __future__ import annotations

import torch

from querykey.attention import (
    Kernel,
    Mechanism,
    real_keys,
)
from querykey.backends.backend import Request
from querykey.backends.chunked import linear
from querykey.backends.operators import only_backward

computes: type[Mechanism] = Kernel
beaten = "it could compute this, but {taken} is faster here; ask for it by name"
LONG = 256  # new tokens from which chunks are quicker than the equation


def why(request: Request[Kernel]) -> str:
    """Say why auto takes chunks: what they save in time and memory."""
    return "kernel attention in chunks, in time and memory linear in the tokens"


def refusal(request: Request[Kernel]) -> str | None:
    """Say why this backend cannot serve the call; None if it can."""
    if request.empty:
        return "there is nothing to compute"
    if request.others:
        shown = " & ".join(str(part) for part in request.others)
        return f"it takes Causal() and padding, and {shown} is neither"
    if request.causal and not isinstance(request.call.start, int):
        return "it takes one start for all rows, not one each"
    if request.causal and request.call.start + request.call.queries <= 0:
        return "there is nothing to compute: every query stands before the first key"
    return only_backward(request.q, request.k, request.v, request.decay)


def defers_to(request: Request[Kernel]) -> str | None:
    """Return None: what is faster is asked before it."""
    return None


def notes(request: Request[Kernel]) -> tuple[str, ...]:
    """Say what a user should know about the numbers."""
    notes = []
    if request.causal:
        notes.append("NaN or inf in a key that only some queries may see can reach the others")
    if not request.mechanism.features.positive:
        notes.append("similarities can be negative, and sums near 0 lose digits")
    elif request.mechanism.features.closed_form:
        notes.append("a query whose visible similarities are all near 0 loses digits")
    return tuple(notes)


def run(request: Request[Kernel]) -> torch.Tensor:
    """Compute the call; keys that no query sees, and queries that see no key, may hold anything."""
    q, k, v, real = request.q, request.k, request.v, real_keys(request.mask, request.q)
    start, decay = 0, request.decay
    if request.causal:
        start, seen = request.call.start, request.call.start + request.call.queries
        k, v = k[..., :seen, :], v[..., :seen, :]
        real = None if real is None else real[..., :seen]
        decay = None if decay is None else decay[..., :seen]
    if real is not None or start < 0:
        q = torch.where(_looking(request, real, start), q, 0)
    return linear.attend(
        q, k, v, request.mechanism, causal=request.causal, real=real, start=start, decay=decay
    )


def _looking(request: Request[Kernel], real: torch.Tensor | None, start: int) -> torch.Tensor:
    """Which queries see a real key, in a shape that broadcasts against q."""
    if not request.causal:
        assert real is not None
        looking = real.any(-1, keepdim=True)[..., None]
    else:
        at = torch.arange(start, start + request.call.queries, device=request.q.device)
        looking = at >= 0
        if real is not None:
            looking = looking & (real.cumsum(-1)[..., at.clamp(0, real.shape[-1] - 1)] > 0)
        looking = looking[..., None]
    return looking[..., None, :, :] if request.call.has_heads else looking


def recurrence_refusal(
    kernel: Kernel,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *sums: torch.Tensor,
    decay: torch.Tensor | None = None,
) -> str | None:
    """Say why `recur` cannot take these tokens (batch, heads, T, ...) into sums; None if it can."""
    return only_backward(q, k, v, *sums, decay)


def recurrence_pays(tokens: int) -> bool:
    """Whether chunks take so many new tokens in faster than the equation does."""
    return tokens >= LONG


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
    """Take many new tokens into the sums of a recurrent state; `real` is (batch, 1, tokens)."""
    real = None if real is None else real[:, 0]
    return linear.extend(q, k, v, kernel, outer, total, real=real, decay=decay)
