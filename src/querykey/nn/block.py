"""A transformer block: attention, attention over another sequence where there is one, an MLP."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from querykey.attention import FULL, Bias, Mask, Rotary, State
from querykey.errors import QuerykeyError
from querykey.nn.attention import MultiHeadAttention, Turns
from querykey.nn.config import BlockConfig
from querykey.nn.mlp import MLP
from querykey.nn.norms import make_norm
from querykey.nn.tensors import check_floats, check_whole
from querykey.words import checked


class SourceMemory(NamedTuple):
    """Keys and values of another sequence, and which of its tokens are real."""

    keys: Tensor
    values: Tensor
    real: Tensor | None = None


class Block(nn.Module):
    """Attention, then an MLP: each is x + part(norm(x)), or norm(x + part(x)) with norms after."""

    @checked
    def __init__(
        self,
        config: BlockConfig,
        *,
        mask: Mask = FULL,
        rotary: Rotary | None = None,
        bias: Bias | None = None,
        source_width: int | None = None,
        backend: str = "auto",
    ):
        """Make the block; with a `source_width` it also looks at another sequence of that width."""
        super().__init__()
        self.config, self.before = config, config.norm.place == "before"
        width = config.width
        self.attention_norm = make_norm(config.norm, width)
        self.attention = MultiHeadAttention(
            width, config.attention, mask=mask, rotary=rotary, bias=bias, backend=backend
        )
        self.cross_norm = self.cross = None
        if source_width is not None:
            self.cross_norm = make_norm(config.norm, width)
            self.cross = MultiHeadAttention(
                width, config.attention, source_width=source_width, backend=backend
            )
        self.mlp_norm = make_norm(config.norm, width)
        self.mlp = MLP(width, config.mlp)
        self.dropout = nn.Dropout(config.dropout) if config.dropout else None

    def forward(
        self,
        x: Tensor,
        memory: SourceMemory | None = None,
        *,
        state: State | None = None,
        real: Tensor | None = None,
        bias: Bias | None = None,
        turns: Turns | None = None,
        documents: Tensor | None = None,
    ) -> Any:
        """Turn tokens (batch, tokens, width) into as many; `real` (batch, tokens) hides padding.

        A token sees only those with its own number in `documents` (batch, tokens), where given.
        With a state, x follows the tokens that it remembers: returns (out, the state after x).
        `memory` is what a block with a `source_width` looks at, from `remember`.
        """
        check_floats("x", x, self.config.width, self.attention.q)
        out = self.attention(
            self.attention_norm(x) if self.before else x,
            state=state, real=real, bias=bias, turns=turns, documents=documents,
        )  # fmt: skip
        if state is not None:
            out, state = out
        x = self._joined(x, out, self.attention_norm, "attention")
        if self.cross is not None and self.cross_norm is not None:
            out = self._attend_to_source(self.cross_norm(x) if self.before else x, memory)
            x = self._joined(x, out, self.cross_norm, "attention")
        out = self.mlp(self.mlp_norm(x) if self.before else x)
        x = self._joined(x, out, self.mlp_norm, "mlp")
        return x if state is None else (x, state)

    def remember(self, source: Tensor, real: Tensor | None = None) -> SourceMemory:
        """Return the keys and values of another sequence (batch, tokens, width) for this block."""
        if self.cross is None:
            raise QuerykeyError("this block looks at no other sequence; give it a source_width")
        if real is not None:
            check_whole("real", real, "(batch, tokens)")
        return SourceMemory(*self.cross.memory(source), real)

    def _attend_to_source(self, x: Tensor, memory: SourceMemory | None) -> Tensor:
        if self.cross is None or memory is None:
            raise QuerykeyError("this block looks at another sequence, and none was given")
        return self.cross(x, memory=(memory.keys, memory.values), real=memory.real)

    def _joined(self, x: Tensor, out: Tensor, norm: nn.Module, name: str) -> Tensor:
        """Add a part's input to what it returned, and norm the sum where the norm comes after."""
        if self.dropout is not None:
            out = self.dropout(out)
        if name in self.config.residual:
            out = x + out
        return out if self.before else norm(out)

    def extra_repr(self) -> str:
        """Return what the module prints of itself: where norms and residual sums are."""
        config = self.config
        norm = "no norm" if config.norm.kind == "none" else f"norm {config.norm.place}"
        joined = " and ".join(config.residual) or "nothing"
        return f"{norm}, residual around {joined}"
