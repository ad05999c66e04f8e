"""Decoder: every token sees itself and those before it, and predicts the next.

    model = Decoder(DecoderConfig(...))
    logits = model(ids)                            # training
    state = model.empty_state(batch=1)
    logits, state = model.extend(ids, state)       # a prompt, then token by token

`real` (batch, tokens), True or 1 for real tokens, may hide any tokens at either end: they change
nothing, and positions count real tokens only. `documents` (batch, tokens), whole numbers, tells the
documents that are packed into a row from each other: each is read as if it stood alone.
"""

from __future__ import annotations

from torch import Tensor, nn

from querykey.models.text.config import DecoderConfig
from querykey.models.text.embedding import Embedding, TokenScores
from querykey.models.text.heads import initialise
from querykey.models.text.stack import ModelState, Stack, known_state
from querykey.words import checked


class Decoder(nn.Module):
    """Token ids in, scores of the next token out. Later tokens and padding are hidden."""

    @checked
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
        """Let the head share the embedding's table again, after tensors were replaced."""
        if self.head is not None:
            self.head.tie(self.embed.tokens)

    def forward(
        self, ids: Tensor, real: Tensor | None = None, documents: Tensor | None = None
    ) -> Tensor:
        """Return (batch, tokens, vocabulary); hidden states where the config asks for no head."""
        return self.scores(self.hidden(ids, real, documents))

    def hidden(
        self, ids: Tensor, real: Tensor | None = None, documents: Tensor | None = None
    ) -> Tensor:
        """Return the hidden states of the last layer, (batch, tokens, width)."""
        where = self.stack.where(ids, None, real, documents)
        return self.stack(self.embed(ids, where, None, real), where, None, real, None, documents)[0]

    def scores(self, hidden: Tensor) -> Tensor:
        """Return the scores of hidden states, or those states where there is no head."""
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
        hidden, after = self.step(ids, known_state(state), real)
        assert after is not None
        return self.scores(hidden), after

    def begin(self, ids: Tensor, real: Tensor | None, capacity: int) -> tuple[Tensor, ModelState]:
        """Return the tokens that generation reads first, the prompt, and the state before."""
        return ids, self.empty_state(len(ids), capacity)

    def step(
        self, ids: Tensor, state: ModelState | None, real: Tensor | None = None
    ) -> tuple[Tensor, ModelState | None]:
        """Return the hidden states of new tokens, and the state after them, or None without one."""
        where = self.stack.where(ids, state, real)
        return self.stack(self.embed(ids, where, None, real), where, state, real)
