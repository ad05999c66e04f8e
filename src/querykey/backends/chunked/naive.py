"""The algorithm of this folder as a plain loop over chunks, to be read first and tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from querykey.attention import Kernel


def extend(
    q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, sums: Tensor, decay: Tensor, size: int = 64
) -> tuple[Tensor, Tensor]:
    """Return causal kernel attention over the past and the new tokens, and the sums after them.

    q, k (..., T, D) and v (..., T, M) are new tokens, sums (..., width, M + 1) is what the past
    left, or zeros, and decay (..., T) is the logarithm of each token's gate, or zeros.
    """
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)  # a last column that sums up the weights
    outputs = []
    for q_chunk, k_chunk, v_chunk, gates in zip(
        *(x.split(size, -2) for x in (q, k, v, decay[..., None])), strict=True
    ):
        since_start = gates.cumsum(-2)  # of the logarithms, over the chunk's tokens up to this one
        to_end = since_start[..., -1:, :] - since_start
        later = torch.ones(2 * q_chunk.shape[-2:-1], dtype=torch.bool, device=q.device).triu(1)
        between = (since_start - since_start.mT).masked_fill(later, -torch.inf)
        # Earlier chunks are read from their sums; a key of this chunk is met by each later query.
        read = kernel.phi(q_chunk) * since_start.exp() @ sums
        met = kernel.similarity(q_chunk, k_chunk) * between.exp() @ v_chunk
        weighted = read + met
        outputs.append(weighted[..., :-1] / weighted[..., -1:])
        gained = (kernel.phi(k_chunk) * to_end.exp()).mT @ v_chunk
        sums = since_start[..., -1:, :].exp() * sums + gained
    return torch.cat(outputs, -2), sums
