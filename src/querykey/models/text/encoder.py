"""Encoder: every token sees every real token.

    model = Encoder(EncoderConfig(...))
    hidden = model(ids, real)

`real` (batch, tokens), True or 1 for real tokens, may hide any tokens at either end: they change
nothing, and positions count real tokens only. `documents` (batch, tokens), whole numbers, tells the
documents that are packed into a row from each other: each is read as if it stood alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from querykey.errors import QuerykeyError
from querykey.models.text.config import ClassHead, EncoderConfig, PairHead, TokenHead
from querykey.models.text.embedding import Embedding, TokenScores
from querykey.models.text.heads import ClassScores, PairScores, initialise
from querykey.models.text.stack import Stack
from querykey.nn import activate, check_floats, check_whole
from querykey.words import checked


class Encoder(nn.Module):
    """Token ids in; hidden states, or the scores of its head, out. Only padding is hidden."""

    @checked
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
        elif isinstance(config.head, PairHead):
            self.head = PairScores(config.head, config.block, self.embed.tokens)
        initialise(self)

    def tie(self) -> None:
        """Let the head share the embedding's table again, after tensors were replaced."""
        if isinstance(self.head, TokenScores | PairScores):
            self.head.tie(self.embed.tokens)

    def forward(
        self,
        ids: Tensor,
        real: Tensor | None = None,
        types: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Any:
        """Return (batch, tokens, width), or the scores of the head.

        Those are (batch, tokens, vocabulary), (batch, classes), or both of them.
        """
        hidden = self.hidden(ids, real, types, documents)
        if isinstance(self.head, PairScores):
            return self.head(hidden, first_real(hidden, real))
        if isinstance(self.head, ClassScores):
            return self.head(first_real(hidden, real))
        return hidden if self.head is None else self.head(hidden)

    def hidden(
        self,
        ids: Tensor,
        real: Tensor | None = None,
        types: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states of the last layer, (batch, tokens, width)."""
        where = self.stack.where(ids, None, real, documents)
        x = self.embed(ids, where, types, real)
        return self.stack(x, where, real=real, documents=documents)[0]

    def pooled(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Return activation(W x) of each sequence's first real token, (batch, width)."""
        if self.pooler is None or self.config.pooler is None:
            raise QuerykeyError("this model has no pooler; its config asks for none")
        check_floats("hidden", hidden, self.config.block.width, self.pooler)
        if hidden.ndim != 3 or not hidden.shape[1]:
            raise QuerykeyError(
                f"hidden is (batch, tokens, {self.config.block.width}), of one token at least; "
                f"got {tuple(hidden.shape)}"
            )
        if real is not None:
            check_whole("real", real, "(batch, tokens)")
            if real.shape != hidden.shape[:2] or real.device != hidden.device:
                raise QuerykeyError(
                    f"real is {tuple(hidden.shape[:2])} on {hidden.device}, as the hidden states "
                    f"are; got {tuple(real.shape)} on {real.device}"
                )
        return activate(self.config.pooler, self.pooler(first_real(hidden, real)))


def first_real(hidden: Tensor, real: Tensor | None) -> Tensor:
    """Return the vector of each sequence's first real token, (batch, width)."""
    if real is None:
        return hidden[:, 0]
    first = (real != 0).to(torch.uint8).argmax(1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), first]
