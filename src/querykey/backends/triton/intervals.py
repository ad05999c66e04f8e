"""Which keys a query sees once the tokens of each document stand in one piece."""

from __future__ import annotations

import torch
from torch import Tensor


def intervals(ids: Tensor, real: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    """Return the order (rows, T) that sorts tokens by id, and a table (4, rows, T) in that order.

    The table: the first key that a query sees, the one after the last, the end of the document, and
    how many real keys it sees; with padding a fifth row, 1 for real tokens.
    """
    ids, order = ids.long().sort(stable=True, dim=-1)
    low, end = torch.searchsorted(ids, ids), torch.searchsorted(ids, ids, right=True)
    up = torch.arange(1, ids.shape[-1] + 1, device=ids.device).expand_as(end) if causal else end
    if real is None:
        return order, torch.stack([low, up, end, up - low]).int()
    real = real.gather(-1, order)
    count = torch.nn.functional.pad(real.cumsum(-1), (1, 0))
    seen = count.gather(-1, up) - count.gather(-1, low)
    return order, torch.stack([low, up, end, seen, real]).int()
