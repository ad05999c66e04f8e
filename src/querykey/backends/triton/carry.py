"""Many new tokens after those that a state has summed up: the same kernels, begun with its sums."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from querykey.backends.triton import passes
from querykey.backends.triton.layout import layout
from querykey.backends.triton.linear import filled


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
    square, rest, count = made.gathered(outer, total, v.shape[-1])
    count = count.round()
    job = passes.Job(q, k, v, numbers, causal=True, keep=False, before=(square, rest, count))
    out = passes.forward(q, k, v, real, numbers, True, False, job)[0]
    count = count + (k.shape[1] if real is None else real.sum(-1))
    return out[..., :value_dim].contiguous(), *made.scattered(*job.after, count, value_dim)
