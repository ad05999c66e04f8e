"""Causal masks that do nothing: six authors build one, and each loses it in four ways."""

import math
from collections import namedtuple

import torch
from tests.laws.strangers.case import Case
from tests.laws.strangers.mask_helpers import lower_triangle
from torch import nn
from torch.nn import functional as F

# First author, a tutorial: one small class per idea, and the triangle comes from a helper module.


class Head(nn.Module):
    """one head of self-attention"""

    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)

    def forward(self, x, mask=None):
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * self.key.out_features**-0.5
        if mask is not None:
            wei = wei.masked_fill(mask == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        return wei @ self.value(x)


class HeadNotAssigned(Head):
    def forward(self, x, mask=None):
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * self.key.out_features**-0.5
        if mask is not None:
            wei.masked_fill(mask == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        return wei @ self.value(x)


class HeadMaskedLate(Head):
    def forward(self, x, mask=None):
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * self.key.out_features**-0.5
        wei = F.softmax(wei, dim=-1)
        if mask is not None:
            wei = wei * mask
        return wei @ self.value(x)


class HeadPlusOnes(Head):
    def forward(self, x, mask=None):
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * self.key.out_features**-0.5
        if mask is not None:
            wei = wei + mask
        wei = F.softmax(wei, dim=-1)
        return wei @ self.value(x)


class MultiHead(nn.Module):
    """several heads of self-attention in parallel"""

    def __init__(self, n_embd, n_head, head=Head):
        super().__init__()
        self.heads = nn.ModuleList([head(n_embd, n_embd // n_head) for _ in range(n_head)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x, mask=None):
        return self.proj(torch.cat([h(x, mask) for h in self.heads], dim=-1))


class MultiHeadForgets(MultiHead):
    def forward(self, x, mask=None):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


class TutorialBlock(nn.Module):
    """communication followed by computation"""

    def __init__(self, n_embd, sa):
        super().__init__()
        self.sa = sa
        self.ffwd = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.ReLU(), nn.Linear(4 * n_embd, n_embd)
        )
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)

    def forward(self, x, mask):
        x = x + self.sa(self.ln1(x), mask)
        return x + self.ffwd(self.ln2(x))


class TutorialLM(nn.Module):
    def __init__(self, head=Head, multi=MultiHead, vocab_size=37, n_embd=16, block_size=160):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab_size, n_embd)
        self.position_embedding_table = nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(
            [TutorialBlock(n_embd, multi(n_embd, 4, head)) for _ in range(2)]
        )
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets=None):
        T = idx.shape[1]
        x = self.token_embedding_table(idx)
        x = x + self.position_embedding_table(torch.arange(T, device=idx.device))
        mask = lower_triangle(T, device=idx.device)
        for block in self.blocks:
            x = block(x, mask)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# Second author, a research repository: a dict of settings, one big class, triu of -inf as a bias.

BASE = {"vocab": 41, "width": 24, "heads": 3, "depth": 2, "context": 192}
LMOutput = namedtuple("LMOutput", "logits hidden")


class CausalMixer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.h, self.dh = cfg["heads"], cfg["width"] // cfg["heads"]
        self.Wqkv = nn.Linear(cfg["width"], 3 * cfg["width"])
        self.Wo = nn.Linear(cfg["width"], cfg["width"])

    def forward(self, x, key_bias=None):
        b, n, _ = x.shape
        q, k, v = self.Wqkv(x).view(b, n, 3, self.h, self.dh).permute(2, 0, 3, 1, 4)
        logits = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(self.dh)
        bias = torch.triu(torch.full_like(logits[0, 0], float("-inf")), diagonal=1)
        logits = self.biased(logits, bias, key_bias)
        out = torch.einsum("bhij,bhjd->bihd", logits.softmax(-1), v)
        return self.Wo(out.reshape(b, n, -1))

    def biased(self, logits, bias, key_bias):
        if key_bias is not None:
            bias = bias + key_bias
        return logits + bias


class DroppedBias(CausalMixer):
    def biased(self, logits, bias, key_bias):
        if key_bias is not None:
            bias = bias + key_bias
        logits.masked_fill(bias.isinf(), float("-inf"))
        return logits


class BiasOnTheCopy(CausalMixer):
    def biased(self, logits, bias, key_bias):
        # keep the raw scores for the heat maps of the appendix
        self.for_plots = logits.detach().clone()
        self.for_plots += bias
        return logits if key_bias is None else logits + key_bias


class ReplacedBias(CausalMixer):
    def biased(self, logits, bias, key_bias):
        bias = torch.zeros_like(bias) if key_bias is None else key_bias
        return logits + bias


class TransposedBias(CausalMixer):
    def biased(self, logits, bias, key_bias):
        bias = bias.t()
        if key_bias is not None:
            bias = bias + key_bias
        return logits + bias


class ResearchLM(nn.Module):
    def __init__(self, mixer=CausalMixer, **overrides):
        super().__init__()
        cfg = {**BASE, **overrides}
        d = cfg["width"]
        self.emb = nn.Embedding(cfg["vocab"], d)
        self.pos = nn.Parameter(torch.randn(cfg["context"], d) * 0.02)
        self.mixers = nn.ModuleList([mixer(cfg) for _ in range(cfg["depth"])])
        self.mlps = nn.ModuleList(
            [
                nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))
                for _ in range(cfg["depth"])
            ]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(cfg["depth"])])
        self.out = nn.Linear(d, cfg["vocab"], bias=False)

    def forward(self, tokens):
        h = self.emb(tokens) + self.pos[: tokens.shape[1]]
        for norm, mixer, mlp in zip(self.norms, self.mixers, self.mlps, strict=True):
            h = h + mixer(norm(h))
            h = h + mlp(h)
        return LMOutput(self.out(h), h)


# Third author, closures: attention is a function made by functions, compared by position.


def hide(scores, visible):
    return scores.masked_fill(~visible, float("-inf"))


def hide_without_result(scores, visible):
    scores.masked_fill(~visible, float("-inf"))
    return scores


def hide_by_product(scores, visible):
    return scores * visible


def hide_then_temper(scores, visible, temperature=0.7):
    tempered = scores.masked_fill(~visible, float("-inf"))
    tempered = scores / temperature
    return tempered


def hide_visible(scores, visible):
    return scores.masked_fill(visible, -1e9)


def make_attention(hiding):
    def attend(q, k, v):
        positions = torch.arange(q.size(-2), device=q.device)
        visible = positions[:, None] >= positions[None, :]
        scores = q @ k.mT / q.size(-1) ** 0.5
        return hiding(scores, visible).softmax(-1) @ v

    return attend


def residual(norm, function):
    return lambda x: x + function(norm(x))


class ClosureLayer(nn.Module):
    def __init__(self, dim, heads, hiding):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.split = lambda t: t.unflatten(-1, (heads, dim // heads)).transpose(1, 2)
        self.attend = make_attention(hiding)

    def forward(self, x):
        q, k, v = map(self.split, self.qkv(x).chunk(3, -1))
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


class ClosureLM(nn.Module):
    def __init__(self, hiding=hide, vocab=31, dim=20, heads=5):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, dim), nn.Embedding(256, dim)
        self.layers = nn.ModuleList([ClosureLayer(dim, heads, hiding) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(2)])
        self.unembed = nn.Linear(dim, vocab)

    def forward(self, input_ids):
        x = self.tokens(input_ids) + self.places.weight[: input_ids.size(1)]
        for step in [residual(n, f) for n, f in zip(self.norms, self.layers, strict=True)]:
            x = step(x)
        return self.unembed(x)


# Fourth author, buffers: the triangle is stored once for the longest context and cut to size.


class BufferedAttention(nn.Module):
    def __init__(self, hidden=32, num_heads=4, max_len=200):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden // 2)
        self.v_proj = nn.Linear(hidden, hidden // 2)
        self.o_proj = nn.Linear(hidden, hidden)
        self.register_buffer("causal_mask", torch.ones(max_len, max_len).tril().bool())

    def project(self, x):
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.num_heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.num_heads // 2, -1).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.num_heads // 2, -1).transpose(1, 2)
        return q, k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)

    def merge(self, y):
        return self.o_proj(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        q, k, v = self.project(x)
        T = x.size(1)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        att = att.masked_fill(~self.causal_mask[:T, :T], torch.finfo(att.dtype).min)
        return self.merge(att.softmax(-1) @ v)


class BufferedNotAssigned(BufferedAttention):
    def forward(self, x):
        q, k, v = self.project(x)
        T = x.size(1)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        att.masked_fill(~self.causal_mask[:T, :T], torch.finfo(att.dtype).min)
        return self.merge(att.softmax(-1) @ v)


class BufferedTooLate(BufferedAttention):
    def forward(self, x):
        q, k, v = self.project(x)
        T = x.size(1)
        att = ((q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))).softmax(-1)
        y = att @ v
        self.last_att = att.detach() * self.causal_mask[:T, :T]
        return self.merge(y)


class BufferedUnused(BufferedAttention):
    """Flash path: same projections, fused kernel."""

    def forward(self, x):
        q, k, v = self.project(x)
        return self.merge(F.scaled_dot_product_attention(q, k, v))


class BufferedInverted(BufferedAttention):
    def forward(self, x):
        q, k, v = self.project(x)
        T = x.size(1)
        masked_out = self.causal_mask[:T, :T] == 0
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=masked_out))


class BufferedLM(nn.Module):
    def __init__(self, attention=BufferedAttention, vocab=53, hidden=32):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, hidden)
        self.embed_positions = nn.Embedding(200, hidden)
        self.layers = nn.ModuleList()
        for _ in range(2):
            self.layers.append(
                nn.ModuleDict(
                    {
                        "attn": attention(hidden),
                        "attn_norm": nn.LayerNorm(hidden),
                        "mlp": nn.Sequential(
                            nn.Linear(hidden, 48), nn.GELU(), nn.Linear(48, hidden)
                        ),
                        "mlp_norm": nn.LayerNorm(hidden),
                    }
                )
            )
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, input_ids):
        positions = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.embed_tokens(input_ids) + self.embed_positions(positions)
        for layer in self.layers:
            x = x + layer["attn"](layer["attn_norm"](x))
            x = x + layer["mlp"](layer["mlp_norm"](x))
        return self.lm_head(x)


# Fifth author, class hierarchies: abstract bases, template methods, and a mask made of lists.


class AbstractAttention(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.size, self.heads = size, heads

    def build_mask(self, length):
        rows = []
        for query in range(length):
            row = []
            for key in range(length):
                row.append(1 if key <= query else 0)
            rows.append(row)
        return torch.tensor(rows)

    def compute_scores(self, q, k):
        raise NotImplementedError

    def apply_mask(self, scores, mask):
        raise NotImplementedError

    def normalize(self, scores, mask):
        return torch.softmax(scores, dim=-1)


class DotProductAttention(AbstractAttention):
    def compute_scores(self, q, k):
        return torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.size // self.heads)

    def apply_mask(self, scores, mask):
        if mask is not None:
            scores.masked_fill_(mask == 0, float("-inf"))

    def compute(self, q, k, v, mask):
        scores = self.compute_scores(q, k)
        self.apply_mask(scores, mask)
        return torch.matmul(self.normalize(scores, mask), v)


class SelfAttention(DotProductAttention):
    def __init__(self, size, heads):
        super().__init__(size, heads)
        self.project_in = nn.ModuleList([nn.Linear(size, size) for _ in range(3)])
        self.project_out = nn.Linear(size, size)

    def split(self, x):
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = (self.split(linear(x)) for linear in self.project_in)
        context = self.compute(q, k, v, self.build_mask(x.size(1)).to(x.device))
        return self.project_out(context.transpose(1, 2).contiguous().view(x.shape))


class OutOfPlaceSelfAttention(SelfAttention):
    def apply_mask(self, scores, mask):
        if mask is not None:
            scores.masked_fill(mask == 0, float("-inf"))


class RenormalizedSelfAttention(SelfAttention):
    def apply_mask(self, scores, mask):
        pass

    def normalize(self, scores, mask):
        weights = torch.softmax(scores, dim=-1) * mask
        return weights / weights.sum(dim=-2, keepdim=True)


class RoutedSelfAttention(SelfAttention):
    """Hook for experiments with other kernels; the default is the parent's."""

    def compute(self, q, k, v, mask, temperature=1.0):
        return super().compute(q / temperature, k, v, mask=None)


class CountingSelfAttention(SelfAttention):
    def apply_mask(self, scores, mask):
        if mask is not None:
            scores.add_(mask)


class HierarchyLayer(nn.Module):
    def __init__(self, size, attention):
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.LayerNorm(size)
        self.feed_forward = nn.Sequential(nn.Linear(size, 40), nn.ReLU(), nn.Linear(40, size))
        self.feed_forward_norm = nn.LayerNorm(size)

    def forward(self, x):
        x = self.attention_norm(x + self.attention(x))
        return self.feed_forward_norm(x + self.feed_forward(x))


class HierarchyLM(nn.Module):
    def __init__(self, attention=SelfAttention, vocabulary=43, size=18, heads=3, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.position = nn.Embedding(160, size)
        self.stack = nn.Sequential(
            *(HierarchyLayer(size, attention(size, heads)) for _ in range(layers))
        )
        self.generator = nn.Linear(size, vocabulary)

    def forward(self, sequence):
        places = torch.arange(sequence.size(1), device=sequence.device).expand_as(sequence)
        return self.generator(self.stack(self.embedding(sequence) + self.position(places)))


# Sixth author, torch's own parts: generate_square_subsequent_mask, or is_causal under an if.


def torch_mask(size, like):
    return nn.Transformer.generate_square_subsequent_mask(
        size, device=like.device, dtype=like.dtype
    )


class FusedAttention(nn.Module):
    def __init__(self, d_model=24, nhead=2, causal=True):
        super().__init__()
        self.nhead, self.causal = nhead, causal
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def heads(self, x):
        return self.in_proj(x).unflatten(-1, (3, self.nhead, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x, keep=None):
        q, k, v = self.heads(x)
        if self.causal:
            mask = torch_mask(x.size(1), x)
            if keep is not None:
                mask = mask.masked_fill(~keep[:, None, None, :], float("-inf"))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class FusedNotAssigned(FusedAttention):
    def forward(self, x, keep=None):
        q, k, v = self.heads(x)
        bias = torch.zeros(x.size(1), x.size(1), dtype=x.dtype, device=x.device)
        if self.causal:
            bias.masked_fill(torch_mask(x.size(1), x).isinf(), float("-inf"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class FusedFlagOnly(FusedAttention):
    """The flag instead of a mask, as the documentation of the fused kernel advises."""

    def forward(self, x, keep=None):
        q, k, v = self.heads(x)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class FusedOverwritten(FusedAttention):
    def forward(self, x, keep=None):
        q, k, v = self.heads(x)
        mask = None
        if keep is None:
            keep = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        if keep is not None:
            mask = keep[:, None, None, :]
        # the kernel takes a mask or the flag, never both
        causal = self.causal and mask is None
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class FusedBoolean(FusedAttention):
    def forward(self, x, keep=None):
        q, k, v = self.heads(x)
        mask = None
        if self.causal:
            mask = torch_mask(x.size(1), x).bool()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class FusedLM(nn.Module):
    def __init__(self, attention=FusedAttention, ntoken=47, d_model=24):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, d_model)
        self.pos = nn.Embedding(160, d_model)
        self.attns = nn.ModuleList([attention(d_model) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(d_model) for _ in range(2)])
        self.decoder = nn.Linear(d_model, ntoken)

    def forward(self, src):
        x = self.encoder(src) * math.sqrt(24) + self.pos(torch.arange(src.size(1)).to(src.device))
        for attn, norm in zip(self.attns, self.norms, strict=True):
            x = x + attn(norm(x))
        return self.decoder(x)


class TorchDecoderLM(nn.Module):
    """torch's decoder stack as a language model: the memory is the sequence itself."""

    def __init__(self, ntoken=47, d_model=24):
        super().__init__()
        self.embed = nn.Embedding(ntoken, d_model)
        self.pos = nn.Embedding(160, d_model)
        layer = nn.TransformerDecoderLayer(d_model, 2, 48, dropout=0.0, batch_first=True)
        self.stack = nn.TransformerDecoder(layer, 2)
        self.head = nn.Linear(d_model, ntoken)

    def decode(self, x, mask):
        return self.stack(x, x, tgt_mask=mask, memory_mask=mask)

    def forward(self, src):
        x = self.embed(src) + self.pos(torch.arange(src.size(1), device=src.device))
        return self.head(self.decode(x, torch_mask(src.size(1), x)))


class TorchDecoderWrongMask(TorchDecoderLM):
    def decode(self, x, mask):
        return self.stack(x, x, memory_mask=mask)


LEAK = ("causality.perturb", "causality.gradient", "causality.prefix")


def grid(name, faulty, lawful, module):
    return Case(name, faulty=faulty, lawful=lawful, laws=LEAK, module=module)


CASES = [
    grid(
        "helper-tril-not-assigned",
        lambda: TutorialLM(head=HeadNotAssigned),
        TutorialLM,
        "blocks.*.sa.heads.*",
    ),
    grid(
        "helper-tril-after-softmax",
        lambda: TutorialLM(head=HeadMaskedLate),
        TutorialLM,
        "blocks.*.sa.heads.*",
    ),
    grid(
        "helper-tril-never-passed",
        lambda: TutorialLM(multi=MultiHeadForgets),
        TutorialLM,
        ("blocks.*.sa", "blocks.*.sa.heads.*"),
    ),
    grid(
        "helper-tril-ones-added",
        lambda: TutorialLM(head=HeadPlusOnes),
        TutorialLM,
        "blocks.*.sa.heads.*",
    ),
    grid("triu-inf-not-assigned", lambda: ResearchLM(DroppedBias), ResearchLM, "mixers.*"),
    grid("triu-inf-wrong-tensor", lambda: ResearchLM(BiasOnTheCopy), ResearchLM, "mixers.*"),
    grid("triu-inf-overwritten", lambda: ResearchLM(ReplacedBias), ResearchLM, "mixers.*"),
    grid("triu-inf-transposed", lambda: ResearchLM(TransposedBias), ResearchLM, "mixers.*"),
    grid("arange-not-assigned", lambda: ClosureLM(hide_without_result), ClosureLM, "layers.*"),
    grid("arange-multiplied", lambda: ClosureLM(hide_by_product), ClosureLM, "layers.*"),
    grid("arange-overwritten", lambda: ClosureLM(hide_then_temper), ClosureLM, "layers.*"),
    grid("arange-wrong-sense", lambda: ClosureLM(hide_visible), ClosureLM, "layers.*"),
    grid(
        "buffer-not-assigned", lambda: BufferedLM(BufferedNotAssigned), BufferedLM, "layers.*.attn"
    ),
    grid("buffer-too-late", lambda: BufferedLM(BufferedTooLate), BufferedLM, "layers.*.attn"),
    grid("buffer-never-used", lambda: BufferedLM(BufferedUnused), BufferedLM, "layers.*.attn"),
    grid("buffer-wrong-sense", lambda: BufferedLM(BufferedInverted), BufferedLM, "layers.*.attn"),
    grid(
        "loops-not-assigned",
        lambda: HierarchyLM(OutOfPlaceSelfAttention),
        HierarchyLM,
        "stack.*.attention",
    ),
    grid(
        "loops-renormalised-over-queries",
        lambda: HierarchyLM(RenormalizedSelfAttention),
        HierarchyLM,
        "stack.*.attention",
    ),
    grid(
        "loops-never-passed",
        lambda: HierarchyLM(RoutedSelfAttention),
        HierarchyLM,
        "stack.*.attention",
    ),
    grid(
        "loops-ones-added",
        lambda: HierarchyLM(CountingSelfAttention),
        HierarchyLM,
        "stack.*.attention",
    ),
    grid("torch-not-assigned", lambda: FusedLM(FusedNotAssigned), FusedLM, "attns.*"),
    grid("torch-wrong-argument", TorchDecoderWrongMask, TorchDecoderLM, ("", "stack")),
    grid(
        "torch-flag-overwritten",
        lambda: FusedLM(FusedOverwritten),
        lambda: FusedLM(FusedFlagOnly),
        "attns.*",
    ),
    grid("torch-mask-as-bool", lambda: FusedLM(FusedBoolean), FusedLM, "attns.*"),
]
