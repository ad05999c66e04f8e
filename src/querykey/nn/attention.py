"""Multi-head attention as a torch module: projections around `attend`, nothing else.

self-attention   MultiHeadAttention(64, AttentionConfig(heads=4), mask=Causal())(x)
cross-attention  MultiHeadAttention(64, AttentionConfig(heads=4))(x, source)
decoding         out, state = attention.extend(x, state)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from querykey.attention.masks import FULL, Mask, Padding
from querykey.attention.positions import Bias, Rotary
from querykey.attention.state import State, empty_state
from querykey.backends.dispatch import attend
from querykey.backends.step import follow
from querykey.nn.config import AttentionConfig

Turns = tuple[Any, Any]  # what Rotary.turns returns


class MultiHeadAttention(nn.Module):
    """Queries, keys and values of several heads, attention between them, and the heads joined."""

    def __init__(
        self,
        width: int,
        config: AttentionConfig,
        *,
        mask: Mask = FULL,
        bias: Bias | None = None,
        rotary: Rotary | None = None,
        source_width: int | None = None,
        backend: str = "auto",
    ):
        super().__init__()
        self.config, self.mask, self.bias = config, mask, bias
        self.rotary, self.backend = rotary, backend
        self.sizes = self.kv_heads, self.key_dim, self.value_dim = config.sizes(width)
        source_width = width if source_width is None else source_width
        inner, added = config.heads * self.value_dim, "qkv" in config.biases
        self.q = nn.Linear(width, config.heads * self.key_dim, bias=added)
        self.k = nn.Linear(source_width, self.kv_heads * self.key_dim, bias=added)
        self.v = nn.Linear(source_width, self.kv_heads * self.value_dim, bias=added)
        self.o = nn.Linear(inner, width, bias="output" in config.biases) if config.output else None

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        memory: tuple[Tensor, Tensor] | None = None,
        state: State | None = None,
        real: Tensor | None = None,
        bias: Bias | None = None,
        turns: Turns | None = None,
    ) -> Any:
        """Let the tokens x (batch, tokens, width) look at themselves, or at those of `source`.

        `memory` is what `memory(source)` returned. `real` (batch, keys) is True for the keys that
        exist. A state goes in and comes out: given one, x follows the tokens that it remembers, and
        (out, state after x) is returned. What all layers of a model share can be handed in: `bias`,
        and the rotary `turns` of these positions.
        """
        q = _split(self.q(x), self.config.heads)
        if source is not None:
            memory = self.memory(source)
        if memory is not None:
            return self._attend(q, *memory, real, self.bias)
        k, v = self.memory(x)
        if self.rotary is not None:
            if turns is None:
                turns = self.rotary.turns(token_positions(x, state, real), q)
            # Under autocast the turns are in float32, and the values are not.
            q, k = (self.rotary.turned(x, turns).to(v.dtype) for x in (q, k))
        bias = self.bias if bias is None else bias
        if state is None:
            return self._attend(q, k, v, real, bias)
        self._check_state(q, state)
        out, state = follow(q, k, v, state, real, bias=bias, backend=self.backend)
        return self._join(out), state

    def extend(self, x: Tensor, state: State, real: Tensor | None = None) -> tuple[Tensor, State]:
        """Return the outputs of new tokens and the state after them."""
        return self(x, state=state, real=real)

    def empty_state(
        self, batch: int = 1, capacity: int | None = None, like: Tensor | None = None
    ) -> State:
        """Return the state before the first token, in the dtype and on the device of `like`."""
        return empty_state(
            self.config.mechanism, self.mask, batch,
            kv_heads=self.kv_heads, key_dim=self.key_dim, value_dim=self.value_dim,
            capacity=capacity, like=self.q.weight.detach() if like is None else like,
        )  # fmt: skip

    def memory(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the tokens of `source`, split into heads."""
        return _split(self.k(source), self.kv_heads), _split(self.v(source), self.kv_heads)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, real: Any, bias: Any) -> Tensor:
        mask = self.mask if real is None else self.mask & Padding(real)
        out = attend(
            q, k, v, mechanism=self.config.mechanism, mask=mask, bias=bias, backend=self.backend
        )
        return self._join(out)

    def _check_state(self, q: Tensor, state: State) -> None:
        """Projections fit each other; what is left to ask is whether the state fits them."""
        memory, arrays = state.memory, state.arrays
        if (memory.kv_heads, memory.key_dim, memory.value_dim) != self.sizes:
            raise ValueError(f"this state is of another layer: {memory}")
        if len(state.counts) != q.shape[0]:
            raise ValueError(f"a state of {len(state.counts)} rows meets tokens of {len(q)}")
        if arrays and arrays[0].device != q.device:
            raise TypeError(f"the state is on {arrays[0].device}, the tokens are on {q.device}")

    def _join(self, out: Tensor) -> Tensor:
        joined = out.transpose(1, 2).reshape(out.shape[0], out.shape[2], -1)
        return joined if self.o is None else self.o(joined)

    def extra_repr(self) -> str:
        """Name what no submodule shows."""
        config = self.config
        parts = [f"{config.heads} heads"]
        if self.kv_heads != config.heads:
            parts.append(f"{self.kv_heads} key heads")
        parts += [f"keys of {self.key_dim}, values of {self.value_dim}", repr(config.mechanism)]
        if self.mask != FULL:
            parts.append(f"mask={self.mask}")
        parts += [repr(part) for part in (self.rotary, self.bias) if part is not None]
        return ", ".join(parts)


def token_positions(x: Tensor, state: State | None, real: Tensor | None) -> Tensor:
    """Return where new tokens (batch, tokens, ...) stand: (tokens,), or (batch, tokens).

    Only real tokens are counted, from those that the state has had on.
    """
    counts = (0,) if state is None else state.counts
    if real is None and len(set(counts)) < 2:
        first = counts[0] if counts else 0
        return torch.arange(first, first + x.shape[1], device=x.device)
    before = torch.tensor(counts, device=x.device)[:, None]
    if real is None:
        return before + torch.arange(x.shape[1], device=x.device)
    return before + (real != 0).cumsum(1).sub(1).clamp(min=0)


def _split(x: Tensor, heads: int) -> Tensor:
    """Turn (batch, tokens, heads * features) into (batch, heads, tokens, features)."""
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)
