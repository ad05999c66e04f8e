"""The GPU kernels as two operators, with their shapes and their derivative.

Lanes fold batch and key heads: q (lanes, group, T, D), k (lanes, N, D), v (lanes, N, M), all
contiguous and of the sizes that `plans` lists; `real` (lanes, N) is False for padding, whose k and
v are zeros. `numbers` are the kernel's scale and c0, c1, c2 of the similarity c0 + c1 d + c2 d^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from querykey.backends.operators import no_second_derivative, operator
from querykey.backends.triton import flops
from querykey.backends.triton.plans import plan


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return out (lanes, group, T, M), what its rounding left out, 1/z (lanes, group, T), and sums.

    All but the first are for gradients, which are differences from the output; the second is empty
    if not to keep or in float32, the sums of `passes` where all keys are near or not to keep.
    """
    from querykey.backends.triton import passes

    with torch.cuda.device_of(q):
        return passes.forward(q, k, v, real, numbers, causal, keep)


def _empty_results(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    numbers: Sequence[float],
    causal: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    (lanes, _, queries, size), (keys, width) = q.shape, v.shape[1:]
    out, more, inverse = empty_outputs(q, v, keep)
    cut = plan(size, width)
    square, rest = [0, 0], [0, 0]
    if keep and cut.far(queries, keys, keep):
        tables = [lanes, -(-keys // cut.chunk) if causal else 1]
        square = [*tables, 3 * size // 4, size, width]
        rest = [*tables, size * width + size * size + width + size]
    return out, more, inverse, q.new_empty(square), inverse.new_empty(rest)


def empty_outputs(q: Tensor, v: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return room for outputs, for what rounding takes from them if that is kept, and for 1/z."""
    out = v.new_empty((*q.shape[:-1], v.shape[-1]))
    more = v.new_empty(out.shape if keep and v.dtype != torch.float32 else 0)
    return out, more, q.new_empty(q.shape[:-1], dtype=torch.float32)


def _backward(
    g: Tensor,
    out: Tensor,
    more: Tensor,
    inverse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    square: Tensor,
    rest: Tensor,
    numbers: Sequence[float],
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, by what `_forward` has kept."""
    from querykey.backends.triton import passes

    with torch.cuda.device_of(q):
        g, tables = g.contiguous(), (square, rest)
        return passes.backward(g, out, more, inverse, q, k, v, *tables, numbers, causal)


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


def _remember(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    q, k, v, _, *ctx.rest, _ = inputs
    ctx.save_for_backward(*output[:3], q, k, v, *output[3:])
    ctx.set_materialize_grads(False)  # zeros for what is kept would be as large as it


def _derive(ctx: Any, g: Tensor, *_: None) -> tuple:
    return *triton_backward(g, *ctx.saved_tensors, *ctx.rest), *(None,) * 4


triton_forward = operator("triton_forward", _forward, _empty_results)
triton_backward = operator("triton_backward", _backward, empty_gradients)
torch.library.register_autograd("querykey::triton_forward", _derive, setup_context=_remember)
torch.library.register_autograd("querykey::triton_backward", no_second_derivative)
register_flop_formula(torch.ops.querykey.triton_forward)(flops.forward)
register_flop_formula(torch.ops.querykey.triton_backward)(flops.backward)
