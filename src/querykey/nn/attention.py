"""Multi-head attention as a torch module: projections around `attend`, nothing else.

self-attention   MultiHeadAttention(64, AttentionConfig(heads=4), mask=Causal())(x)
cross-attention  MultiHeadAttention(64, AttentionConfig(heads=4))(x, source)
decoding         out, state = attention.extend(x, state)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from querykey.attention.caches import Ways
from querykey.attention.heads import repeat_heads
from querykey.attention.masks import FULL, Mask, Padding
from querykey.attention.mechanisms import Argmax
from querykey.attention.positions import Bias, Rotary
from querykey.attention.reference import weighted_sum, weights
from querykey.attention.state import Recurrent, State, empty_state
from querykey.attention.state import follow as follow_by
from querykey.backends.dispatch import NAMES, BackendError, attend
from querykey.backends.step import follow
from querykey.nn.config import AttentionConfig

Turns = tuple[Any, Any]  # what Rotary.turns returns


class MultiHeadAttention(nn.Module):
    """Queries, keys and values of several heads, attention between them, and the heads joined."""

    backends = ("reference", "sdpa", "chunked", "triton")  # what `backend` may be, beside auto

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
        if backend not in ("auto", *NAMES):
            raise BackendError(f"there is no backend {backend!r} (auto, {', '.join(NAMES)})")
        self.config, self.mask, self.bias = config, mask, bias
        self.rotary, self.backend = rotary, backend
        self.sizes = self.kv_heads, self.key_dim, self.value_dim = config.sizes(width)
        source = width if source_width is None else source_width
        inner, added = config.heads * self.value_dim, "qkv" in config.biases
        self.q = nn.Linear(width, config.heads * self.key_dim, bias=added)
        self.k = nn.Linear(source, self.kv_heads * self.key_dim, bias=added)
        self.v = nn.Linear(source, self.kv_heads * self.value_dim, bias=added)
        self.o = nn.Linear(inner, width, bias="output" in config.biases) if config.output else None
        self.drop = nn.Dropout(config.dropout) if config.dropout else None
        # In a lean twin, one product for three; the tokens of a source are projected alone.
        self.fused = ("qkv", ("q", "k", "v") if source_width is None else ())
        self.qkv: Callable[[Tensor], Tensor] | None = None

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
        if x.ndim != 3:
            raise ValueError(f"attention takes (batch, tokens, width); got {tuple(x.shape)}")
        if source is not None:
            memory = self.memory(source)
        if memory is not None:
            return self._attend(_split(self.q(x), self.config.heads), *memory, real, self.bias)
        if self.rotary is not None and turns is None:
            like = x.new_empty(1, self.key_dim)
            turns = self.rotary.turns(token_positions(x, state, real), like)
        q, k, v = self._projected(x, turns)
        bias = self.bias if bias is None else bias
        if state is None:
            return self._attend(q, k, v, real, bias)
        q, k, v = self._fitted(q, k, v, state)
        if self.drop is not None and self.drop.training:
            out, state = follow_by(q, k, v, state, real, bias=bias, ways=Ways(self._attend_some))
        else:
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

    def _projected(self, x: Tensor, turns: Turns | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of the tokens x, split into heads and turned."""
        heads, rotary = self.config.heads, self.rotary
        if self.qkv is not None and self.key_dim == self.value_dim:
            both = heads + self.kv_heads
            qkv = _split(self.qkv(x), both + self.kv_heads)
            if rotary is None or turns is None:
                q, k, v = qkv.split_with_sizes((heads, self.kv_heads, self.kv_heads), 1)
                return q, k, v
            qk, v = qkv.split_with_sizes((both, self.kv_heads), 1)
            q, k = _turned(qk, rotary, turns).split_with_sizes((heads, self.kv_heads), 1)
            return q, k, v
        q, (k, v) = _split(self.q(x), heads), self.memory(x)
        if rotary is not None and turns is not None:
            q, k = _turned(q, rotary, turns), _turned(k, rotary, turns)
        return q, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, real: Any, bias: Any) -> Tensor:
        mask = self.mask if real is None else self.mask & Padding(real)
        options = {"mechanism": self.config.mechanism, "mask": mask, "bias": bias}
        if self.drop is not None and self.drop.training:
            return self._join(self._attend_some(q, k, v, **options))
        return self._join(attend(q, k, v, **options, backend=self.backend))

    def _attend_some(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Attend with some of the weights dropped: they are all written out for it."""
        assert self.drop is not None
        return weighted_sum(self.drop(weights(q, k, **options)), repeat_heads(v, q.shape[1]))

    def _fitted(
        self, q: Tensor, k: Tensor, v: Tensor, state: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v in the state's dtype, or say why it does not fit them.

        They fit each other. Under autocast they are in half precision, and a state was made before.
        """
        memory, arrays = state.memory, state.arrays
        if (memory.kv_heads, memory.key_dim, memory.value_dim) != self.sizes:
            raise ValueError(f"this state is of another layer: {memory}")
        if len(state.counts) != q.shape[0]:
            raise ValueError(f"a state of {len(state.counts)} rows meets tokens of {len(q)}")
        if arrays and arrays[0].device != q.device:
            raise TypeError(f"the state is on {arrays[0].device}, the tokens are on {q.device}")
        if arrays and arrays[0].dtype != q.dtype and not isinstance(state, Recurrent):
            return q.to(arrays[0].dtype), k.to(arrays[0].dtype), v.to(arrays[0].dtype)
        return q, k, v

    def _join(self, out: Tensor) -> Tensor:
        batch, heads, tokens, size = out.shape
        if tokens > 1:
            out = out.transpose(1, 2)
        joined = out.reshape(batch, tokens, heads * size)
        return joined if self.o is None else self.o(joined)

    @property
    def breaks_laws(self) -> dict[str, str]:
        """What `qk check` is told that it breaks by design, and why."""
        if not isinstance(self.config.mechanism, Argmax):
            return {}
        return {"gradient.reaches": "the choice of the best key has no derivative (Argmax)"}

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
    if real is not None and real.shape != x.shape[:2]:
        raise ValueError(f"real is {tuple(real.shape)}, and the tokens are {tuple(x.shape[:2])}")
    if real is None and len(set(counts)) < 2:
        first = counts[0] if counts else 0
        return torch.arange(first, first + x.shape[1], device=x.device)
    before = torch.tensor(counts, device=x.device)[:, None]
    if real is None:
        return before + torch.arange(x.shape[1], device=x.device)
    return before + (real != 0).cumsum(1).sub(1).clamp(min=0)


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
    if tokens == 1:  # the same numbers in one step less, at every token of a decoder
        return x.view(batch, heads, 1, width // heads)
    return x.view(batch, tokens, heads, width // heads).transpose(1, 2)
