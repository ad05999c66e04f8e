"""Count torch's scaled_dot_product_attention, fused or as the operations it consists of.

With "math" it runs as its products and its softmax. With "flash" it runs as one fused operation
that saves q, k, v, the output, one number per query and the mask where there is one, and that
computes the scores again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from querykey.costs.counting.operations import CAUSAL, FUSED, FUSED_BACKWARD, Operation, Shape
from querykey.costs.counting.trace import Trace
from querykey.costs.private import size_of

ATTENTION = ("flash", "math")


@contextmanager
def attention_as(kind: str, trace: Trace) -> Iterator[None]:
    """Run every scaled_dot_product_attention in one of the ways in ATTENTION."""
    with sdpa_kernel(SDPBackend.MATH), _AttentionMode(kind, trace):
        yield


class _AttentionMode(TorchFunctionMode):
    def __init__(self, kind: str, trace: Trace):
        super().__init__()
        self.kind, self.trace = kind, trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            with _attention_within(self):
                return func(*args, **kwargs)
        if func is not scaled_dot_product_attention:
            return func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        arguments = dict(zip(names, args, strict=False)) | kwargs
        mask = arguments.get("attn_mask")
        tensors = [arguments[name] for name in names[:3]]
        grouped, causal = bool(arguments.get("enable_gqa")), bool(arguments.get("is_causal"))
        _refuse_unfit(tensors, grouped)
        q, k, v = _aligned(tensors, mask, grouped)
        if causal and self.trace.counting:
            self.trace.causal[fused(q, k, v), self.trace.module] += 1
        if self.kind == "math":
            return func(*args, **kwargs)
        return _Fused.apply(self.trace, mask, CAUSAL if causal else "", q, k, v)


@contextmanager
def _attention_within(mode: _AttentionMode) -> Iterator[None]:
    """Let the mode see the attention that torch's own multi-head attention calls.

    A function that was handed to a mode runs without it.
    """

    def attention(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return scaled_dot_product_attention(*args, **kwargs)

    before = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = before


def _refuse_unfit(tensors: list[Any], grouped: bool) -> None:
    """Raise where q, k and v do not fit each other, as torch does; free sizes may be equal."""
    q, k, v = tensors
    pairs = {
        "widths of query and key": (q.shape[-1], k.shape[-1]),
        "lengths of key and value": (k.shape[-2], v.shape[-2]),
    }
    for what, (one, other) in pairs.items():
        gap = sympy.sympify(size_of(one) - size_of(other))
        if gap.is_number and gap != 0:
            raise RuntimeError(f"the {what} differ: {one} and {other}")
    for tensor in (k, v) if grouped else ():
        heads, shared = size_of(q.shape[-3]), size_of(tensor.shape[-3])
        if sympy.sympify(heads % shared).is_number and heads % shared != 0:
            raise RuntimeError(f"{heads} query heads cannot share {shared} key heads evenly")


def _aligned(tensors: list[Any], mask: Any, grouped: bool) -> list[Any]:
    """Return q, k and v with equal leading axes; shared key heads stay as they are."""
    inner = 3 if grouped else 2
    leading = [tuple(tensor.shape[:-inner]) for tensor in tensors]
    if mask is not None:
        leading.append(tuple(mask.shape[:-inner]))
    if len({Shape(size_of(size) for size in axes) for axes in leading}) == 1:
        return tensors  # torch's own comparison of symbolic sizes would bind them
    common = torch.broadcast_shapes(*leading)
    return [tensor.expand(*common, *tensor.shape[-inner:]) for tensor in tensors]


class _Fused(torch.autograd.Function):
    """Fused attention as shapes alone, recorded as one operation forward and one backward."""

    @staticmethod
    def forward(
        ctx: Any, trace: Trace, mask: Any, kind: str, q: Any, k: Any, v: Any
    ) -> torch.Tensor:
        out = _output(q, v)
        log_sums = q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.trace, ctx.kind = trace, kind
        ctx.mask_gradient = mask is not None and mask.requires_grad
        ctx.save_for_backward(q, k, v, out, log_sums, *([] if mask is None else [mask]))
        trace.record(fused(q, k, v, FUSED, kind), _given(q, k, v, mask), (out, log_sums))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        saved = ctx.saved_tensors  # asked for once: what is checkpointed is computed again then
        q, k, v = saved[:3]
        mask = torch.empty_like(saved[5]) if ctx.mask_gradient else None
        made = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        read = *gradients, *saved
        ctx.trace.record(fused(q, k, v, FUSED_BACKWARD, ctx.kind), read, _given(*made, mask))
        return None, mask, None, *made


def _output(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return the memory of an output, which flash attention lays out as the queries are laid out.

    Heads that are views of (batch, length, heads, width) so come back without a copy. Where the
    values have another width, another kernel runs, which always lays its output out like that.
    """
    if q.dim() != 4:
        return q.new_empty((*q.shape[:-1], v.shape[-1]))
    beside = q.transpose(1, 2)
    if size_of(q.shape[-1]) == size_of(v.shape[-1]):
        return torch.empty_like(beside).transpose(1, 2)
    return q.new_empty((*beside.shape[:-1], v.shape[-1])).transpose(1, 2)


def _given(*tensors: torch.Tensor | None) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, name: str = FUSED, kind: str = ""
) -> Operation:
    """Return the operation that stands for fused attention."""
    shapes = tuple(Shape(size_of(size) for size in tensor.shape) for tensor in (q, k, v))
    return Operation(name, shapes, (Shape((*shapes[0][:-1], shapes[2][-1])),), True, kind)
