"""Token ids become vectors, positions added; a wrong id or length is one clear sentence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from querykey.attention import sinusoids
from querykey.models.text.config import EmbeddingConfig, Learned, Positions, Sinusoidal
from querykey.nn import NormConfig, make_norm


class Embedding(nn.Module):
    """A table of tokens, of positions where these are learned, and of segment types."""

    def __init__(self, config: EmbeddingConfig, width: int, positions: Positions, norm: NormConfig):
        super().__init__()
        self.config, self.order = config, positions
        self.tokens = nn.Embedding(config.vocabulary, width, padding_idx=config.untrained)
        self.positions = self.types = self.norm = None
        if isinstance(positions, Learned):
            # Where padding has a position of its own, that is the last before the first.
            padding = None if positions.skip is None else positions.offset - 1
            rows = positions.count + positions.offset
            self.positions = nn.Embedding(rows, width, padding_idx=padding)
        if config.types:
            self.types = nn.Embedding(config.types, width)
        if config.norm:
            self.norm = make_norm(norm, width)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        types: Tensor | None = None,
        real: Tensor | None = None,
    ) -> Tensor:
        """Return (batch, tokens, width) for ids at positions (tokens,) or (batch, tokens)."""
        x = self._looked_up(ids)
        if self.config.scale != 1:
            x = x * self.config.scale
        if self.types is not None:
            x = x + (self.types.weight[0] if types is None else self._kinds(types))
        elif types is not None:
            raise ValueError("this model has no segment types")
        if isinstance(self.order, Sinusoidal):
            x = x + sinusoids(positions, x.shape[-1], base=self.order.base, like=x)
        elif self.positions is not None:
            x = x + self._learned(ids, positions, real)
        return x if self.norm is None else self.norm(x)

    def _looked_up(self, ids: Tensor) -> Tensor:
        if ids.is_floating_point() or ids.dtype == torch.bool or ids.ndim != 2:
            raise TypeError(
                f"token ids are whole numbers (batch, tokens); got {ids.dtype} {tuple(ids.shape)}"
            )
        try:
            return self.tokens(ids)
        except IndexError:  # only where it costs nothing to look: on the CPU
            known = self.config.vocabulary
            wrong = ids[(ids < 0) | (ids >= known)][0].item()
            raise ValueError(
                f"token id {wrong} is not in the vocabulary, which has ids 0 to {known - 1}"
            ) from None

    def _kinds(self, types: Tensor) -> Tensor:
        assert self.types is not None
        try:
            return self.types(types)
        except IndexError:
            raise ValueError(
                f"this model has {self.config.types} segment types, from 0 on; "
                f"got {int(types.min())} to {int(types.max())}"
            ) from None

    def _learned(self, ids: Tensor, positions: Tensor, real: Tensor | None) -> Tensor:
        assert isinstance(self.order, Learned)
        assert self.positions is not None
        rows = positions + self.order.offset if self.order.offset else positions
        if self.order.skip is not None:
            counted = ids != self.order.skip
            if real is not None:
                counted = counted & (real != 0)
            place = counted.cumsum(1)
            rows = torch.where(counted, place + (self.order.offset - 1), self.order.offset - 1)
        try:
            return self.positions(rows)
        except IndexError:
            raise ValueError(
                f"this model has learned {self.order.count} positions; "
                f"a token at position {int(rows.max()) - self.order.offset} is beyond them"
            ) from None
