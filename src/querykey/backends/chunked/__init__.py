"""Kernel attention in chunks: which calls it serves, and how a request becomes one."""

from __future__ import annotations

import torch

from querykey.attention import Kernel, real_keys
from querykey.backends.chunked import linear
from querykey.backends.operators import only_backward
from querykey.backends.backend import Request

WHY = "kernel attention in chunks: time and memory linear in the tokens"


def refusal(request: Request) -> str | None:
    """Why this backend cannot serve the call; None if it can."""
    if not isinstance(request.mechanism, Kernel):
        return f"it computes kernel attention, not {type(request.mechanism).__name__}"
    if request.others:
        shown = " & ".join(str(part) for part in request.others)
        return f"it takes Causal() and padding, and {shown} is neither"
    if request.causal and not isinstance(request.call.start, int):
        return "it takes one start for all rows, not one each"
    if request.causal and request.call.start + request.call.queries <= 0:
        return "there is nothing to compute: every query stands before the first key"
    return only_backward(request.q, request.k, request.v)


def notes(request: Request) -> tuple[str, ...]:
    """What a user should know about the numbers."""
    assert isinstance(request.mechanism, Kernel)
    said = []
    if request.causal:
        said.append("NaN or inf in a key that only some queries may see can reach the others")
    if not request.mechanism.features.positive:
        said.append("similarities can be negative, and sums near 0 lose digits")
    return tuple(said)


def run(request: Request) -> torch.Tensor:
    """Compute the call; keys that no query sees, and queries that see no key, may hold anything."""
    assert isinstance(request.mechanism, Kernel)
    q, k, v, real = request.q, request.k, request.v, real_keys(request.mask, request.q)
    start = 0
    if request.causal:
        start, seen = request.call.start, request.call.start + request.call.queries
        k, v = k[..., :seen, :], v[..., :seen, :]
        real = None if real is None else real[..., :seen]
    if real is not None or start < 0:
        q = torch.where(_looking(request, real, start), q, 0)
    return linear.attend(q, k, v, request.mechanism, causal=request.causal, real=real, start=start)


def _looking(request: Request, real: torch.Tensor | None, start: int) -> torch.Tensor:
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


def recur(
    kernel: Kernel,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    outer: torch.Tensor,
    total: torch.Tensor,
    real: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take many new tokens into the sums of a recurrent state; `real` is (batch, 1, tokens)."""
    real = None if real is None else real[:, 0]
    return linear.extend(q, k, v, kernel, outer, total, real=real)
