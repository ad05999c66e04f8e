"""Between token ids and vectors: Embedding on the way in, TokenScores on the way out.

Both read one table where a config ties them. A wrong id or length is refused in one sentence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from querykey.attention import sinusoids
from querykey.errors import QuerykeyError, WrongTypeError
from querykey.models.text.config import (
    EmbeddingConfig,
    Learned,
    Positions,
    Sinusoidal,
    TokenHead,
)
from querykey.nn import BlockConfig, NormConfig, activate, check_whole, make_norm


class Embedding(nn.Module):
    """A table of tokens, of positions where these are learned, and of segment types."""

    def __init__(self, config: EmbeddingConfig, width: int, positions: Positions, norm: NormConfig):
        super().__init__()
        self.config, self.position_kind = config, positions
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
        x = self._token_vectors(ids)
        if self.config.scale != 1:
            x = x * self.config.scale
        if self.types is not None:
            x = x + (self.types.weight[0] if types is None else self._type_vectors(types, ids))
        elif types is not None:
            raise QuerykeyError("this model has no segment types")
        if isinstance(self.position_kind, Sinusoidal):
            x = x + sinusoids(positions, x.shape[-1], base=self.position_kind.base, like=x)
        elif self.positions is not None:
            x = x + self._position_vectors(ids, positions, real)
        return x if self.norm is None else self.norm(x)

    def _token_vectors(self, ids: Tensor) -> Tensor:
        """Return the rows of the ids in the table of tokens, or name the id that has none."""
        check_ids(ids)
        try:
            return self.tokens(ids if ids.dtype in (torch.int32, torch.int64) else ids.long())
        except IndexError:  # only where it costs nothing to look: on the CPU
            count = self.config.vocabulary
            wrong = ids[(ids < 0) | (ids >= count)][0].item()
            raise QuerykeyError(
                f"token id {wrong} is not in the vocabulary, which has ids 0 to {count - 1}"
            ) from None

    def _type_vectors(self, types: Tensor, ids: Tensor) -> Tensor:
        """Return the rows of the segment types, or say which types there are."""
        assert self.types is not None
        check_whole("types", types, "(batch, tokens)")
        if types.shape != ids.shape or types.device != ids.device:
            raise QuerykeyError(
                f"types are {tuple(ids.shape)} on {ids.device}, as the token ids are; "
                f"got {tuple(types.shape)} on {types.device}"
            )
        try:
            return self.types(types if types.dtype in (torch.int32, torch.int64) else types.long())
        except IndexError:
            raise QuerykeyError(
                f"this model has {self.config.types} segment types, from 0 on; "
                f"got {int(types.min())} to {int(types.max())}"
            ) from None

    def _position_vectors(self, ids: Tensor, positions: Tensor, real: Tensor | None) -> Tensor:
        """Return the learned rows of positions, or name the position that was not learned."""
        kind = self.position_kind
        assert isinstance(kind, Learned)
        assert self.positions is not None
        rows = positions + kind.offset if kind.offset else positions
        if real is not None:
            rows = torch.where(real != 0, rows, kind.offset)  # padding may stand behind the table
        if kind.skip is not None:
            counted = ids != kind.skip
            if real is not None:
                counted = counted & (real != 0)
            place = counted.cumsum(1)
            rows = torch.where(counted, place + (kind.offset - 1), kind.offset - 1)
        try:
            return self.positions(rows)
        except IndexError:
            raise QuerykeyError(
                f"this model has learned {kind.count} positions; "
                f"a token at position {int(rows.max()) - kind.offset} is beyond them"
            ) from None


def check_ids(ids: Any) -> None:
    """Raise the error for what is no tensor of token ids."""
    if not isinstance(ids, Tensor):
        raise WrongTypeError(
            f"token ids are a tensor (batch, tokens) of whole numbers; got {type(ids).__name__}"
        )
    numbers = ids.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    if not numbers or ids.ndim != 2 or ids.layout != torch.strided:
        raise WrongTypeError(
            f"token ids are whole numbers (batch, tokens); got {ids.dtype} {tuple(ids.shape)}"
        )


class TokenScores(nn.Module):
    """scale * (W x) for every token; with a transform, x is first norm(activation(V x))."""

    def __init__(self, config: TokenHead, block: BlockConfig, embedding: nn.Embedding):
        super().__init__()
        self.config, width = config, block.width
        self.transform = self.norm = None
        if config.transform is not None:
            self.transform = nn.Linear(width, width)
            self.norm = make_norm(block.norm, width)
        self.output = nn.Linear(width, embedding.num_embeddings, bias=config.bias)
        self.tie(embedding)

    def tie(self, embedding: nn.Embedding) -> None:
        """Share the embedding's table, where the config says so."""
        if self.config.tied:
            self.output.weight = embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        """Turn (..., width) into (..., vocabulary)."""
        if self.transform is not None and self.norm is not None and self.config.transform:
            x = self.norm(activate(self.config.transform, self.transform(x)))
        return self.output(x if self.config.scale == 1 else x * self.config.scale)

    def extra_repr(self) -> str:
        """Return what the module prints of itself: whether its table is the embedding's."""
        return "tied to the embedding" if self.config.tied else ""
