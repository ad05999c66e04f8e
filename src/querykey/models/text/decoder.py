"""Encoder, Decoder and EncoderDecoder: models over tokens, each from its config.

    model = Decoder(DecoderConfig(...))
    logits = model(ids)                            # training
    state = model.empty_state(batch=1)
    logits, state = model.extend(ids, state)       # a prompt, then token by token

`real` (batch, tokens), True or 1 for real tokens, may hide any tokens at either end: they change
nothing, and positions count real tokens only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from querykey.models.text.config import (
    ClassHead,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    TokenHead,
)
from querykey.models.text.embedding import Embedding
from querykey.models.text.heads import ClassScores, TokenScores, initialise
from querykey.models.text.stack import ModelState, Stack
from querykey.nn import activate


class Encoder(nn.Module):
    """Token ids in; hidden states, or the scores of its head, out. Padding is hidden, no more."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.config = config
        width = config.block.width
        self.embed = Embedding(config.embedding, width, config.positions, config.block.norm)
        self.stack = Stack(config)
        self.pooler = None if config.pooler is None else nn.Linear(width, width)
        self.head = None
        if isinstance(config.head, TokenHead):
            self.head = TokenScores(config.head, config.block, self.embed.tokens)
        elif isinstance(config.head, ClassHead):
            self.head = ClassScores(config.head, width)
        initialise(self)

    def tie(self) -> None:
        """Make what the config calls tied one tensor again, after tensors were replaced."""
        if isinstance(self.head, TokenScores):
            self.head.tie(self.embed.tokens)

    def forward(
        self, ids: Tensor, real: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """Return (batch, tokens, width), (batch, tokens, vocabulary) or (batch, classes)."""
        hidden = self.hidden(ids, real, types)
        if isinstance(self.head, ClassScores):
            return self.head(first_real(hidden, real))
        return hidden if self.head is None else self.head(hidden)

    def hidden(
        self, ids: Tensor, real: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """Return the hidden states of the last layer, (batch, tokens, width)."""
        where = self.stack.where(ids, None, real)
        return self.stack(self.embed(ids, where, types, real), where, real=real)[0]

    def pooled(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Return activation(W x) of each sequence's first real token, (batch, width)."""
        if self.pooler is None or self.config.pooler is None:
            raise ValueError("this model has no pooler; its config asks for none")
        return activate(self.config.pooler, self.pooler(first_real(hidden, real)))


class Decoder(nn.Module):
    """Token ids in, scores of the next token out. The future is hidden, and padding."""

    def __init__(self, config: DecoderConfig, source_width: int | None = None):
        super().__init__()
        self.config = config
        width = config.block.width
        self.embed = Embedding(config.embedding, width, config.positions, config.block.norm)
        self.stack = Stack(config, source_width)
        self.head = None
        if config.head is not None:
            self.head = TokenScores(config.head, config.block, self.embed.tokens)
        initialise(self)

    def tie(self) -> None:
        """Make what the config calls tied one tensor again, after tensors were replaced."""
        if self.head is not None:
            self.head.tie(self.embed.tokens)

    def forward(self, ids: Tensor, real: Tensor | None = None) -> Tensor:
        """Return (batch, tokens, vocabulary); hidden states where the config asks for no head."""
        return self.scores(self.hidden(ids, real))

    def hidden(self, ids: Tensor, real: Tensor | None = None) -> Tensor:
        """Return the hidden states of the last layer, (batch, tokens, width)."""
        return self.step(ids, None, real)[0]

    def scores(self, hidden: Tensor) -> Tensor:
        """Return what the head says of hidden states."""
        return hidden if self.head is None else self.head(hidden)

    def empty_state(self, batch: int = 1, capacity: int | None = None) -> ModelState:
        """Return the state before the first token, with room for `capacity` tokens at once."""
        like = self.embed.tokens.weight.detach()
        layers = (block.attention.empty_state(batch, capacity, like) for block in self.stack.layers)
        return ModelState(tuple(layers), turns=self.stack.turns(capacity or 0, like))

    def extend(
        self, ids: Tensor, state: ModelState, real: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """Return the scores of new tokens (batch, tokens), and the state after them."""
        hidden, after = self.step(ids, state, real)
        assert after is not None
        return self.scores(hidden), after

    def begin(self, ids: Tensor, real: Tensor | None, capacity: int) -> tuple[Tensor, ModelState]:
        """Return what generation reads first, and the state before it."""
        return ids, self.empty_state(len(ids), capacity)

    def step(
        self, ids: Tensor, state: ModelState | None, real: Tensor | None = None
    ) -> tuple[Tensor, ModelState | None]:
        """Return hidden states of new tokens and the state after them: the one way through."""
        where = self.stack.where(ids, state, real)
        return self.stack(self.embed(ids, where, None, real), where, state, real)


class EncoderDecoder(nn.Module):
    """A source sequence in; scores of the next token of a target sequence out."""

    def __init__(self, config: EncoderDecoderConfig):
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.encoder)
        self.decoder = Decoder(config.decoder, source_width=config.encoder.block.width)
        self.tie()

    def tie(self) -> None:
        """Make what the config calls shared one tensor again, after tensors were replaced."""
        if self.config.shared:
            self.encoder.embed.tokens.weight = self.decoder.embed.tokens.weight
        self.decoder.tie()

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_real: Tensor | None = None,
        real: Tensor | None = None,
    ) -> Tensor:
        """Return (batch, target tokens, vocabulary); row i is about the token after target i."""
        memory = self.decoder.stack.memory(self.encoder(source, source_real), source_real)
        return self.decoder.scores(self._step(target, None, real, memory)[0])

    def empty_state(
        self, source: Tensor, source_real: Tensor | None = None, capacity: int | None = None
    ) -> ModelState:
        """Read the source, and return the state before the first target token."""
        memory = self.decoder.stack.memory(self.encoder(source, source_real), source_real)
        return ModelState(self.decoder.empty_state(len(source), capacity).layers, memory)

    def extend(
        self, target: Tensor, state: ModelState, real: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """Return the scores of new target tokens, and the state after them."""
        hidden, after = self.step(target, state, real)
        assert after is not None
        return self.decoder.scores(hidden), after

    def scores(self, hidden: Tensor) -> Tensor:
        """Return what the head says of hidden states."""
        return self.decoder.scores(hidden)

    def begin(self, ids: Tensor, real: Tensor | None, capacity: int) -> tuple[Tensor, ModelState]:
        """Return what generation reads first, the start token, and the state before it."""
        start = torch.full_like(ids[:, :1], self.config.start)
        return start, self.empty_state(ids, real, capacity)

    def step(
        self, ids: Tensor, state: ModelState | None, real: Tensor | None = None
    ) -> tuple[Tensor, ModelState | None]:
        """Return hidden states of new target tokens and the state after them."""
        return self._step(ids, state, real, None)

    def _step(self, ids, state, real, memory):
        decoder = self.decoder
        where = decoder.stack.where(ids, state, real)
        embedded = decoder.embed(ids, where, None, real)
        return decoder.stack(embedded, where, state, real, memory)


def first_real(hidden: Tensor, real: Tensor | None) -> Tensor:
    """Return the vector of each sequence's first real token, (batch, width)."""
    if real is None:
        return hidden[:, 0]
    first = (real != 0).to(torch.uint8).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), first]
