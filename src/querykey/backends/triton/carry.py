"""Many new tokens after those that a state has summed up: the same kernels, begun with its sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from querykey.backends.triton import passes
from querykey.backends.triton.layout import layout
from querykey.backends.triton.quadratic import filled


def extend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    outer: Tensor,
    total: Tensor,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs of q (lanes, group, T, D), causal, and the state after k and v.

    real (lanes, T) is False for padding, whose k and v are zeros.
    """
    key_dim, value_dim = q.shape[-1], v.shape[-1]
    q, k, v = (filled(x) for x in (q, k, v))
    made = layout(key_dim, q.shape[-1], numbers, q.device)
    square, rest, before = made.gathered(outer, total, v.shape[-1])
    job = passes.Job(q, k, v, numbers, causal=True, keep=False, before=(square, rest))
    seen = _seen(k, real, before.round().int())
    out = passes.forward(q, k, v, seen, numbers, True, False, job)[0]
    count = seen[:, -1].float()
    return out[..., :value_dim].contiguous(), *made.scattered(*job.after, count, value_dim)


def _seen(k: Tensor, real: Tensor | None, before: Tensor) -> Tensor:
    """Count the real keys up to every token, those of the state included."""
    if real is None:
        real = torch.ones_like(k[..., 0], dtype=torch.bool)
    return real.cumsum(-1, dtype=torch.int32) + before[:, None]
