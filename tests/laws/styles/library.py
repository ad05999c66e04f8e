"""A decoder in the manner of Hugging Face: masks, positions and a cache by name, a record out."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Output:
    logits: torch.Tensor
    past_key_values: list | None = None


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def turn(x, places):
    half = x.size(-1) // 2
    angles = places[:, None, :, None] / 50 ** (torch.arange(half) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Attention(nn.Module):
    def __init__(self, width=32, heads=4, groups=2, attention_dropout=0.0):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q_proj = nn.Linear(width, heads * self.size, bias=False)
        self.k_proj = nn.Linear(width, groups * self.size, bias=False)
        self.v_proj = nn.Linear(width, groups * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.attention_dropout = attention_dropout

    def forward(self, x, seen, places, past=None):
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.heads, self.size).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.groups, self.size).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.groups, self.size).transpose(1, 2)
        q, k = turn(q, places), turn(k, places)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        present = (k, v)
        k = k.repeat_interleave(self.heads // self.groups, 1)
        v = v.repeat_interleave(self.heads // self.groups, 1)
        scores = q @ k.mT * self.size**-0.5
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype)
        weights = nn.functional.dropout(weights, self.attention_dropout, self.training)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2)), present


class MLP(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.gate, self.up = nn.Linear(width, 64, bias=False), nn.Linear(width, 64, bias=False)
        self.down = nn.Linear(64, width, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm1, self.self_attn = RMSNorm(width), Attention(width)
        self.norm2, self.mlp = RMSNorm(width), MLP(width)

    def forward(self, x, seen, places, past=None):
        mixed, present = self.self_attn(self.norm1(x), seen, places, past)
        x = x + mixed
        return x + self.mlp(self.norm2(x)), present


class Model(nn.Module):
    def __init__(self, words=67, width=32, window=9):
        super().__init__()
        self.sliding_window = window
        self.embed_tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList([Layer(width) for _ in range(2)])
        self.norm = RMSNorm(width)
        self.lm_head = nn.Linear(width, words, bias=False)

    def mask(self, attention_mask, past, T):
        query, key = torch.arange(past, past + T)[:, None], torch.arange(past + T)[None]
        seen = (key <= query) & (key > query - self.sliding_window)
        seen = seen[None, None]
        if attention_mask is not None:
            seen = seen & attention_mask[:, None, None, :].bool()
        return seen

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        use_cache=None,
    ):
        x = self.embed_tokens(input_ids)
        B, T = input_ids.shape
        past = past_key_values[0][0].size(2) if past_key_values is not None else 0
        if position_ids is None:
            position_ids = torch.arange(past, past + T).expand(B, T)
        seen = self.mask(attention_mask, past, T)
        presents = []
        for index, layer in enumerate(self.layers):
            before = past_key_values[index] if past_key_values is not None else None
            x, present = layer(x, seen, position_ids, before)
            presents.append(present)
        return Output(self.lm_head(self.norm(x)), presents if use_cache else None)

    @torch.no_grad()
    def generate(self, input_ids, attention_mask=None, max_new_tokens=20):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        fresh, cache = input_ids, None
        for _ in range(max_new_tokens):
            places = (mask.cumsum(1) - 1).clamp(min=0)[:, -fresh.size(1) :]
            out = self(fresh, mask, places, cache, use_cache=True)
            fresh, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
            input_ids = torch.cat([input_ids, fresh], 1)
            mask = torch.cat([mask, torch.ones_like(fresh)], 1)
        return input_ids


def make():
    return Model()
