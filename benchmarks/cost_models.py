"""Three families of transformers in plain torch, whose times are predicted and measured.

They hold no mask as an array: causal attention is the flag of torch's own function, so that a pass
without values runs what a real one runs.
"""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, LONGEST = 32000, 2048


class Attention(nn.Module):
    """Self-attention with grouped key heads, and positions by rotation where asked for."""

    def __init__(self, width, heads, groups, causal, bias, rotary):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.causal, self.rotary = causal, rotary
        self.maps = nn.Linear(width, (heads + 2 * groups) * self.size, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x, angles=None):
        counts = self.heads, self.groups, self.groups
        shapes = [count * self.size for count in counts]
        parts = self.maps(x).split(shapes, -1)
        q, k, v = (p.unflatten(-1, (-1, self.size)).transpose(1, 2) for p in parts)
        if self.rotary:
            q, k = rotated(q, *angles), rotated(k, *angles)
        times = self.heads // self.groups
        if times > 1:
            k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


def rotated(x, cosines, sines):
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat((-second, first), -1) * sines


class RMSNorm(nn.Module):
    """The root mean square of a token becomes 1, computed in float32 as Llama does."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class GatedMLP(nn.Module):
    """The hidden layer of Llama: silu(gate x) times (up x)."""

    def __init__(self, width, hidden):
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer of any of the three families."""

    def __init__(self, family, width, heads):
        super().__init__()
        llama = family == "llama"
        groups = heads // 2 if llama and heads % 2 == 0 else heads
        self.before = family != "bert"
        norm = RMSNorm if llama else nn.LayerNorm
        self.first, self.second = norm(width), norm(width)
        self.attention = Attention(width, heads, groups, family != "bert", not llama, llama)
        plain = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.mlp = GatedMLP(width, 3 * width) if llama else nn.Sequential(*plain)

    def forward(self, x, angles=None):
        if self.before:
            x = x + self.attention(self.first(x), angles)
            return x + self.mlp(self.second(x))
        x = self.first(x + self.attention(x))
        return self.second(x + self.mlp(x))


class Transformer(nn.Module):
    """Logits of token ids, by a model like GPT-2 (tied weights), Llama or BERT."""

    def __init__(self, family, width, layers, heads, vocabulary=VOCABULARY):
        super().__init__()
        self.family, self.size = family, width // heads
        self.tokens = nn.Embedding(vocabulary, width)
        if family != "llama":
            self.positions = nn.Embedding(LONGEST, width)
        self.layers = nn.ModuleList(Block(family, width, heads) for _ in range(layers))
        self.norm = RMSNorm(width) if family == "llama" else nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if family == "gpt2":
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        x, angles = self.tokens(ids), None
        places = torch.arange(ids.shape[1], device=ids.device)
        if self.family == "llama":
            steps = torch.arange(0, self.size, 2, device=ids.device) / self.size
            turns = places[:, None].float() * (1.0 / 10000.0**steps)
            turns = torch.cat((turns, turns), -1)
            angles = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
        else:
            x = x + self.positions(places)
        for layer in self.layers:
            x = layer(x, angles)
        return self.head(self.norm(x))
