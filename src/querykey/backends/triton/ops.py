"""The GPU kernels as two operators, with their shapes and their derivative.

Lanes fold batch and key heads: q (lanes, group, T, D), k (lanes, N, D), v (lanes, N, M), all
contiguous and of the sizes that `plans` lists; `seen` (lanes, T) counts the real keys each query
sees where some are padding (whose k and v are zeros). `numbers` are the kernel's scale and c0, c1,
c2 of the similarity c0 + c1 d + c2 d^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from querykey.backends.operators import operator
from querykey.backends.triton import flops


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor | None,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return out (lanes, group, T, M), what its rounding left out, and 1/z (lanes, group, T).

    The second is for gradients, which are differences from the output; empty if not to keep.
    """
    from querykey.backends.triton import passes

    with torch.cuda.device_of(q):
        return passes.forward(q, k, v, seen, numbers, causal, keep)


def _empty_results(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor | None,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    out = v.new_empty((*q.shape[:-1], v.shape[-1]))
    more = v.new_empty(out.shape if keep else 0)
    return out, more, q.new_empty(q.shape[:-1], dtype=torch.float32)


def _backward(
    g: Tensor,
    out: Tensor,
    more: Tensor,
    inverse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    numbers: Sequence[float],
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v."""
    from querykey.backends.triton import passes

    with torch.cuda.device_of(q):
        return passes.backward(g.contiguous(), out, more, inverse, q, k, v, numbers, causal)


def empty_gradients(
    g: Tensor,
    out: Tensor,
    more: Tensor,
    inverse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tensors shaped like the gradients of q, k and v; documents' are the same."""
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _remember(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, _, *ctx.rest, _ = inputs
    ctx.save_for_backward(*output, q, k, v)


def _derive(ctx: Any, g: Tensor, *_: Tensor) -> tuple:
    return *triton_backward(g, *ctx.saved_tensors, *ctx.rest), *(None,) * 4


triton_forward = operator("triton_forward", _forward, _empty_results)
triton_backward = operator("triton_backward", _backward, empty_gradients)
torch.library.register_autograd("querykey::triton_forward", _derive, setup_context=_remember)
register_flop_formula(torch.ops.querykey.triton_forward)(flops.forward)
register_flop_formula(torch.ops.querykey.triton_backward)(flops.backward)
