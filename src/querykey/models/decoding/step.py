"""Shorter ways through attention and the MLP for the few tokens of a decoding step.

Each function here does what the method of the same name does on a module of `querykey.nn`, in fewer
steps of torch, and falls back to that method wherever it cannot. `lean` puts them into the twins
that generation runs: a small model spends more time on such steps than on its matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.attention import Causal, Growing, Rotary, Softmax, State
from querykey.nn import MLP, MultiHeadAttention, Turns, activate


def joined_layers(module: nn.Module) -> tuple[str, tuple[str, ...]]:
    """Return the linear layers of a module that become one product, after that product's name."""
    if isinstance(module, MLP) and module.gate is not None:
        return "gate_and_up", ("gate", "up")
    if isinstance(module, MultiHeadAttention) and module.key_dim == module.value_dim:
        # The tokens of a source are projected alone, once.
        return "qkv", ("q", "k", "v") if module.source_width is None else ()
    return "", ()


def project(
    self: MultiHeadAttention, x: Tensor, turns: Turns | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values from one product, where the twin has one."""
    product: Callable[[Tensor], Tensor] | None = getattr(self, "qkv", None)
    if product is None:
        return _PROJECT(self, x, turns)
    queries, keys = self.config.heads, self.kv_heads
    qkv = _split(product(x), queries + 2 * keys)
    if self.rotary is None or turns is None:
        q, k, v = qkv.split_with_sizes((queries, keys, keys), 1)
        return q, k, v
    qk, v = qkv.split_with_sizes((queries + keys, keys), 1)
    q, k = _turned(qk, self.rotary, turns).split_with_sizes((queries, keys), 1)
    return q, k, v


def follow(
    self: MultiHeadAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: State,
    real: Any,
    bias: Any,
    decay: Tensor | None,
) -> tuple[Tensor, State]:
    """Let new tokens attend by torch's kernel at once, where that is all that it takes."""
    plain = real is None and bias is None and decay is None
    if plain and self.drop is None and self.backend == "auto":
        done = attend_plainly(q, k, v, state)
        if done is not None:
            return done
    return _FOLLOW(self, q, k, v, state, real, bias, decay)


def attend_plainly(q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, Growing] | None:
    """Attend by causal softmax to everything so far: one token more, or the first tokens.

    Rows are all of one length, and the new keys and values are written behind the old ones. None is
    returned where it takes more than that, such as a larger buffer or a mask.
    """
    if type(state) is not Growing or state.room is None:
        return None
    memory, room, counts, tokens = state.memory, state.room, state.counts, q.shape[2]
    mechanism, before = memory.mechanism, counts[0] if counts else 0
    if (
        type(mechanism) is not Softmax
        or mechanism.softcap is not None
        or type(memory.mask) is not Causal
        or memory.key_dim != memory.value_dim
        or room.owner is not state.owner
        or before + tokens > room.capacity
        or counts.count(before) != len(counts)
        or torch.is_grad_enabled()
        or (room.keys.is_inference() and not torch.is_inference_mode_enabled())
    ):
        return None
    # torch scales the -inf of its own mask too, so that a scale of 0 or below makes NaN of it.
    scale = mechanism.scale
    if tokens != 1 and (before or tokens == 0 or (scale is not None and scale <= 0)):
        return None
    after = before + tokens
    room.keys.narrow(2, before, tokens).copy_(k)
    room.values.narrow(2, before, tokens).copy_(v)
    room.owner = owner = object()
    out = F.scaled_dot_product_attention(
        q, room.keys.narrow(2, 0, after), room.values.narrow(2, 0, after),
        is_causal=tokens > 1, scale=scale, enable_gqa=q.shape[1] != memory.kv_heads,
    )  # fmt: skip
    return out, Growing(memory, (after,) * len(counts), state.capacity, room, owner)


def join(self: MultiHeadAttention, out: Tensor) -> Tensor:
    """Join the heads: those of one token lie beside each other already."""
    batch, heads, tokens, size = out.shape
    if tokens > 1:
        out = out.transpose(1, 2)
    joined = out.reshape(batch, tokens, heads * size)
    return joined if self.o is None else self.o(joined)


def hidden(self: MLP, x: Tensor) -> Tensor:
    """Return the hidden layer of a gated MLP from one product, where the twin has one."""
    product: Callable[[Tensor], Tensor] | None = getattr(self, "gate_and_up", None)
    if product is None:
        return _HIDDEN(self, x)
    gate, up = product(x).chunk(2, -1)
    return activate(self.activation, gate) * up


_PROJECT, _FOLLOW = MultiHeadAttention.project, MultiHeadAttention.follow
_HIDDEN = MLP.hidden
# By the function that is replaced: a class whose own function was changed keeps that one.
SHORTER: dict[Any, Any] = {
    MultiHeadAttention.project: project,
    MultiHeadAttention.follow: follow,
    MultiHeadAttention.join: join,
    MLP.hidden: hidden,
}


def _turned(x: Tensor, rotary: Rotary, turns: Turns) -> Tensor:
    """Do as `rotary.turned`, in fewer steps where all features turn, each with the other half."""
    cos, sin = turns
    if rotary.layout == "half" and cos.shape[-1] == x.shape[-1]:
        turned = x * cos + x.roll(x.shape[-1] // 2, -1) * sin
    else:
        turned = rotary.turned(x, turns)
    # Under autocast the turns are in float32, and what is turned is not.
    return turned if turned.dtype == x.dtype else turned.to(x.dtype)


def _split(x: Tensor, heads: int) -> Tensor:
    """Turn (batch, tokens, heads * features) into (batch, heads, tokens, features)."""
    batch, tokens, width = x.shape
    if tokens == 1:  # the same numbers in one step less
        return x.view(batch, heads, 1, width // heads)
    return x.view(batch, tokens, heads, width // heads).transpose(1, 2)
