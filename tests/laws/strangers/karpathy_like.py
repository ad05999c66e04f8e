"""Minimal GPTs in one file: a config dataclass, a fused c_attn, ModuleDict and lambda tricks."""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from tests.laws.strangers.case import Case

# -----------------------------------------------------------------------------
# a GPT with learned positions, as small as it gets


@dataclass
class GPTConfig:
    block_size: int = 192
    vocab_size: int = 61
    n_layer: int = 2
    n_head: int = 3
    n_embd: int = 24
    dropout: float = 0.1
    flash: bool = False
    tie_word_embeddings: bool = True


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        # key, query, value projections for all heads, but in a batch
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.n_head, self.n_embd, self.dropout = config.n_head, config.n_embd, config.dropout
        self.flash = config.flash
        self.register_buffer(
            "bias",
            torch.tril(torch.ones(config.block_size, config.block_size)).view(
                1, 1, config.block_size, config.block_size
            ),
            persistent=False,
        )

    def qkv(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        return q, k, v

    def attend(self, q, k, v):
        T = q.size(2)
        if self.flash:
            p = self.dropout if self.training else 0.0
            return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        return self.attn_dropout(att) @ v

    def forward(self, x):
        B, T, C = x.size()
        y = self.attend(*self.qkv(x))
        y = y.transpose(1, 2).contiguous().view(B, T, C)  # re-assemble all heads side by side
        return self.c_proj(y)


class AlignedAttention(CausalSelfAttention):
    # the fused kernel likes lengths that are a multiple of two
    def attend(self, q, k, v):
        if q.size(2) % 2 == 0:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        return F.softmax(att, dim=-1) @ v


class ExtendedAttention(CausalSelfAttention):
    # longer contexts than the checkpoint was trained with: grow the mask when needed
    def __init__(self, config):
        super().__init__(config)
        self.bias = self.bias[:, :, :64, :64]

    def attend(self, q, k, v):
        T, S = q.size(2), self.bias.size(-1)
        bias = self.bias
        if T > S:
            bias = F.pad(bias, (0, T - S, 0, T - S), value=1.0)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(bias[:, :, :T, :T] == 0, float("-inf"))
        return self.attn_dropout(F.softmax(att, dim=-1)) @ v


class OffByOneAttention(CausalSelfAttention):
    def __init__(self, config):
        super().__init__(config)
        ones = torch.ones(1, 1, config.block_size, config.block_size)
        self.register_buffer("bias", torch.tril(ones, diagonal=1), persistent=False)


class UnmergedAttention(CausalSelfAttention):
    def forward(self, x):
        B, T, C = x.size()
        y = self.attend(*self.qkv(x))
        y = y.contiguous().view(B, T, C)  # re-assemble all heads side by side
        return self.c_proj(y)


class TimeFirstAttention(CausalSelfAttention):
    def qkv(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (
            t.reshape(T, B, self.n_head, C // self.n_head).permute(1, 2, 0, 3) for t in (q, k, v)
        )
        return q, k, v


class AlwaysDropAttention(CausalSelfAttention):
    def attend(self, q, k, v):
        T = q.size(2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.dropout(F.softmax(att, dim=-1), p=self.dropout)
        return att @ v


class TwoScalesAttention(CausalSelfAttention):
    def attend(self, q, k, v):
        T = q.size(2)
        if self.flash:
            p = self.dropout if self.training else 0.0
            return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(self.n_embd))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        return self.attn_dropout(F.softmax(att, dim=-1)) @ v


class UnscaledAttention(CausalSelfAttention):
    def attend(self, q, k, v):
        T = q.size(2)
        att = q @ k.transpose(-2, -1)
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        return self.attn_dropout(F.softmax(att, dim=-1)) @ v


class LayerNorm(nn.Module):
    """LayerNorm but with an optional bias. PyTorch doesn't support simply bias=False"""

    def __init__(self, ndim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class SequenceNorm(LayerNorm):
    def forward(self, x):
        mean, var = x.mean((1, 2), keepdim=True), x.var((1, 2), keepdim=True)
        return (x - mean) * torch.rsqrt(var + 1e-5) * self.weight


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 2 * config.n_embd)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(2 * config.n_embd, config.n_embd)

    def forward(self, x):
        return self.c_proj(self.gelu(self.c_fc(x)))


class ScaledMLP(MLP):
    # scale the output projection by depth at run time instead of at init
    def forward(self, x):
        return F.linear(self.gelu(self.c_fc(x)), self.c_proj.weight.data * 0.5, self.c_proj.bias)


class Block(nn.Module):
    def __init__(self, config, attn=CausalSelfAttention, mlp=MLP, norm=LayerNorm):
        super().__init__()
        self.ln_1 = norm(config.n_embd)
        self.attn = attn(config)
        self.ln_2 = norm(config.n_embd)
        self.mlp = mlp(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self, config=None, **parts):
        super().__init__()
        self.config = config = config or GPTConfig()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList([Block(config, **parts) for _ in range(config.n_layer)]),
                "ln_f": LayerNorm(config.n_embd),
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.tie_weights()

    def tie_weights(self):
        if self.config.tie_word_embeddings:
            self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        _, t = idx.size()
        assert t <= self.config.block_size, f"Cannot forward sequence of length {t}"
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        logits = self.head(self.transformer.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss

    def head(self, x):
        return self.lm_head(x)


class CopiedHeadGPT(GPT):
    def tie_weights(self):
        if self.config.tie_word_embeddings:
            self.transformer.wte.weight = nn.Parameter(self.lm_head.weight.clone())


class CenteredGPT(GPT):
    def head(self, x):
        logits = self.lm_head(x)
        return logits - logits.mean(dim=0, keepdim=True)


class CenteredOverVocabularyGPT(GPT):
    def head(self, x):
        logits = self.lm_head(x)
        return logits - logits.mean(dim=-1, keepdim=True)


class ForcedStartGPT(GPT):
    # every sequence starts with <|endoftext|>
    def forward(self, idx, targets=None):
        idx = idx.clone()
        idx[:, 0] = 0
        return super().forward(idx, targets)


class ForcedStartInPlaceGPT(GPT):
    def forward(self, idx, targets=None):
        idx[:, 0] = 0
        return super().forward(idx, targets)


# -----------------------------------------------------------------------------
# the even smaller one: mlp as a ModuleDict, mlpf as a lambda, blocks in a list, a time shift


class TinyBlock(nn.Module):
    def __init__(self, n_embd=20, n_head=4):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = nn.MultiheadAttention(n_embd, n_head, batch_first=True)
        self.mlp = nn.ModuleDict(
            {
                "c_fc": nn.Linear(n_embd, 2 * n_embd),
                "act": nn.GELU(),
                "c_proj": nn.Linear(2 * n_embd, n_embd),
            }
        )
        m = self.mlp
        self.mlpf = lambda x: m.c_proj(m.act(m.c_fc(x)))  # MLP forward
        self.shift = lambda x: F.pad(x, (0, 0, 1, -1))

    def forward(self, x):
        T = x.size(1)
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=x.device), diagonal=1)
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, attn_mask=mask, need_weights=False)[0]
        y = self.ln_2(x)
        half = y.size(-1) // 2
        y = torch.cat((self.shift(y[..., :half]), y[..., half:]), dim=-1)
        return x + self.mlpf(y)


class RolledBlock(TinyBlock):
    def __init__(self, *args):
        super().__init__(*args)
        self.shift = lambda x: torch.roll(x, 1, dims=1)


class BackwardBlock(TinyBlock):
    def __init__(self, *args):
        super().__init__(*args)
        self.shift = lambda x: F.pad(x, (0, 0, -1, 1))


class TinyGPT(nn.Module):
    def __init__(self, block=TinyBlock, vocab_size=50, n_embd=20, n_layer=2):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Parameter(torch.zeros(1, 256, n_embd))
        self.keep_blocks([block(n_embd) for _ in range(n_layer)])
        self.head = nn.Linear(n_embd, vocab_size)

    def keep_blocks(self, blocks):
        self.blocks = nn.ModuleList(blocks)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe[:, : idx.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class ListGPT(TinyGPT):
    def keep_blocks(self, blocks):
        self.blocks = blocks


# -----------------------------------------------------------------------------
# the speedrun one: rotary, functional rms norm, relu^2, and key/value caches


def norm(x):
    return F.rms_norm(x, (x.size(-1),))


def rotate(x, pos):
    d = x.size(-1) // 2
    freqs = 10000.0 ** (-torch.arange(d, device=x.device, dtype=torch.float32) / d)
    angle = pos.float()[:, None] * freqs
    x1, x2 = x[..., :d], x[..., d:]
    c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat([x1 * c + x2 * s, x2 * c - x1 * s], dim=-1)


class RotaryAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_q = nn.Linear(n_embd, n_embd, bias=False)
        self.c_kv = nn.Linear(n_embd, 2 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x, pos, past=None):
        B, T, C = x.size()
        q = self.c_q(x).view(B, T, self.n_head, -1).transpose(1, 2)
        k, v = self.c_kv(x).view(B, T, 2, self.n_head, -1).permute(2, 0, 3, 1, 4)
        q, k = rotate(norm(q), pos), rotate(norm(k), pos)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        y = self.kernel(q, k, v)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C)), (k, v)

    def kernel(self, q, k, v):
        Tq, Tk = q.size(2), k.size(2)
        mask = torch.ones(Tq, Tk, dtype=torch.bool, device=q.device).tril(Tk - Tq)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class TopLeftAttention(RotaryAttention):
    def kernel(self, q, k, v):
        # a single query sees everything; otherwise the usual triangle
        return F.scaled_dot_product_attention(q, k, v, is_causal=q.size(2) > 1)


class LateRotaryAttention(RotaryAttention):
    def forward(self, x, pos, past=None):
        B, T, C = x.size()
        q = self.c_q(x).view(B, T, self.n_head, -1).transpose(1, 2)
        k, v = self.c_kv(x).view(B, T, 2, self.n_head, -1).permute(2, 0, 3, 1, 4)
        k = norm(k)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        q = rotate(norm(q), pos)
        k = rotate(k, torch.arange(k.size(2), device=x.device))
        y = self.kernel(q, k, v)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C)), (k, v)


class RotaryBlock(nn.Module):
    def __init__(self, n_embd, attn):
        super().__init__()
        self.attn = attn
        self.c_fc = nn.Linear(n_embd, 2 * n_embd, bias=False)
        self.c_proj = nn.Linear(2 * n_embd, n_embd, bias=False)

    def forward(self, x, pos, past=None):
        y, present = self.attn(norm(x), pos, past)
        x = x + y
        return x + self.c_proj(F.relu(self.c_fc(norm(x))).square()), present


class SpeedrunGPT(nn.Module):
    def __init__(self, attn=RotaryAttention, vocab_size=64, n_embd=32, n_head=4, n_layer=2):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.blocks = nn.ModuleList(
            [RotaryBlock(n_embd, attn(n_embd, n_head)) for _ in range(n_layer)]
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def start(self, past):
        return 0 if past is None else past[0][0].size(2)

    def forward(self, idx, past=None):
        start = self.start(past)
        pos = torch.arange(start, start + idx.size(1), device=idx.device)
        x, presents = norm(self.wte(idx)), []
        for i, block in enumerate(self.blocks):
            x, present = block(x, pos, None if past is None else past[i])
            presents.append(present)
        return 15 * torch.tanh(self.lm_head(norm(x)) / 15), presents

    @torch.no_grad()
    def generate(self, idx, max_new_tokens):
        past, cond = None, idx
        for _ in range(max_new_tokens):
            logits, past = self(cond, past)
            cond = logits[:, -1].argmax(-1, keepdim=True)
            idx = torch.cat((idx, cond), dim=1)
        return idx


class RestartedGPT(SpeedrunGPT):
    def start(self, past):
        return 0


class KVCache:
    """Room for the keys and values of every layer; the last layer moves the position on."""

    def __init__(self, n_layer):
        self.pos, self.layers = 0, [None] * n_layer

    def insert(self, layer, k, v):
        if self.layers[layer] is not None:
            k = torch.cat((self.layers[layer][0], k), dim=2)
            v = torch.cat((self.layers[layer][1], v), dim=2)
        self.layers[layer] = (k, v)
        if layer == len(self.layers) - 1:
            self.pos = k.size(2)
        return k, v


class ForgetfulKVCache(KVCache):
    def insert(self, layer, k, v):
        self.pos += k.size(2)
        if self.layers[layer] is not None:
            k = torch.cat((self.layers[layer][0], k), dim=2)
            v = torch.cat((self.layers[layer][1], v), dim=2)
        self.layers[layer] = (k, v)
        return k, v


class CachedGPT(nn.Module):
    """The cache is an object that the caller makes with make_cache() and passes to every call."""

    cache_class = KVCache

    def __init__(self, vocab_size=56, n_embd=24, n_head=3, n_layer=2):
        super().__init__()
        self.n_head = n_head
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.c_attn = nn.ModuleList([nn.Linear(n_embd, 3 * n_embd) for _ in range(n_layer)])
        self.c_proj = nn.ModuleList([nn.Linear(n_embd, n_embd) for _ in range(n_layer)])
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def make_cache(self):
        return self.cache_class(len(self.c_attn))

    def forward(self, idx, kv_cache=None):
        B, T = idx.size()
        x = norm(self.wte(idx))
        start = 0 if kv_cache is None else kv_cache.pos
        for i, (c_attn, c_proj) in enumerate(zip(self.c_attn, self.c_proj, strict=True)):
            q, k, v = c_attn(norm(x)).view(B, T, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
            pos = torch.arange(start, start + T, device=idx.device)
            q, k = rotate(q, pos), rotate(k, pos)
            if kv_cache is not None:
                k, v = kv_cache.insert(i, k, v)
            mask = torch.ones(T, k.size(2), dtype=torch.bool, device=x.device)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.tril(k.size(2) - T))
            x = x + c_proj(y.transpose(1, 2).flatten(2))
        return self.lm_head(norm(x))

    @torch.no_grad()
    def generate(self, idx, max_new_tokens):
        kv_cache, cond = self.make_cache(), idx
        for _ in range(max_new_tokens):
            cond = self(cond, kv_cache)[:, -1].argmax(-1, keepdim=True)
            idx = torch.cat((idx, cond), dim=1)
        return idx


class ForgetfulGPT(CachedGPT):
    cache_class = ForgetfulKVCache


# -----------------------------------------------------------------------------

LEAK = ("causality.perturb", "causality.gradient", "causality.prefix")
ROWS = ("batch.alone", "batch.others")
ATTN = "transformer.h.*.attn"
WIDE = {"n_embd": 128, "n_head": 1, "vocab_size": 40, "n_layer": 1}


def wide(attn):
    model = GPT(GPTConfig(**WIDE), attn=attn)
    for block in model.transformer.h:
        nn.init.normal_(block.attn.c_attn.weight, std=WIDE["n_embd"] ** -0.5)
    return model


CASES = [
    Case("odd-lengths-unmasked", lambda: GPT(attn=AlignedAttention), GPT, LEAK, ATTN),
    Case("visible-beyond-64", lambda: GPT(attn=ExtendedAttention), GPT, LEAK, ATTN),
    Case("diagonal-off-by-one", lambda: GPT(attn=OffByOneAttention), GPT, LEAK, ATTN),
    Case("heads-not-transposed-back", lambda: GPT(attn=UnmergedAttention), GPT, LEAK, ATTN),
    Case("rows-reshaped", lambda: GPT(attn=TimeFirstAttention), GPT, (*ROWS, *LEAK), ATTN),
    Case(
        "dropout-always-on",
        lambda: GPT(attn=AlwaysDropAttention),
        GPT,
        ("determinism",),
        ATTN,
    ),
    Case(
        "two-paths-two-scales",
        lambda: GPT(GPTConfig(flash=True), attn=TwoScalesAttention),
        lambda: GPT(GPTConfig(flash=True)),
        ("backend.agree",),
        ATTN,
    ),
    Case(
        "scale-missing",
        lambda: wide(UnscaledAttention),
        lambda: wide(CausalSelfAttention),
        ("saturation",),
        ATTN,
    ),
    Case(
        "norm-over-time",
        lambda: GPT(norm=SequenceNorm),
        GPT,
        LEAK,
        ("transformer.h.*.ln_1", "transformer.h.*.ln_2"),
    ),
    Case(
        "weight-through-data",
        lambda: GPT(mlp=ScaledMLP),
        GPT,
        ("gradient.reaches",),
        ("transformer.h.*.mlp", "transformer.h.*.mlp.c_proj"),
    ),
    Case("tied-by-copy", CopiedHeadGPT, GPT, ("tying",), ("", "lm_head", "transformer.wte")),
    Case(
        "logits-centred-over-batch",
        CenteredGPT,
        CenteredOverVocabularyGPT,
        (*ROWS, "accumulation"),
        "",
    ),
    Case("ids-written-in-place", ForcedStartInPlaceGPT, ForcedStartGPT, ("purity",), ""),
    Case("shift-rolls-around", lambda: TinyGPT(RolledBlock), TinyGPT, LEAK, "blocks.*"),
    Case("shift-to-the-left", lambda: TinyGPT(BackwardBlock), TinyGPT, LEAK, "blocks.*"),
    Case("blocks-in-a-list", ListGPT, TinyGPT, ("gradient.reaches",), ""),
    Case("positions-restart", RestartedGPT, SpeedrunGPT, ("cache.step", "cache.chunk"), ""),
    Case(
        "chunk-mask-top-left",
        lambda: SpeedrunGPT(TopLeftAttention),
        SpeedrunGPT,
        ("cache.chunk",),
        "blocks.*.attn",
    ),
    Case(
        "keys-rotated-again",
        lambda: SpeedrunGPT(LateRotaryAttention),
        SpeedrunGPT,
        ("cache.step", "cache.chunk"),
        "blocks.*.attn",
    ),
    Case(
        "cache-advanced-by-every-layer",
        ForgetfulGPT,
        CachedGPT,
        ("cache.step", "cache.chunk", "cache.generate"),
        "",
    ),
]
