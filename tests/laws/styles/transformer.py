"""An encoder-decoder in the manner of nn.Transformer: True hides, padding masks on both sides."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=24, heads=3):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x, memory, hidden=None, future=None):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q(x), self.k(memory), self.v(memory))
        )
        scores = q @ k.transpose(-2, -1) * q.size(-1) ** -0.5
        if future is not None:
            scores = scores.masked_fill(future, -1e9)
        if hidden is not None:
            scores = scores.masked_fill(hidden[:, None, None, :], -1e9)
        weights = scores.softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.up, self.down = nn.Linear(width, 48), nn.Linear(48, width)

    def forward(self, x):
        return self.down(self.up(x).relu())


class EncoderLayer(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.attention, self.mlp = Attention(width), FeedForward(width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x, hidden=None):
        x = self.norm1(x + self.attention(x, x, hidden))
        return self.norm2(x + self.mlp(x))


class DecoderLayer(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.attention, self.cross, self.mlp = (
            Attention(width),
            Attention(width),
            FeedForward(width),
        )
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))

    def forward(self, x, memory, future, hidden=None, memory_hidden=None):
        x = self.norm1(x + self.attention(x, x, hidden, future))
        x = self.norm2(x + self.cross(x, memory, memory_hidden))
        return self.norm3(x + self.mlp(x))


class Places(nn.Module):
    def __init__(self, words=53, width=24):
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        angles = torch.arange(64)[:, None] / 100 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("table", torch.cat([angles.sin(), angles.cos()], -1))

    def forward(self, ids):
        return self.tokens(ids) + self.table[: ids.size(1)]


class Seq2Seq(nn.Module):
    def __init__(self, words=53, width=24):
        super().__init__()
        self.source, self.target = Places(words, width), Places(words, width)
        self.encoder = nn.ModuleList([EncoderLayer(width) for _ in range(2)])
        self.decoder = nn.ModuleList([DecoderLayer(width) for _ in range(2)])
        self.head = nn.Linear(width, words)

    def forward(self, src, tgt, src_key_padding_mask=None, tgt_key_padding_mask=None):
        memory, x = self.source(src), self.target(tgt)
        future = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1)
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask)
        for layer in self.decoder:
            x = layer(x, memory, future, tgt_key_padding_mask, src_key_padding_mask)
        return self.head(x)


def make():
    return Seq2Seq()
