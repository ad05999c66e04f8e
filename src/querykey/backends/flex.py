"""Softmax attention by torch's FlexAttention, compiled: the mask's rule itself runs in the kernel.

Blocks that the rule leaves out are never computed. Which those are is worked out once per rule and
length, and kept for the next layer that asks.
"""

from __future__ import annotations

import math
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from querykey.attention import (
    FULL,
    ArrayMask,
    At,
    Bias,
    Call,
    Mask,
    Mechanism,
    Softmax,
)
from querykey.backends.backend import Request
from querykey.backends.operators import no_forward_mode, recompiling_up_to, version
from querykey.backends.pairs import looked_at
from querykey.backends.sdpa import four_axes
from querykey.backends.sdpa import notes as notes_of_masks

computes: type[Mechanism] = Softmax
beaten = (
    "it could compute this, but is fast only on a GPU with masks that hide whole blocks; "
    "ask for it by name"
)
KEPT = 16  # block masks kept for reuse
RULES = 256  # kinds of rules compiled at most


def why(request: Request[Softmax]) -> str:
    """Say which kernel computes the call, and what it saves."""
    return "torch's FlexAttention, which skips the blocks that the mask leaves out"


def refusal(request: Request[Softmax]) -> str | None:
    """Say why this backend cannot serve the call; None if it can."""
    if request.empty:
        return "there is nothing to compute"
    if not isinstance(request.call.start, int):
        return "it takes one start for all rows, not one each"
    if request.bias is not None and not isinstance(request.bias, Bias):
        return "it takes a bias that is a rule over positions, not an array"
    if request.q.device.type == "cpu":
        return _refusal_on_cpu(request)
    return no_forward_mode(request.q, request.k, request.v)


def defers_to(request: Request[Softmax]) -> str | None:
    """Return None: on a GPU nothing that is asked later serves softmax faster."""
    return None


def _refusal_on_cpu(request: Request[Softmax]) -> str | None:
    arrays = (request.q, request.k, request.v, getattr(request.bias, "table", None))
    if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in arrays):
        return "FlexAttention has no backward on the CPU"
    if request.q.dtype == torch.float64:
        return "FlexAttention on the CPU takes no float64"
    if not (shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")):
        return "FlexAttention on the CPU needs a C++ compiler, and none was found"
    return None


def run(request: Request[Softmax]) -> torch.Tensor:
    """Compute the call; a query that sees nothing gets zeros from the kernel itself."""
    q, k, v = four_axes(request)
    arrays = [leaf.array for leaf in request.mask.leaves if isinstance(leaf, ArrayMask)]
    contents = tuple(_contents(array) for array in arrays)
    plan = _plan(request.mask, request.call, q.device, request.sees_itself, contents)
    if plan.looking is not None:
        q = torch.where(plan.looking, q, 0)
        k, v = torch.where(plan.seen, k, 0), torch.where(plan.seen, v, 0)
    # Each kind of rule is a kernel of its own; beyond torch's limit of 8 it would stop fusing them.
    with recompiling_up_to(RULES):
        out = _kernel()(
            q, k, v, _score_change(request), plan.blocks,
            scale=request.mechanism.scale_for(request.call.key_dim),
            enable_gqa=request.call.heads != request.call.kv_heads,
        )  # fmt: skip
    if q.device.type == "cpu":
        # The kernel finds no largest score where all are NaN, and answers zeros.
        out = torch.where(q.isnan().any(-1, keepdim=True), math.nan, out)
    return out.reshape(*request.q.shape[:-1], request.v.shape[-1])


def notes(request: Request[Softmax]) -> tuple[str, ...]:
    """Say what a user should know about the numbers."""
    on_gpu = ("a query that holds NaN may come out as zeros",)
    return notes_of_masks(request) + (() if request.q.device.type == "cpu" else on_gpu)


@cache
def _kernel() -> Callable[..., Any]:
    return torch.compile(flex_attention)


@dataclass(frozen=True)
class _Plan:
    """What a rule comes to at one length: its blocks, and what stands alone."""

    blocks: BlockMask | None
    looking: Any = None  # queries that see something; None: all do
    seen: Any = None


def _contents(array: Any) -> Any:
    """Return what changes when a mask's array is written to."""
    if isinstance(array, torch.Tensor):
        return version(array)
    return zlib.crc32(array.tobytes())


@lru_cache(maxsize=KEPT)
@torch.inference_mode(False)  # a plan made without gradients may be kept for a call with them
def _plan(
    mask: Mask, call: Call, device: torch.device, sees_itself: bool, contents: tuple
) -> _Plan:
    if mask == FULL:
        return _Plan(None)
    rule, batch = mask.on(torch.empty(0, device=device)), math.prod(call.batch)

    def allowed(b: Any, h: Any, row: Any, key: Any) -> Any:
        return rule.visible_at(row + call.start, key, At(_unjoined(b, call.batch), h, row))

    differs = [leaf.outer for leaf in mask.leaves if leaf.outer]
    block_mask = create_block_mask(
        allowed,
        batch if any(math.prod(outer[:-1]) > 1 for outer in differs) else None,
        call.heads if any(outer[-1] > 1 for outer in differs) else None,
        call.queries, call.keys, device=str(device),
    )  # fmt: skip
    return _Plan(block_mask) if sees_itself else _Plan(block_mask, *looked_at(mask, call, device))


def _unjoined(index: Any, batch: tuple[int, ...]) -> tuple[Any, ...]:
    """Return one index per batch axis from the index into the joined batch."""
    indices = []
    for size in reversed(batch):
        indices.append(index % size)
        index = index // size
    return tuple(reversed(indices))


def _score_change(request: Request[Softmax]) -> Callable[..., Any] | None:
    """What happens to a score before softmax: the softcap, then the bias."""
    softcap, start = request.mechanism.softcap, request.call.start
    bias = request.bias.on(request.q) if isinstance(request.bias, Bias) else None
    if softcap is None and bias is None:
        return None

    def change(score: Any, b: Any, h: Any, row: Any, key: Any) -> Any:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if bias is None else score + bias.values(row + start, key, h)

    return change
