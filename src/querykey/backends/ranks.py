"""One long sequence over many ranks: attention whose tokens are spread over a process group.

    out = ranks.attend(q, k, v, mechanism=Kernel(Quadratic()), mask=Causal())

Every rank calls with its own part: rank r of a group holds the tokens r * T to (r + 1) * T - 1, and
gets their outputs. Kernel attention exchanges sums over keys, whose size does not depend on the
number of tokens; every other mechanism gathers the keys and values of all ranks.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from querykey.attention import FULL, Causal, Kernel, Mask, Mechanism, Padding, Softmax, real_keys
from querykey.backends import dispatch
from querykey.backends.backend import BackendError, Request
from querykey.backends.chunked import linear
from querykey.backends.operators import only_backward
from querykey.errors import WrongTypeError
from querykey.words import a_type


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mechanism: Mechanism = Softmax(),  # noqa: B008 - a frozen value
    mask: Mask = FULL,
    decay: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Return the outputs of this rank's queries, which attend to the keys of all ranks.

    The arguments are those of `querykey.attend` for T tokens out of n * T, where n is the number of
    ranks in the group (None: all ranks). The mask is FULL or Causal(), with or without Padding,
    which holds this rank's T tokens. All ranks call with equal shapes, or all of them raise an
    error that shows every rank's. Where gradients are wanted, all ranks call backward too.

    A rank hands to the collectives, and receives from each rank, in one exchange:

    - Kernel: batch * kv_heads * (width * (value_dim + 1) + 2) numbers, where width is that of the
      feature map, in float32 at least; backward as many, less the last 2. T plays no part in it.
    - other mechanisms: batch * kv_heads * T * (key_dim + value_dim) numbers in the dtype of q, and
      with Padding batch * T bytes; backward as many numbers for each rank. All keys and values of
      the sequence are then in the memory of every rank.

    Before that, 8 bytes from each rank tell whether the parts fit together; a GPU's host waits for
    them.
    """
    if not isinstance(q, Tensor):
        raise WrongTypeError(f"a sequence over ranks takes torch tensors; q is {a_type(q)}")
    _check_member(group)
    request = _agreed(q, k, v, mechanism, mask, decay, group)
    real = real_keys(mask, q)
    if isinstance(request.mechanism, Kernel):
        return _by_sums(request, real, group)
    return _by_gathering(request, real, group)


def _check_member(group: dist.ProcessGroup | None) -> None:
    """Refuse a process that has no group, or is no rank of the one that it names."""
    if not (dist.is_available() and dist.is_initialized()):
        raise BackendError(
            "this process has no ranks to share a sequence with: call "
            "torch.distributed.init_process_group first, for example under torchrun"
        )
    if dist.get_rank(group) < 0:
        raise BackendError(f"rank {dist.get_rank()} is not in the group that shares the sequence")


def _agreed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: Mechanism,
    mask: Mask,
    decay: Tensor | None,
    group: dist.ProcessGroup | None,
) -> Request[Any]:
    """Check this rank's part, and that the parts of all ranks fit together.

    A rank whose part is wrong tells the others before it raises: they would wait for it forever.
    """
    request = problem = None
    try:
        request = Request.of(q, k, v, mechanism, mask, decay=decay)
        _check_served(request)
        text = _description(request)
    except (TypeError, ValueError) as error:
        problem, text = error, f"{type(error).__name__}: {error}"
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])
    digests = _gathered(torch.tensor([digest], device=q.device), group)
    alike = bool((digests == digest).all())
    texts: list[Any] = [text] * dist.get_world_size(group)
    if not alike:
        dist.all_gather_object(texts, text, group=group)
    if problem is not None:
        raise problem
    if not alike:
        lines = (f"  rank {rank}: {text}" for rank, text in enumerate(texts))
        raise BackendError(
            "ranks share a sequence in equal parts, and these do not fit together:\n"
            + "\n".join(lines)
        )
    assert request is not None
    return request


def _check_served(request: Request[Any]) -> None:
    """Refuse what cannot be computed over ranks, with the reason."""
    if request.empty:
        raise BackendError("there is nothing to compute: a size of this rank's part is 0")
    if request.others:
        shown = " & ".join(str(part) for part in request.others)
        raise BackendError(
            f"a sequence over ranks takes FULL or Causal(), with Padding or without; "
            f"{shown} is neither"
        )
    tensors = (request.q, request.k, request.v, request.decay)
    reason = only_backward(*(x for x in tensors if isinstance(x, Tensor)))
    if reason is not None:
        raise BackendError(f"a sequence over ranks cannot serve this call: {reason}")


def _description(request: Request[Any]) -> str:
    """Say everything about this rank's part that must be the same on all ranks."""
    shared = [request.k, request.v, *([] if request.decay is None else [request.decay])]
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in shared)
    words = [f"{name} {tuple(getattr(request, name).shape)}" for name in "qkv"]
    words.append(str(request.q.dtype))
    words.append(re.sub(r" at 0x[0-9a-f]+", "", repr(request.mechanism)))
    words.append("Causal()" if request.causal else "FULL")
    words.append("padding" if real_keys(request.mask, request.q) is not None else "no padding")
    words.append("no decay" if request.decay is None else "decay")
    words.append("keys with gradients" if wanted else "keys without gradients")
    return ", ".join(words)


def _by_sums(
    request: Request[Kernel], real: Tensor | None, group: dist.ProcessGroup | None
) -> Tensor:
    """Return kernel attention, from the sums over keys that earlier ranks, or all ranks, have."""
    q, k, v, kernel, decay = request.q, request.k, request.v, request.mechanism, request.decay
    if not request.call.has_heads:
        q, k, v, decay = q[None], k[None], v[None], None if decay is None else decay[None]
    dtype = torch.promote_types(k.dtype, torch.float32)
    shape = (*k.shape[:-2], kernel.features.width(k.shape[-1]))
    zeros = (k.new_zeros((*shape, v.shape[-1]), dtype=dtype), k.new_zeros(shape, dtype=dtype))
    no_query = q[..., :0, :]
    _, outer, total = linear.extend(no_query, k, v, kernel, *zeros, real=real, decay=decay)
    log_gate = _log_gate(decay, real, like=total)
    some_key = total.new_ones(shape[:-1])
    if real is not None:
        some_key = some_key * real.any(-1, keepdim=True)
    sums = torch.cat([outer, total[..., None]], -1)
    before, reached = SumsBefore.apply(sums, log_gate, some_key, request.causal, group)
    if real is not None:
        q = torch.where(_looking(real, reached[..., 0], request.causal), q, 0)
    if not request.causal:  # the sums hold this rank's keys too
        k, v, real = k[..., :0, :], v[..., :0, :], None
    out, *_ = linear.extend(
        q, k, v, kernel, before[..., :-1], before[..., -1], real=real, decay=decay
    )
    return out if request.call.has_heads else out[0]


def _log_gate(decay: Tensor | None, real: Tensor | None, like: Tensor) -> Tensor:
    """Return the logarithm of what this rank's tokens leave of earlier sums: (*batch, kv_heads)."""
    if decay is None:
        return like.new_zeros(like.shape[:-1])
    if real is not None:
        decay = decay.masked_fill(~real[..., None, :], 0)
    return decay.to(like.dtype).sum(-1)


def _looking(real: Tensor, reached: Tensor, causal: bool) -> Tensor:
    """Say which queries see a real key, (*batch, 1, T or 1, 1); others may hold anything, NaN too.

    `reached` (*batch,) says whether the sums before this rank hold a real key.
    """
    looking = reached[..., None] > 0
    if causal:
        looking = looking | (real.cumsum(-1) > 0)
    return looking[..., None, :, None]


class SumsBefore(torch.autograd.Function):
    """The sums over the keys of all earlier ranks, or without `causal` of all ranks.

    With P_r the sums before rank r, S_r the sums over its own keys and g_r the product of its
    gates: P_0 = 0 and P_(r+1) = g_r P_r + S_r. The gradient of S_r is A_r, where
    A_r = g_(r+1) A_(r+1) + dP_(r+1), and that of log g_r is the sum of A_r * g_r P_r.
    """

    @staticmethod
    def forward(
        ctx: Any,
        sums: Tensor,
        log_gate: Tensor,
        some_key: Tensor,
        causal: bool,
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, Tensor]:
        """Return P (*batch, kv_heads, width, M + 1), and how many ranks it holds real keys of."""
        packed = torch.cat([sums.flatten(-2), log_gate[..., None], some_key[..., None]], -1)
        parts = _gathered(packed, group)
        every_sums = parts[..., :-2].unflatten(-1, sums.shape[-2:])
        gates, ranks_with_keys = parts[..., -2].exp()[..., None, None], parts[..., -1]
        ctx.causal, ctx.group, ctx.rank = causal, group, dist.get_rank(group)
        if causal:
            before = torch.zeros_like(sums)
            for earlier in range(ctx.rank):
                before = gates[earlier] * before + every_sums[earlier]
            reached = ranks_with_keys[: ctx.rank].sum(0)
        else:
            before, reached = every_sums.sum(0), ranks_with_keys.sum(0)
        ctx.save_for_backward(before, gates)
        ctx.mark_non_differentiable(reached)
        return before, reached

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of this rank's sums and gate, from those of what others read."""
        before, gates = ctx.saved_tensors
        grads = _gathered(grad, ctx.group)
        if not ctx.causal:
            return grads.sum(0), None, None, None, None
        after = torch.zeros_like(grad)
        for later in reversed(range(ctx.rank + 1, len(grads))):
            after = gates[later] * after + grads[later]
        log_gate = (after * gates[ctx.rank] * before).sum((-2, -1))
        return after, log_gate, None, None, None


def _by_gathering(
    request: Request[Any], real: Tensor | None, group: dist.ProcessGroup | None
) -> Tensor:
    """Return attention to the gathered keys and values of the ranks that these queries see."""
    start = dist.get_rank(group) * request.call.queries if request.causal else 0
    mask = Causal() if request.causal else FULL
    key_dim = request.call.key_dim
    both = AllTokens.apply(torch.cat([request.k, request.v], -1), group)
    seen = start + request.call.queries if request.causal else both.shape[-2]
    if real is not None:
        every = _gathered(real.to(torch.uint8), group)
        mask = mask & Padding(every.movedim(0, -2).flatten(-2)[..., :seen])
    k, v = both[..., :seen, :key_dim], both[..., :seen, key_dim:]
    return dispatch.attend(request.q, k, v, mechanism=request.mechanism, mask=mask, start=start)


class AllTokens(torch.autograd.Function):
    """The tokens (..., T, features) of all ranks, one rank after the other."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        """Return (..., n * T, features) from the parts (..., T, features) of n ranks."""
        ctx.group = group
        return _gathered(part, group).movedim(0, -3).flatten(-3, -2)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, None]:
        """Send every rank the gradient of its part, and sum up what comes, in float32 at least."""
        ranks = dist.get_world_size(ctx.group)
        sent = grad.unflatten(-2, (ranks, -1)).movedim(-3, 0).contiguous()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=ctx.group)
        wide = torch.promote_types(grad.dtype, torch.float32)
        return received.sum(0, dtype=wide).to(grad.dtype), None


def _gathered(part: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the parts of all ranks in a new first axis."""
    parts = part.new_empty((dist.get_world_size(group), *part.shape))
    dist.all_gather(list(parts.unbind(0)), part.contiguous(), group=group)
    return parts
