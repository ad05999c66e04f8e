"""Decoding by a layer that made its own state: the work of `extend` without its questions."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.attention import Bias, Growing, Kernel, State, Ways
from querykey.attention import state as states
from querykey.backends import chunked, triton
from querykey.backends.dispatch import BackendError, attend, recurrence


def follow(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: State,
    real: Tensor | None = None,
    *,
    bias: Bias | None = None,
    backend: str = "auto",
) -> tuple[Tensor, State]:
    """Do as `extend`, for tensors that are known to fit each other and the state."""
    if backend != "auto":
        recur = {"chunked": chunked.recur, "triton": _on_gpu}.get(backend)
        ways = Ways(partial(attend, backend=backend), recur)
        return states.follow(q, k, v, state, real, bias=bias, ways=ways)
    if q.shape[2] == 1 and real is None and bias is None and type(state) is Growing:
        done = _next(q, k, v, state)
        if done is not None:
            return done
    ways = Ways(attend, recurrence(q, k, v, state))
    return states.follow(q, k, v, state, real, bias=bias, ways=ways)


def _on_gpu(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Do as `triton.recur`, or refuse."""
    reason = triton.recurrence_refusal(kernel, q, k, v, *rest[:2])
    if reason is not None:
        raise BackendError(f"backend 'triton' cannot serve this call: {reason}")
    return triton.recur(kernel, q, k, v, *rest)


def _next(q: Tensor, k: Tensor, v: Tensor, state: Growing) -> tuple[Tensor, State] | None:
    """Add one token to every row, all of one length, and let it see everything before it.

    None where that takes more than writing behind what is there and asking torch's kernel: this is
    what a small model waits for at every token, so that nothing here is asked twice.
    """
    memory, room, counts = state.memory, state.room, state.counts
    first = counts[0] if counts else 0
    if (
        memory.plain is None
        or room is None
        or room.owner is not state.owner
        or first >= room.capacity
        or counts.count(first) != len(counts)
        or torch.is_grad_enabled()
        or (room.keys.is_inference() and not torch.is_inference_mode_enabled())
    ):
        return None
    room.keys.narrow(2, first, 1).copy_(k)
    room.values.narrow(2, first, 1).copy_(v)
    room.owner = owner = object()
    out = F.scaled_dot_product_attention(
        q, room.keys.narrow(2, 0, first + 1), room.values.narrow(2, 0, first + 1),
        scale=memory.plain.scale, enable_gqa=q.shape[1] != memory.kv_heads,
    )  # fmt: skip
    return out, Growing(memory, (first + 1,) * len(counts), state.capacity, room, owner)
