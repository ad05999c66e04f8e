"""Documents packed into one sequence: brought each into one piece, attended to, and put back.

A query sees the keys with its own id, all of them or those up to itself. Once tokens are sorted by
id, those of one id in their order, it sees an interval, whatever the ids were; see `intervals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from querykey.backends.operators import no_second_derivative, operator
from querykey.backends.triton import flops
from querykey.backends.triton.ops import empty_gradients, empty_outputs


def bounds(ids: Tensor, real: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
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


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: Tensor,
    table: Tensor,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Do as `ops.triton_forward`, for tokens that see those of their document alone."""
    from querykey.backends.triton.kernels import documents as intervals

    with torch.cuda.device_of(q):
        return intervals.forward(q, k, v, order, table, numbers, keep)


def _empty_results(q: Tensor, k: Tensor, v: Tensor, *how: Any) -> tuple[Tensor, Tensor, Tensor]:
    return empty_outputs(q, v, keep=how[-1])


def _backward(
    g: Tensor,
    out: Tensor,
    more: Tensor,
    inverse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: Tensor,
    table: Tensor,
    numbers: Sequence[float],
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v."""
    from querykey.backends.triton.kernels import documents as intervals

    with torch.cuda.device_of(q):
        g = g.contiguous()
        return intervals.backward(g, out, more, inverse, q, k, v, order, table, numbers, causal)


def _remember(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, order, table, *ctx.rest, _ = inputs
    ctx.save_for_backward(*output, q, k, v, order, table)
    ctx.set_materialize_grads(False)


def _derive(ctx: Any, g: Tensor, *_: None) -> tuple:
    return *documents_backward(g, *ctx.saved_tensors, *ctx.rest), *(None,) * 5


documents_forward = operator("triton_documents_forward", _forward, _empty_results)
documents_backward = operator("triton_documents_backward", _backward, empty_gradients)
torch.library.register_autograd(
    "querykey::triton_documents_forward", _derive, setup_context=_remember
)
torch.library.register_autograd("querykey::triton_documents_backward", no_second_derivative)
register_flop_formula(torch.ops.querykey.triton_documents_forward)(flops.documents_forward)
register_flop_formula(torch.ops.querykey.triton_documents_backward)(flops.documents_backward)
