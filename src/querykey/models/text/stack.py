"""Stack: blocks one after the other, and what they share: rotations, biases, the last norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from querykey.attention import (
    FULL,
    ALiBi,
    Bias,
    Buckets,
    Causal,
    Mask,
    Rotary,
    State,
    Window,
    row_numbers,
)
from querykey.errors import QuerykeyError, WrongTypeError
from querykey.models.text.config import DecoderConfig, Distances, EncoderConfig
from querykey.models.text.embedding import check_ids
from querykey.nn import (
    Block,
    SourceMemory,
    Turns,
    check_whole,
    document_positions,
    make_norm,
    token_positions,
)
from querykey.words import a_type


@dataclass(frozen=True, eq=False)
class ModelState:
    """The state of every layer after the tokens so far, and the source they attend to, if any."""

    layers: tuple[State, ...]
    memory: tuple[SourceMemory, ...] | None = None
    turns: Tensor | None = None  # rotary turns of the positions that there is room for

    @property
    def counts(self) -> tuple[int, ...]:
        """How many tokens each row has had."""
        return self.layers[0].counts

    @property
    def lengths(self) -> Tensor:
        """How many tokens each row has had, as a tensor (batch,)."""
        return self.layers[0].lengths

    @property
    def nbytes(self) -> int:
        """How many bytes the tensors of all layers take."""
        held = sum(layer.nbytes for layer in self.layers)
        return held + sum(m.keys.nbytes + m.values.nbytes for m in self.memory or ())

    def select(self, rows: Sequence[int] | Tensor) -> ModelState:
        """Return the state with these rows of the batch, in this order, repeated where they are."""
        rows = row_numbers(rows, len(self.counts))
        memory = self.memory
        if memory is not None:
            memory = tuple(
                SourceMemory(m.keys[rows], m.values[rows], None if m.real is None else m.real[rows])
                for m in memory
            )
        return ModelState(tuple(layer.select(rows) for layer in self.layers), memory, self.turns)


def known_state(state: Any) -> ModelState:
    """Return a model's state, or refuse what is none."""
    if not isinstance(state, ModelState):
        raise WrongTypeError(f"a state comes from `empty_state`; got {type(state).__name__}")
    return state


class Stack(nn.Module):
    """The blocks of an encoder or a decoder; the model's kind decides the mask of each."""

    def __init__(self, config: EncoderConfig | DecoderConfig, source_width: int | None = None):
        super().__init__()
        self.positions, self.config = config.positions, config.block
        rotary = config.positions if isinstance(config.positions, Rotary) else None
        self.rotary, self.key_dim = rotary, config.block.attention.sizes(config.block.width)[1]
        bias = config.positions if isinstance(config.positions, ALiBi) else None
        self.blocks = nn.ModuleList(
            Block(config.block, mask=mask, rotary=rotary, bias=bias, source_width=source_width)
            for mask in masks(config)
        )
        self.both_ways = isinstance(config, EncoderConfig)
        self.distances = None
        heads = config.block.attention.heads
        if isinstance(config.positions, Distances):
            self.distances = nn.Embedding(config.positions.buckets, heads)
        # Rotations and biases that fit no token raise their own error here, before training.
        self.turns(1, torch.empty(0))
        rule = self._bias() if bias is None else bias
        if rule is not None and not rule.fits(heads):
            raise QuerykeyError(f"{rule} does not fit {heads} heads")
        # With the norm before each part, nothing has normed what the last part added.
        before = config.block.norm.place == "before"
        self.norm = make_norm(config.block.norm, config.block.width) if before else nn.Identity()

    def where(
        self,
        ids: Tensor,
        state: ModelState | None,
        real: Tensor | None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Return the positions of new tokens: (tokens,), or (batch, tokens) where rows differ."""
        check_ids(ids)
        if real is not None and not (isinstance(real, Tensor) and real.layout == torch.strided):
            kind = "a sparse tensor" if isinstance(real, Tensor) else f"{a_type(real)}"
            raise WrongTypeError(f"real is a dense torch tensor (batch, tokens); got {kind}")
        if real is not None and real.device != ids.device:
            raise QuerykeyError(f"real is on {real.device}, and the token ids are on {ids.device}")
        if documents is not None:
            check_documents(documents, ids)
        positions = token_positions(ids, None if state is None else state.layers[0], real)
        return positions if documents is None else document_positions(positions, documents)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        state: ModelState | None = None,
        real: Tensor | None = None,
        memory: tuple[SourceMemory, ...] | None = None,
        documents: Tensor | None = None,
    ) -> tuple[Tensor, ModelState | None]:
        """Run tokens (batch, tokens, width) through all blocks, after those that `state` has had.

        Without a state they come first, and nothing is kept of them.
        """
        turns = self._turns(positions, x, state)
        shared: dict[str, Any] = {"real": real, "bias": self._bias(), "turns": turns}
        shared["documents"] = documents
        if memory is None:
            memory = None if state is None else state.memory
        if state is not None and len(state.layers) != len(self.blocks):
            raise QuerykeyError(
                f"a state of {len(state.layers)} layers meets a model of {len(self.blocks)}"
            )
        states = []
        for number, block in enumerate(self.blocks):
            source = None if memory is None else memory[number]
            if state is None:
                x = block(x, source, **shared)
            else:
                x, after = block(x, source, state=state.layers[number], **shared)
                states.append(after)
        if state is None:
            return self.norm(x), None
        return self.norm(x), ModelState(tuple(states), state.memory, state.turns)

    @property
    def layers(self) -> list[Block]:
        """The blocks as a list, with their type for the checker."""
        return cast("list[Block]", list(self.blocks))

    def turns(self, count: int, like: Tensor) -> Tensor | None:
        """Return the rotary turns of the first positions, both parts beside each other."""
        if self.rotary is None or count == 0:
            return None
        where = torch.arange(count, device=like.device)
        return torch.cat(self.rotary.turns(where, like.new_empty(1, self.key_dim)), -1)

    def _turns(self, positions: Tensor, x: Tensor, state: ModelState | None) -> Turns | None:
        """Return the turns of these positions: from the state's table, if that has them all."""
        if self.rotary is None:
            return None
        table = None if state is None else state.turns
        most = 0 if state is None else max(state.counts, default=0)  # of one row
        if (
            table is None
            or most + x.shape[1] > len(table)
            or table.dtype != x.dtype
            or (table.is_inference() and not torch.is_inference_mode_enabled())
        ):
            return self.rotary.turns(positions, x.new_empty(1, self.key_dim))
        if positions.ndim == 1:  # every row has had as many
            rows = table.narrow(0, most, x.shape[1])
        else:
            rows = table[positions][:, None]
        cos, sin = rows.chunk(2, -1)
        return cos, sin

    def _bias(self) -> Bias | None:
        if self.distances is None or not isinstance(self.positions, Distances):
            return None
        return Buckets(self.distances.weight, self.both_ways, self.positions.furthest)

    def memory(self, source: Tensor, real: Tensor | None) -> tuple[SourceMemory, ...]:
        """Return the keys and values of another sequence for each block that attends to it."""
        return tuple(block.remember(source, real) for block in self.layers)


def check_documents(documents: Any, ids: Tensor) -> None:
    """Refuse what does not say of every token which document it is of."""
    check_whole("documents", documents, "(batch, tokens)")
    if documents.shape != ids.shape or documents.device != ids.device:
        raise QuerykeyError(
            f"documents are {tuple(ids.shape)} on {ids.device}, as the token ids are; "
            f"got {tuple(documents.shape)} on {documents.device}"
        )


def masks(config: EncoderConfig | DecoderConfig) -> tuple[Mask, ...]:
    """Return the mask of every layer (document 001, question 2b); padding comes with the call.

    Encoders hide padding alone. Decoders hide the future, and what a window leaves out. Attention
    over a source hides the source's padding alone.
    """
    if isinstance(config, EncoderConfig):
        return (FULL,) * config.layers
    return tuple(
        Causal() if size is None else Causal() & Window(size) for size in config.window_of_each
    )
