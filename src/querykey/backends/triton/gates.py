"""Gates between tokens, as the kernels take them; and their gradients from what the kernels leave.

The equations are in `kernels.gates` and `kernels.gradients`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it


class GateTables(NamedTuple):
    """The table of `kernels.gates` (lanes, 5, N), and what is left of keys at the chunk's end."""

    table: Tensor
    weights: Tensor


def gate_gradients(
    by_query: Tensor, by_key: Tensor, borders: Tensor | None, real: Tensor | None, chunk: int
) -> Tensor:
    """Return the gradients of decay (lanes, N) from sums of p over keys and over queries.

    by_query (..., N) and by_key (lanes, N) are the sums of p_ij, the gradient of all gates
    between j and i, for every query i and every key j; borders (lanes, parts, chunks) add up to the
    sum of p over all pairs on both sides of a chunk's first token, None where there are no chunks.
    Counted anew from every border, roundings do not add up along a sequence.
    """
    lanes, tokens = by_key.shape
    if real is not None:
        by_key = by_key.masked_fill(~real, 0)
    if borders is None:
        chunk = tokens
    gains = by_key.double() - by_query.view(lanes, -1, tokens).sum(1, dtype=torch.float64)
    gains = F.pad(gains, (0, -tokens % chunk)).unflatten(-1, (-1, chunk))
    gradient = gains.cumsum(-1) - gains
    if borders is not None:
        gradient += borders.sum(1, dtype=torch.float64)[..., None]
    return gradient.flatten(1)[:, :tokens].float()
