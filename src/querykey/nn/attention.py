"""Multi-head attention as a torch module: projections around `attend`, nothing else.

self-attention   MultiHeadAttention(64, AttentionConfig(heads=4), mask=Causal())(x)
cross-attention  MultiHeadAttention(64, AttentionConfig(heads=4))(x, source)
decoding         out, state = attention.extend(x, state)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.attention import (
    FULL,
    Bias,
    Documents,
    Mask,
    Padding,
    Recurrent,
    Rotary,
    State,
    blank,
    check_takes_decay,
    empty_state,
    join_heads,
    repeat_heads,
    split_heads,
    weighted_sum,
    weights,
)
from querykey.backends import attend, check_name, follow
from querykey.errors import QuerykeyError, WrongTypeError
from querykey.nn.config import AttentionConfig
from querykey.nn.tensors import cast_once, check_floats, check_meets, one_product
from querykey.words import checked, room_for, whole

Turns = tuple[Any, Any]  # what Rotary.turns returns


class MultiHeadAttention(nn.Module):
    """Queries, keys and values of several heads, attention between them, and the heads joined."""

    backends = ("reference", "sdpa", "chunked", "triton")  # what `backend` may be, beside auto

    @checked
    def __init__(
        self,
        width: int,
        config: AttentionConfig | int,
        *,
        mask: Mask = FULL,
        bias: Bias | None = None,
        rotary: Rotary | None = None,
        source_width: int | None = None,
        backend: str = "auto",
    ):
        """Make the layer for tokens of `width` features; a number for config counts the heads."""
        super().__init__()
        check_name(backend)
        whole("width", width)
        config = config if isinstance(config, AttentionConfig) else AttentionConfig(config)
        self.width, self.config, self.mask, self.bias = width, config, mask, bias
        self.rotary, self.backend, self.source_width = rotary, backend, source_width
        self.sizes = self.kv_heads, self.key_dim, self.value_dim = config.sizes(width)
        source = width if source_width is None else whole("source_width", source_width)
        inner, added = config.heads * self.value_dim, "qkv" in config.biases
        with room_for(f"attention of width {width}"):
            self.q = nn.Linear(width, config.heads * self.key_dim, bias=added)
            self.k = nn.Linear(source, self.kv_heads * self.key_dim, bias=added)
            self.v = nn.Linear(source, self.kv_heads * self.value_dim, bias=added)
            self.o = None
            if config.output:
                self.o = nn.Linear(inner, width, bias="output" in config.biases)
        self.drop = nn.Dropout(config.dropout) if config.dropout else None
        self.gate = None
        if config.decay and source_width is None:
            check_takes_decay(config.mechanism, mask)
            self.gate = nn.Linear(width, self.kv_heads)
            self.open_gates()

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
        documents: Tensor | None = None,
    ) -> Any:
        """Let the tokens x (batch, tokens, width) attend to themselves, or to those of `source`.

        `memory` is what `memory(source)` returned. `real` (batch, keys) is True for the keys that
        exist. With a state, x follows the tokens that the state has seen, and (out, the state after
        x) is returned. A model whose layers share a bias or the rotary `turns` of these positions
        computes them once and passes them to every layer. With `documents` (batch, tokens), whole
        numbers, a token sees only those of its own document.
        """
        if not isinstance(x, Tensor):
            raise WrongTypeError(f"attention takes a tensor of floats; got {type(x).__name__}")
        if x.ndim != 3 or x.shape[-1] != self.width or not x.is_floating_point():
            raise QuerykeyError(
                f"attention takes floats (batch, tokens, {self.width}); "
                f"got {x.dtype} {tuple(x.shape)}"
            )
        check_meets("x", x, self.q)
        if source is not None:
            memory = self.memory(source)
        if state is not None and not isinstance(state, State):
            raise WrongTypeError(f"a state comes from `empty_state`; got {type(state).__name__}")
        if memory is not None:
            q = split_heads(self.q(x), self.config.heads)
            return self.join(self.attend(q, *memory, real, self.bias, None))
        if self.rotary is not None and turns is None:
            like = x.new_empty(1, self.key_dim)
            turns = self.rotary.turns(token_positions(x, state, real), like)
        q, k, v = self.project(x, turns)
        bias, decay = self.bias if bias is None else bias, self.decay(x)
        if state is None:
            return self.join(self.attend(q, k, v, real, bias, decay, documents))
        if documents is not None:
            raise QuerykeyError("with a state every row is one document, so `documents` is None")
        q, k, v = self._in_dtype_of(state, q, k, v)
        out, state = self.follow(q, k, v, state, real, bias, decay)
        return self.join(out), state

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
        check_floats("the other sequence", source, self.source_width or self.width, self.k)
        source = cast_once(source)
        k, v = self.k(source), self.v(source)
        return split_heads(k, self.kv_heads), split_heads(v, self.kv_heads)

    def project(self, x: Tensor, turns: Turns | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of the tokens x, split into heads and turned."""
        x = cast_once(x)
        q, k, v = one_product(x, (self.q, self.k, self.v))
        q = split_heads(q, self.config.heads)
        k, v = split_heads(k, self.kv_heads), split_heads(v, self.kv_heads)
        if self.rotary is not None and turns is not None:
            # Under autocast the turns are in float32, and queries and keys are not.
            q, k = (self.rotary.turned(part, turns).to(part.dtype) for part in (q, k))
        return q, k, v

    def decay(self, x: Tensor) -> Tensor | None:
        """Return log sigmoid(W x + b), (batch, kv_heads, tokens); None without a gate."""
        return None if self.gate is None else F.logsigmoid(self.gate(x)).transpose(1, 2)

    def open_gates(self) -> None:
        """Set b so that the key heads remember 32 to 512 tokens at first (Sun et al., 2023)."""
        if self.gate is not None:
            spans = torch.logspace(5, 9, self.kv_heads, base=2)
            with torch.no_grad():
                self.gate.bias.copy_((spans - 1).log())  # sigmoid(b) = 1 - 1 / span

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        real: Any,
        bias: Any,
        decay: Tensor | None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Return what the queries gather from all keys that the mask leaves visible."""
        mask = self.mask if real is None else self.mask & Padding(real)
        mask = mask if documents is None else mask & Documents(documents)
        options = {"mechanism": self.config.mechanism, "mask": mask, "bias": bias}
        if self.drop is not None and self.drop.training:
            return self._attend_with_dropout(q, k, v, **options)
        return attend(q, k, v, **options, decay=decay, backend=self.backend)

    def follow(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: State,
        real: Any,
        bias: Any,
        decay: Tensor | None,
    ) -> tuple[Tensor, State]:
        """Return what new tokens gather from the state and from each other, and the next state."""
        if self.drop is not None and self.drop.training:
            return self._follow_with_dropout(q, k, v, state, real, bias)
        return follow(q, k, v, state, real, bias=bias, decay=decay, backend=self.backend)

    def join(self, out: Tensor) -> Tensor:
        """Turn (batch, heads, tokens, value_dim) into (batch, tokens, width)."""
        joined = join_heads(out)
        return joined if self.o is None else self.o(joined)

    def _attend_with_dropout(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Attend with some weights set to 0, which takes all weights written out."""
        assert self.drop is not None
        return weighted_sum(self.drop(weights(q, k, **options)), repeat_heads(v, q.shape[1]))

    def _follow_with_dropout(
        self, q: Tensor, k: Tensor, v: Tensor, state: State, real: Any, bias: Any
    ) -> tuple[Tensor, State]:
        """Do as `follow`, with some weights set to 0."""
        new = state.chunk(q, k, v, real)
        if new.tokens == 0:
            return blank(q, v), state
        reading, after = state.reading(new, learning=bias is not None)
        out = self._attend_with_dropout(
            new.q, reading.keys, reading.values, mechanism=self.config.mechanism,
            mask=reading.mask, bias=bias, start=reading.start,
        )  # fmt: skip
        return new.restore(out), after

    def _in_dtype_of(
        self, state: State, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v in the state's dtype, or raise the error that says why it differs.

        Under autocast q, k and v are in half precision, and a state made before it is not.
        """
        memory, arrays = state.memory, state.arrays
        if (memory.kv_heads, memory.key_dim, memory.value_dim) != self.sizes:
            raise QuerykeyError(f"this state is of another layer: {memory}")
        if len(state.counts) != q.shape[0]:
            raise QuerykeyError(f"a state of {len(state.counts)} rows meets tokens of {len(q)}")
        if arrays and arrays[0].device != q.device:
            raise WrongTypeError(
                f"the state is on {arrays[0].device}, the tokens are on {q.device}"
            )
        if arrays and arrays[0].dtype != q.dtype and not isinstance(state, Recurrent):
            return q.to(arrays[0].dtype), k.to(arrays[0].dtype), v.to(arrays[0].dtype)
        return q, k, v

    @property
    def breaks_laws(self) -> dict[str, str]:
        """The laws of `qk check` that this module breaks by design, each with the reason."""
        if self.config.mechanism.differentiable:
            return {}
        return {"gradient.reaches": "the choice of the best key has no derivative (Argmax)"}

    def extra_repr(self) -> str:
        """Return what the module prints of itself beside its submodules."""
        config = self.config
        parts = [f"{config.heads} heads"]
        if self.kv_heads != config.heads:
            parts.append(f"{self.kv_heads} key heads")
        parts += [f"keys of {self.key_dim}, values of {self.value_dim}", repr(config.mechanism)]
        if self.mask != FULL:
            parts.append(f"mask={self.mask}")
        parts += [repr(part) for part in (self.rotary, self.bias) if part is not None]
        return ", ".join(parts)


def document_positions(positions: Tensor, documents: Tensor) -> Tensor:
    """Return positions (batch, tokens) counted anew from the first token of every document.

    `documents` (batch, tokens) has the same whole number for all tokens of a document, which stand
    beside each other.
    """
    if documents.ndim != 2 or documents.shape[-1] != positions.shape[-1]:
        raise QuerykeyError(
            f"documents are (batch, {positions.shape[-1]}), as the tokens are; "
            f"got {tuple(documents.shape)}"
        )
    change = documents[:, 1:] != documents[:, :-1]
    first = torch.cat([torch.ones_like(change[:, :1]), change], 1)
    return positions - torch.where(first, positions, 0).cummax(1).values


def token_positions(x: Tensor, state: State | None, real: Tensor | None) -> Tensor:
    """Return where new tokens (batch, tokens, ...) stand: (tokens,), or (batch, tokens).

    Only real tokens are counted, from those that the state has had on.
    """
    counts = (0,) if state is None else state.counts
    if real is not None and real.shape != x.shape[:2]:
        raise QuerykeyError(f"real is {tuple(real.shape)}, and the tokens are {tuple(x.shape[:2])}")
    if real is None and len(set(counts)) < 2:
        first = counts[0] if counts else 0
        return torch.arange(first, first + x.shape[1], device=x.device)
    before = torch.tensor(counts, device=x.device)[:, None]
    if real is None:
        return before + torch.arange(x.shape[1], device=x.device)
    return before + (real != 0).cumsum(1).sub(1).clamp(min=0)
