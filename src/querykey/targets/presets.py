"""Small reference models made of torch's own layers, to try every verb on."""

from __future__ import annotations

import torch
from torch import nn

WIDTH, HEADS, HIDDEN, LAYERS, VOCABULARY, POSITIONS = 64, 4, 128, 2, 128, 64


class _Embedding(nn.Module):
    """Token and learned position embeddings, summed."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)

    def forward(self, ids: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
        # Only real tokens are counted, so that padding on the left moves no position.
        real = torch.ones_like(ids) if real is None else real.long()
        return self.tokens(ids) + self.positions((real.cumsum(1) - 1).clamp(min=0))


class _Stack(nn.Module):
    """torch.nn.TransformerEncoder, norm first, causal or not, with a head over the vocabulary."""

    def __init__(self, causal: bool):
        super().__init__()
        self.causal = causal
        self.embed = _Embedding()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
        hidden = None if real is None else ~real.bool()
        future = torch.ones(ids.size(1), ids.size(1), dtype=torch.bool, device=ids.device).triu(1)
        mask = future if self.causal else None
        return self.head(self.layers(self.embed(ids, real), mask, hidden, is_causal=self.causal))


class _Pair(nn.Module):
    """torch.nn.Transformer between two token sequences, with a head over the vocabulary."""

    def __init__(self):
        super().__init__()
        self.source, self.target = _Embedding(), _Embedding()
        self.layers = nn.Transformer(
            WIDTH, HEADS, LAYERS, LAYERS, HIDDEN, dropout=0.0, batch_first=True
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        length = target.size(1)
        future = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        hidden = self.layers(
            self.source(source), self.target(target), tgt_mask=future, tgt_is_causal=True
        )
        return self.head(hidden)


def encoder() -> nn.Module:
    """Return a model in which every token sees every token."""
    return _Stack(causal=False)


def decoder() -> nn.Module:
    """Return a model in which every token sees itself and the tokens before it."""
    return _Stack(causal=True)


def encoder_decoder() -> nn.Module:
    """Return the original Transformer: an encoder, and a causal decoder that attends to it."""
    return _Pair()
