"""Attention with its derivative: through the operators, or past them where nobody looks at these.

Operators are what compilers, FLOP counters and tracers see. The way through torch's dispatcher to
an operator written in Python, and to its derivative, takes the host longer than all kernels of a
short sequence; so a plain call starts the kernels from a node of autograd itself.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from querykey.backends.operators import unwatched
from querykey.backends.triton.buffers import folded
from querykey.backends.triton.intervals import DocumentFacts, Intervals
from querykey.backends.triton.ops import (
    documents_backward,
    documents_forward,
    or_empty,
    triton_backward,
    triton_forward,
)

Numbers = tuple[float, ...]


def differentiable(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    decay: Tensor | None,
    numbers: Numbers,
    causal: bool,
) -> Tensor:
    """Return out (..., heads, T, M) for q (..., heads, T, D), k and v (..., kv_heads, N, ...).

    Sizes are those that `plans` lists; real and decay (lanes, N) and numbers are as `ops` says.
    """
    keep = keeps(q, k, v, decay)
    if not unwatched(q, k, v, *(() if decay is None else (decay,))):
        shape = (*q.shape[:-1], v.shape[-1])
        q, k, v = folded(q, k, v)
        return triton_forward(q, k, v, real, decay, numbers, causal, keep)[0].view(shape)
    if keep:
        return _Attention.apply(q, k, v, real, decay, numbers, causal)
    from querykey.backends.triton import passes

    with _device_of(q):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        return passes.forward(q, k, v, real, decay, numbers, causal, keep).out


def differentiable_documents(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    found: Intervals,
    facts: DocumentFacts | None,
    numbers: Numbers,
    causal: bool,
) -> Tensor:
    """Do as `differentiable` for tokens that see their own document alone."""
    keep = keeps(q, k, v)
    if not unwatched(q, k, v):
        shape = (*q.shape[:-1], v.shape[-1])
        q, k, v = folded(q, k, v)
        return documents_forward(q, k, v, *found, numbers, causal, keep)[0].view(shape)
    if keep:
        return _Documents.apply(q, k, v, *found, facts, numbers, causal)
    from querykey.backends.triton import documents

    with _device_of(q):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        return documents.forward(q, k, v, found, numbers, causal, keep, facts).out


def keeps(*tensors: Tensor | None) -> bool:
    """Whether a gradient of one of these may be asked for."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


class _Attention(torch.autograd.Function):
    """Kernel attention as a node of autograd; a second derivative is refused by the operator."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        real: Tensor | None,
        decay: Tensor | None,
        numbers: Numbers,
        causal: bool,
    ) -> Tensor:
        """Return the outputs, and keep what `passes.backward` needs."""
        from querykey.backends.triton import passes

        with _device_of(q):
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
            results = passes.forward(q, k, v, real, decay, numbers, causal, keep=True)
        ctx.save_for_backward(*results, q, k, v, real)
        ctx.how = numbers, causal
        return results.out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        """Return the gradients of q, k, v and decay."""
        from querykey.backends.triton import passes

        *kept, q, k, v, real = ctx.saved_tensors
        if torch.is_grad_enabled():
            out, residue, inverse, *more = (or_empty(x, q) for x in kept)
            tensors = (g, out, residue, inverse, q, k, v, *more, real)
            *three, for_decay = triton_backward(*tensors, *ctx.how)
            for_decay = for_decay if for_decay.numel() else None
        else:
            with _device_of(q):
                g, results = g.contiguous(), passes.Results(*kept)
                how = (q, k, v, real, *ctx.how)
                *three, for_decay = passes.backward(g, results, *how)
        return *three, None, for_decay, None, None


class _Documents(torch.autograd.Function):
    """The same for tokens that see their own document alone."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        order: Tensor,
        table: Tensor,
        by_row: Tensor,
        facts: DocumentFacts | None,
        numbers: Numbers,
        causal: bool,
    ) -> Tensor:
        """Return the outputs, and keep what `documents.backward` needs."""
        from querykey.backends.triton import documents

        found = Intervals(order, table, by_row)
        with _device_of(q):
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
            results = documents.forward(q, k, v, found, numbers, causal, True, facts)
        ctx.save_for_backward(*results[:3], q, k, v, *results[3:5], *found)
        ctx.how, ctx.facts = (numbers, causal), facts
        return results.out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        """Return the gradients of q, k and v."""
        from querykey.backends.triton import documents, passes

        out, residue, inverse, q, k, v, square, moments, *found = ctx.saved_tensors
        if torch.is_grad_enabled():
            empty = (or_empty(x, q) for x in (residue, inverse, q, k, v, square, moments))
            three = documents_backward(g, out, *empty, *found, *ctx.how)
        else:
            results = passes.Results(out, residue, inverse, square, moments)
            with _device_of(q):
                g = g.contiguous()
                how = (*ctx.how, ctx.facts)
                three = documents.backward(g, results, q, k, v, Intervals(*found), *how)
        return *three, *(None,) * 6


def _device_of(q: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which kernels start on the device of q; quick where they do anyway."""
    device = q.get_device()
    if device < 0 or device == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)
