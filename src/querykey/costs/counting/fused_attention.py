"""torch's scaled_dot_product_attention, seen before it is taken apart.

With "math" it runs as the products and the softmax it is made of. With "flash" it runs as one
fused operation that keeps q, k, v, the output and one number per query (and the mask, where one is
given), and computes the scores again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from querykey.costs.counting.operations import FUSED, FUSED_BACKWARD, Call, Shape
from querykey.costs.counting.trace import Tally
from querykey.costs.private import size_of

ATTENTION = ("flash", "math")


@contextmanager
def attention_as(kind: str, tally: Tally) -> Iterator[None]:
    """Run every scaled_dot_product_attention in this way."""
    with sdpa_kernel(SDPBackend.MATH), _Attention(kind, tally):
        yield


class _Attention(TorchFunctionMode):
    def __init__(self, kind: str, tally: Tally):
        super().__init__()
        self.kind, self.tally = kind, tally

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not scaled_dot_product_attention:
            return func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, args, strict=False)) | kwargs
        mask = given.get("attn_mask")
        q, k, v = _aligned(
            [given["query"], given["key"], given["value"]], mask, bool(given.get("enable_gqa"))
        )
        if given.get("is_causal"):
            self.tally.hidden[fused(q, k, v), self.tally.module] += 1
        if self.kind == "math":
            return func(*args, **kwargs)
        return _Fused.apply(self.tally, mask, q, k, v)


def _aligned(tensors: list[Any], mask: Any, grouped: bool) -> list[Any]:
    """q, k and v with the same leading axes; where heads share keys, these stay as they are."""
    inner = 3 if grouped else 2
    leading = [tuple(each.shape[:-inner]) for each in tensors]
    if mask is not None:
        leading.append(tuple(mask.shape[:-inner]))
    if len({Shape(size_of(size) for size in axes) for axes in leading}) == 1:
        return tensors  # comparing symbolic sizes would bind them
    common = torch.broadcast_shapes(*leading)
    return [each.expand(*common, *each.shape[-inner:]) for each in tensors]


class _Fused(torch.autograd.Function):
    """The shapes of fused attention, its cost recorded as one call each way."""

    @staticmethod
    def forward(ctx: Any, tally: Tally, mask: Any, q: Any, k: Any, v: Any) -> torch.Tensor:
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        log_sums = q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.tally, ctx.saves_mask = tally, mask is not None
        ctx.mask_gradient = mask is not None and mask.requires_grad
        ctx.save_for_backward(q, k, v, out, log_sums, *([] if mask is None else [mask]))
        tally.record(fused(q, k, v))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        q, k, v = ctx.saved_tensors[:3]
        ctx.tally.record(fused(q, k, v, FUSED_BACKWARD))
        mask = torch.empty_like(ctx.saved_tensors[5]) if ctx.mask_gradient else None
        return None, mask, torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, op: str = FUSED) -> Call:
    """The call that stands for fused attention."""
    shapes = tuple(Shape(size_of(size) for size in each.shape) for each in (q, k, v))
    return Call(op, shapes, (Shape((*shapes[0][:-1], shapes[2][-1])),), True)
