"""New tokens after those that a recurrent state has summed up: one to a row, or many.

One token joins the state in a single kernel. Many go through the kernels of `passes`, begun with
the state's sums and ending in those of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from querykey.backends.triton.buffers import filled
from querykey.backends.triton.call import cut, kernel_call
from querykey.backends.triton.kernels.decode import decode_token
from querykey.backends.triton.launches import Launcher
from querykey.backends.triton.layout import state_layout
from querykey.backends.triton.passes import Sums, run_forward
from querykey.backends.triton.plans import decode_plan


class DecodeSizes(NamedTuple):
    """The sizes of q (lanes, group, key_dim), v (lanes, value_dim) and a state of `width` rows."""

    lanes: int
    group: int
    key_dim: int
    width: int
    value_dim: int


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    decay: Tensor | None,
    outer: Tensor,
    total: Tensor,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs (lanes, group, M) and the two sums after q (lanes, group, D), k and v."""
    lanes, group, key_dim = q.shape
    sizes = DecodeSizes(lanes, group, key_dim, *outer.shape[1:])
    layout = state_layout(key_dim, key_dim + key_dim % 2, numbers, q.device)
    out = q.new_empty((lanes, group, sizes.value_dim))
    outer_after, total_after = outer.new_empty(outer.shape), total.new_empty(total.shape)
    _decode(sizes, real is not None)(
        q_LGD=q, k_LD=k, v_LM=v, real_L=real, decay_L=decay, letters_2F=layout.letters,
        weights_F=layout.weights, outer_LFM=outer, total_LF=total, out_LGM=out,
        outer_after_LFM=outer_after, total_after_LF=total_after,
    )  # fmt: skip
    return out, outer_after, total_after


@lru_cache(maxsize=256)
def _decode(sizes: DecodeSizes, counted: bool) -> Launcher:
    group = 1 << (sizes.group - 1).bit_length()  # the next power of two
    plan = decode_plan(sizes.lanes, group)
    return Launcher(
        decode_token, (sizes.lanes, cut(sizes.value_dim, plan.columns)), plan.launch,
        F=sizes.width, G=sizes.group, D=sizes.key_dim, M=sizes.value_dim, GROUP=group,
        COLUMNS=plan.columns, ROWS=plan.rows, COUNTED=counted,
    )  # fmt: skip


def extend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    decay: Tensor | None,
    outer: Tensor,
    total: Tensor,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs of q (lanes, group, T, D), causal, and the state after k and v.

    real (lanes, T) is False for padding, whose k, v and decay (lanes, T) are zeros.
    """
    key_dim, value_dim = q.shape[-1], v.shape[-1]
    q, k, v = (filled(x).contiguous() for x in (q, k, v))
    layout = state_layout(key_dim, q.shape[-1], numbers, q.device)
    past = Sums(*layout.to_tables(outer, total, v.shape[-1]))
    call = kernel_call(q, k, v, numbers, causal=True, keep=False, carried=True)
    results, after = run_forward(call, q, k, v, real, decay, keep=False, past=past)
    assert after is not None  # for there is a past
    return results.out[..., :value_dim].contiguous(), *layout.to_state(*after, value_dim)
