"""EncoderDecoder: a decoder whose tokens also see all real tokens that an encoder has read.

model = EncoderDecoder(EncoderDecoderConfig(...))
logits = model(source, target)                  # training
state = model.empty_state(source)
logits, state = model.extend(target, state)     # token by token
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from querykey.models.text.config import EncoderDecoderConfig
from querykey.models.text.decoder import Decoder
from querykey.models.text.encoder import Encoder
from querykey.models.text.stack import ModelState, known_state
from querykey.words import checked


class EncoderDecoder(nn.Module):
    """A source sequence in; scores of the next token of a target sequence out."""

    @checked
    def __init__(self, config: EncoderDecoderConfig):
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.encoder)
        self.decoder = Decoder(config.decoder, source_width=config.encoder.block.width)
        self.tie()

    def tie(self) -> None:
        """Let both sides share one table of tokens again, after tensors were replaced."""
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
        """Return (batch, target tokens, vocabulary); row i scores the token after target i."""
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
        hidden, after = self.step(target, known_state(state), real)
        assert after is not None
        return self.decoder.scores(hidden), after

    def scores(self, hidden: Tensor) -> Tensor:
        """Return the scores of hidden states, or those states where there is no head."""
        return self.decoder.scores(hidden)

    def begin(self, ids: Tensor, real: Tensor | None, capacity: int) -> tuple[Tensor, ModelState]:
        """Return the tokens that generation reads first, the start token, and the state before."""
        start = torch.full_like(ids[:, :1], self.config.start)
        return start, self.empty_state(ids, real, capacity)

    def step(
        self, ids: Tensor, state: ModelState | None, real: Tensor | None = None
    ) -> tuple[Tensor, ModelState | None]:
        """Return hidden states of new target tokens and the state after them."""
        return self._step(ids, state, real, None)

    def _step(self, ids, state, real, memory):
        """Run the decoder over new target tokens that see the source's keys and values."""
        decoder = self.decoder
        where = decoder.stack.where(ids, state, real)
        embedded = decoder.embed(ids, where, None, real)
        return decoder.stack(embedded, where, state, real, memory)
