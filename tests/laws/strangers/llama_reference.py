"""Inference code as vendors publish it: caches inside, `start_pos`, `input_pos`, set-up first."""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from tests.laws.strangers.case import Case
from torch import nn

# First author: a reference implementation, whose attention keeps its cache to itself.


@dataclass
class ModelArgs:
    dim: int = 32
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 2
    vocab_size: int = 61
    norm_eps: float = 1e-5
    max_batch_size: int = 32
    max_seq_len: int = 512


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(end, dtype=torch.float32)
    return torch.outer(t, freqs)


def apply_rotary_emb(x: torch.Tensor, angles: torch.Tensor):
    angles = angles[None, :, None, :].to(x.dtype)
    even, odd = x[..., ::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(3)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.n_rep = args.n_heads // args.n_kv_heads
        self.head_dim = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)
        shape = (args.max_batch_size, args.max_seq_len, args.n_kv_heads, self.head_dim)
        self.cache_k = torch.zeros(shape)
        self.cache_v = torch.zeros(shape)

    def forward(self, x, start_pos, freqs_cis, mask):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, -1, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, -1, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, -1, self.head_dim)
        xq, xk = apply_rotary_emb(xq, freqs_cis), apply_rotary_emb(xk, freqs_cis)
        keys, values = self.remember(xk, xv, start_pos)
        keys = keys.repeat_interleave(self.n_rep, dim=2).transpose(1, 2)
        values = values.repeat_interleave(self.n_rep, dim=2).transpose(1, 2)
        scores = torch.matmul(xq.transpose(1, 2), keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + mask
        output = torch.matmul(F.softmax(scores, dim=-1), values)
        return self.wo(output.transpose(1, 2).contiguous().view(bsz, seqlen, -1))

    def remember(self, xk, xv, start_pos):
        bsz, seqlen = xk.shape[:2]
        self.cache_k = self.cache_k.to(xk)
        self.cache_v = self.cache_v.to(xv)
        end = start_pos + seqlen
        past_k, past_v = self.cache_k[:bsz, :start_pos], self.cache_v[:bsz, :start_pos]
        keys = torch.cat([past_k, xk], 1)
        values = torch.cat([past_v, xv], 1)
        self.cache_k[:bsz, start_pos:end] = xk.detach()
        self.cache_v[:bsz, start_pos:end] = xv.detach()
        return keys, values


class OneSlotLate(Attention):
    def remember(self, xk, xv, start_pos):
        bsz, seqlen = xk.shape[:2]
        keys, values = super().remember(xk, xv, start_pos)
        if start_pos > 0:
            self.cache_v[:bsz, start_pos : start_pos + seqlen] = 0
            end = start_pos + 1 + seqlen
            self.cache_v[:bsz, start_pos + 1 : end] = xv.detach()
        return keys, values


class CacheWithoutBatch(Attention):
    def remember(self, xk, xv, start_pos):
        keys, values = super().remember(xk, xv, start_pos)
        if start_pos > 0:
            first = self.cache_k[:1, :start_pos].expand(len(xk), -1, -1, -1)
            keys = torch.cat([first, xk], 1)
        return keys, values


class Block(nn.Module):
    def __init__(self, args: ModelArgs, attention):
        super().__init__()
        self.attention = attention(args)
        self.w1 = nn.Linear(args.dim, 2 * args.dim, bias=False)
        self.w2 = nn.Linear(2 * args.dim, args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, 2 * args.dim, bias=False)
        self.attention_norm = RMSNorm(args.dim, args.norm_eps)
        self.ffn_norm = RMSNorm(args.dim, args.norm_eps)

    def forward(self, x, start_pos, freqs_cis, mask):
        h = x + self.attention(self.attention_norm(x), start_pos, freqs_cis, mask)
        y = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Transformer(nn.Module):
    def __init__(self, attention=Attention, **overrides):
        super().__init__()
        self.params = params = ModelArgs(**overrides)
        self.tok_embeddings = nn.Embedding(params.vocab_size, params.dim)
        self.layers = nn.ModuleList([Block(params, attention) for _ in range(params.n_layers)])
        self.norm = RMSNorm(params.dim, params.norm_eps)
        self.output = nn.Linear(params.dim, params.vocab_size, bias=False)
        self.freqs_cis = precompute_freqs_cis(params.dim // params.n_heads, params.max_seq_len)

    def forward(self, tokens: torch.Tensor, start_pos: int = 0):
        _, seqlen = tokens.shape
        h = self.tok_embeddings(tokens)
        freqs_cis = self.angles(start_pos, seqlen)
        mask = None
        if seqlen > 1:
            mask = self.mask(start_pos, seqlen).to(h)
        for layer in self.layers:
            h = layer(h, start_pos, freqs_cis, mask)
        return self.output(self.norm(h)).float()

    def angles(self, start_pos, seqlen):
        return self.freqs_cis[start_pos : start_pos + seqlen]

    def mask(self, start_pos, seqlen):
        mask = torch.full((seqlen, seqlen), float("-inf"))
        mask = torch.triu(mask, diagonal=1)
        return torch.hstack([torch.zeros((seqlen, start_pos)), mask])


class AnglesFromZero(Transformer):
    def angles(self, start_pos, seqlen):
        return self.freqs_cis[:seqlen]


class MaskFromTheTop(Transformer):
    def mask(self, start_pos, seqlen):
        mask = torch.full((seqlen, start_pos + seqlen), float("-inf"))
        return torch.triu(mask, diagonal=1)


class NoMaskForPrompts(Transformer):
    """The mask is only made when something is already in the cache."""

    def mask(self, start_pos, seqlen):
        if start_pos == 0:
            return torch.zeros(seqlen, seqlen)
        return super().mask(start_pos, seqlen)


# Second author: compiled decoding, caches as modules that are set up once, positions as a tensor.


class KVCache(nn.Module):
    def __init__(self, max_batch_size, max_seq_length, n_heads, head_dim, dtype):
        super().__init__()
        shape = (max_batch_size, n_heads, max_seq_length, head_dim)
        self.register_buffer("k_cache", torch.zeros(shape, dtype=dtype), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape, dtype=dtype), persistent=False)

    def update(self, input_pos, k_val, v_val):
        self.k_cache[: len(k_val), :, input_pos] = k_val
        self.v_cache[: len(v_val), :, input_pos] = v_val
        return self.k_cache[: len(k_val)], self.v_cache[: len(v_val)]


class KVCacheThatAdds(KVCache):
    def update(self, input_pos, k_val, v_val):
        self.k_cache[: len(k_val), :, input_pos] = k_val
        self.v_cache[: len(v_val), :, input_pos] += v_val.roll(1, 0)
        return self.k_cache[: len(k_val)], self.v_cache[: len(v_val)]


class FastAttention(nn.Module):
    def __init__(self, dim, n_head):
        super().__init__()
        self.n_head, self.head_dim = n_head, dim // n_head
        self.wqkv, self.wo = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.kv_cache = None

    def forward(self, x, angles, mask, input_pos=None):
        bsz, seqlen, _ = x.shape
        q, k, v = (
            t.view(bsz, seqlen, self.n_head, self.head_dim) for t in self.wqkv(x).chunk(3, -1)
        )
        q, k = apply_rotary_emb(q, angles), apply_rotary_emb(k, angles)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.kv_cache is not None and input_pos is not None:
            k, v = self.kv_cache.update(input_pos, k, v)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(bsz, seqlen, -1))


class FastTransformer(nn.Module):
    def __init__(self, cache=KVCache, dim=24, n_head=3, n_layer=2, vocab=59, block_size=256):
        super().__init__()
        self.cache, self.n_head, self.dim, self.block_size = cache, n_head, dim, block_size
        self.tok_embeddings = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([FastAttention(dim, n_head) for _ in range(n_layer)])
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(n_layer)])
        self.output = nn.Linear(dim, vocab, bias=False)
        angles = precompute_freqs_cis(dim // n_head, block_size)
        self.register_buffer("freqs_cis", angles, persistent=False)
        self.max_batch_size, self.max_seq_length = -1, -1

    def setup_caches(self, max_batch_size, max_seq_length):
        self.max_batch_size, self.max_seq_length = max_batch_size, max_seq_length
        head_dim, dtype = self.dim // self.n_head, self.output.weight.dtype
        for b in self.layers:
            b.kv_cache = self.cache(max_batch_size, max_seq_length, self.n_head, head_dim, dtype)

    def forward(self, idx, input_pos=None):
        T = idx.size(1)
        pos = torch.arange(T) if input_pos is None else input_pos
        width = T if input_pos is None else self.max_seq_length
        mask = self.causal_mask(pos, T, width)[None, None]
        x = self.tok_embeddings(idx)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x), self.angles(pos, T), mask, input_pos)
        return self.output(x)

    def causal_mask(self, pos, T, width):
        return torch.tril(torch.ones(max(width, T), width, dtype=torch.bool))[pos]

    def angles(self, pos, T):
        return self.freqs_cis[pos]


class FastMaskFromTheTop(FastTransformer):
    def causal_mask(self, pos, T, width):
        return torch.tril(torch.ones(T, width, dtype=torch.bool), diagonal=int(pos[0] > 0) * width)


class FastAnglesFromZero(FastTransformer):
    def angles(self, pos, T):
        return self.freqs_cis[:T]


# Third author: one object of inference parameters is carried through every layer.


@dataclass
class InferenceParams:
    max_seqlen: int = 256
    max_batch_size: int = 16
    seqlen_offset: int = 0
    key_value_memory_dict: dict = field(default_factory=dict)


class Mixer(nn.Module):
    def __init__(self, d_model, nheads, layer_idx):
        super().__init__()
        self.layer_idx, self.nheads = layer_idx, nheads
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def key(self):
        return self.layer_idx

    def forward(self, x, inference_params=None):
        q, k, v = self.in_proj(x).unflatten(-1, (3, self.nheads, -1)).transpose(1, 3).unbind(2)
        if inference_params is not None:
            memory = inference_params.key_value_memory_dict
            if self.key() in memory:
                old_k, old_v = memory[self.key()]
                k, v = torch.cat([old_k, k], -2), torch.cat([old_v, v], -2)
            memory[self.key()] = (k, v)
        T, S = q.size(-2), k.size(-2)
        mask = torch.arange(S)[None] <= torch.arange(T)[:, None] + S - T
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class UnkeyedMixer(Mixer):
    def key(self):
        return self.nheads


class MixerLMHeadModel(nn.Module):
    def __init__(self, mixer=Mixer, d_model=24, n_layer=2, vocab_size=53):
        super().__init__()
        self.embedding, self.positions = (
            nn.Embedding(vocab_size, d_model),
            nn.Embedding(256, d_model),
        )
        self.layers = nn.ModuleList([mixer(d_model, 4, i) for i in range(n_layer)])
        self.norms = nn.ModuleList([nn.LayerNorm(d_model) for _ in range(n_layer)])
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)

    def offset(self, inference_params):
        return 0 if inference_params is None else inference_params.seqlen_offset

    def forward(self, input_ids, inference_params=None):
        start = self.offset(inference_params)
        h = self.embedding(input_ids)
        h = h + self.positions(torch.arange(start, start + input_ids.size(1)))
        for norm, layer in zip(self.norms, self.layers, strict=True):
            h = h + layer(norm(h), inference_params)
        if inference_params is not None:
            inference_params.seqlen_offset += input_ids.size(1)
        return self.lm_head(h)


class OffsetIgnored(MixerLMHeadModel):
    def offset(self, inference_params):
        return 0


CACHE = ("cache.step", "cache.chunk", "cache.generate")
CAUSAL = ("causality.perturb", "causality.gradient", "causality.prefix")
CASES = [
    Case("angles-from-zero", AnglesFromZero, Transformer, CACHE, ""),
    Case("mask-from-the-top", MaskFromTheTop, Transformer, CACHE, ""),
    Case("no-mask-for-prompts", NoMaskForPrompts, Transformer, CAUSAL, ""),
    Case(
        "values-one-slot-late",
        lambda: Transformer(OneSlotLate),
        Transformer,
        CACHE,
        "layers.*.attention",
    ),
    Case(
        "cache-of-the-first-row",
        lambda: Transformer(CacheWithoutBatch),
        Transformer,
        CACHE,
        "layers.*.attention",
    ),
    Case("fast-mask-from-the-top", FastMaskFromTheTop, FastTransformer, CACHE, ""),
    Case("fast-angles-from-zero", FastAnglesFromZero, FastTransformer, CACHE, ""),
    Case(
        "fast-cache-adds",
        lambda: FastTransformer(KVCacheThatAdds),
        FastTransformer,
        CACHE,
        ("layers.*", "layers.*.kv_cache"),
    ),
    Case(
        "memory-without-layer",
        lambda: MixerLMHeadModel(UnkeyedMixer),
        MixerLMHeadModel,
        CACHE,
        "layers.*",
    ),
    Case("offset-ignored", OffsetIgnored, MixerLMHeadModel, CACHE, ""),
]
