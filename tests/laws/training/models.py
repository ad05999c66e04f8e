"""Small models for training loops, with places where a fault can be planted."""

from __future__ import annotations

import torch
from torch import nn

WORDS, WIDTH, LENGTH = 23, 16, 9


class Block(nn.Module):
    """A layer of a decoder: attention and a feed-forward part, each with a residual."""

    def __init__(self, scale: float = WIDTH**-0.5, dropout: float = 0.1):
        super().__init__()
        self.scale = scale
        self.norm, self.project = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = self.project(self.norm(x)).chunk(3, -1)
        seen = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
        scores = (self.scale * q @ k.mT).masked_fill(~seen, float("-inf"))
        return x + self.drop(self.out(scores.softmax(-1) @ v))


class Decoder(nn.Module):
    """Token ids to scores; `kept` says where its blocks are kept."""

    def __init__(self, blocks=nn.ModuleList, embed_without_graph=False, cut=False, **options):
        super().__init__()
        self.embed_without_graph, self.cut = embed_without_graph, cut
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = blocks([Block(**options) for _ in range(2)])

    def forward(self, ids):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.embed_without_graph):
            x = self.embed(ids)
        for block in self.blocks:
            x = block(x.detach() if self.cut else x)
        return self.head(x)


def texts(count: int, rows: int = 5, seed: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of ids and of the ids that follow them, all different."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(WORDS, (count, rows, LENGTH + 1), generator=generator)
    return [(batch[:, :-1], batch[:, 1:].clone()) for batch in ids]


def loss_of(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


class Deep(nn.Module):
    """Many equal layers over rows of numbers."""

    def __init__(self, layers: int = 56, gain: float = 0.6, residual: bool = False):
        super().__init__()
        self.residual = residual
        self.layers = nn.ModuleList([nn.Linear(8, 8, bias=False) for _ in range(layers)])
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight, gain)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x) / len(self.layers) if self.residual else layer(x)
        return self.head(x)
