"""Research code around einops: exists() and default(), PreNorm and Residual wrappers, kwargs."""

from functools import partial

import torch
import torch.nn.functional as F
from einops import rearrange, reduce, repeat
from tests.laws.strangers.case import Case
from torch import einsum, nn

# helpers


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


def max_neg_value(t):
    return -torch.finfo(t.dtype).max


def l2norm(t):
    return F.normalize(t, dim=-1)


# positions


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, theta=10000):
        super().__init__()
        self.dim, self.theta = dim, theta

    def inv_freq(self, n, device):
        return self.theta ** -(torch.arange(0, self.dim, 2, device=device).float() / self.dim)

    def forward(self, n, offset=0, device=None):
        t = torch.arange(offset, offset + n, device=device).float()
        freqs = einsum("i , j -> i j", t, self.inv_freq(offset + n, device))
        return torch.cat((freqs, freqs), dim=-1)


class DynamicNTKRotary(RotaryEmbedding):
    """stretches theta when sequences get longer than what was trained on"""

    def __init__(self, dim, theta=10000, trained_len=8):
        super().__init__(dim, theta)
        self.longest = trained_len
        self.trained_len = trained_len

    def inv_freq(self, n, device):
        self.longest = max(self.longest, n)
        theta = self.theta * (self.longest / self.trained_len) ** (self.dim / (self.dim - 2))
        return theta ** -(torch.arange(0, self.dim, 2, device=device).float() / self.dim)


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(t, freqs):
    return t * freqs.cos().type_as(t) + rotate_half(t) * freqs.sin().type_as(t)


class SinusoidalEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return x + self.sinusoids(x)

    def sinusoids(self, x):
        inv_freq = 10000 ** -(torch.arange(0, self.dim, 2, device=x.device).float() / self.dim)
        freqs = torch.arange(x.shape[1], device=x.device).float()[:, None] * inv_freq
        return rearrange(torch.cat((freqs.sin(), freqs.cos()), dim=-1), "n d -> () n d").type_as(x)


class UncastSinusoidalEmbedding(SinusoidalEmbedding):
    def sinusoids(self, x):
        inv_freq = 10000 ** -(torch.arange(0, self.dim, 2, device=x.device).float() / self.dim)
        t = torch.arange(x.shape[1], device=x.device).float()
        freqs = einsum("i , j -> i j", t, inv_freq)
        return rearrange(torch.cat((freqs.sin(), freqs.cos()), dim=-1), "n d -> () n d")


# wrappers


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x, **kwargs):
        return self.fn(x, **kwargs) + x


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, x, **kwargs):
        return self.fn(self.norm(x), **kwargs)


class GEGLU(nn.Module):
    def forward(self, x):
        x, gate = x.chunk(2, dim=-1)
        return F.gelu(gate) * x


def FeedForward(dim, mult=2):  # noqa: N802
    return nn.Sequential(nn.Linear(dim, dim * mult * 2), GEGLU(), nn.Linear(dim * mult, dim))


# attention


class Attention(nn.Module):
    def __init__(self, dim, *, heads=4, dim_head=6, causal=False, num_mem_kv=0, **kwargs):
        super().__init__()
        self.heads, self.causal, self.num_mem_kv = heads, causal, num_mem_kv
        self.scale = dim_head**-0.5
        inner = heads * dim_head
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim)
        if num_mem_kv > 0:
            self.mem_kv = nn.Parameter(torch.randn(2, heads, num_mem_kv, dim_head))

    def pad_mask_for_mem(self, mask):
        return F.pad(mask, (self.num_mem_kv, 0), value=True)

    def causal_mask(self, i, j, device):
        return torch.ones((i, j), dtype=torch.bool, device=device).triu(j - i + 1)

    def similarity(self, q, k):
        return einsum("b h i d, b h j d -> b h i j", q, k) * self.scale

    def mask_similarity(self, sim, mask):
        i, j = sim.shape[-2:]
        if exists(mask):
            sim = sim.masked_fill(~rearrange(mask, "b j -> b () () j"), max_neg_value(sim))
        if self.causal:
            sim = sim.masked_fill(self.causal_mask(i, j, sim.device), max_neg_value(sim))
        return sim

    def activate(self, sim):
        return sim.softmax(dim=-1)

    def merge(self, out):
        return rearrange(out, "b h n d -> b n (h d)")

    def forward(self, x, mask=None, rotary_pos_emb=None, cached_kv=None, return_kv=False):
        q, k, v = self.to_q(x), *self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))
        if exists(rotary_pos_emb):
            q, k = (apply_rotary_pos_emb(t, rotary_pos_emb) for t in (q, k))
        if exists(cached_kv):
            k = torch.cat((cached_kv[0], k), dim=-2)
            v = torch.cat((cached_kv[1], v), dim=-2)
        kv = (k, v)
        if self.num_mem_kv > 0:
            mem_k, mem_v = repeat(self.mem_kv, "kv h n d -> kv b h n d", b=x.shape[0])
            k, v = torch.cat((mem_k, k), dim=-2), torch.cat((mem_v, v), dim=-2)
            mask = self.pad_mask_for_mem(mask) if exists(mask) else None
        attn = self.activate(self.mask_similarity(self.similarity(q, k), mask))
        out = self.to_out(self.merge(einsum("b h i j, b h j d -> b h i d", attn, v)))
        return (out, kv) if return_kv else out


CausalAttention = partial(Attention, causal=True)


class QuerySoftmaxAttention(Attention):
    def activate(self, sim):
        return sim.softmax(dim=-2)


class BatchSoftmaxAttention(Attention):
    def activate(self, sim):
        return sim.softmax(dim=0)


class WindowAttention(Attention):
    def causal_mask(self, i, j, device, window=5):
        ahead = torch.arange(j, device=device) - rearrange(
            torch.arange(j - i, j, device=device), "i -> i ()"
        )
        return (ahead > 0) | (ahead <= -window)


class CentredWindowAttention(Attention):
    def causal_mask(self, i, j, device, window=5):
        ahead = torch.arange(j, device=device) - rearrange(
            torch.arange(j - i, j, device=device), "i -> i ()"
        )
        return ahead.abs() >= window


class TalkingHeadsAttention(Attention):
    def __init__(self, dim, **kwargs):
        super().__init__(dim, **kwargs)
        self.talk = nn.Conv2d(self.heads, self.heads, 1, bias=False)

    def mask_similarity(self, sim, mask):
        return super().mask_similarity(self.talk(sim), mask)


class TalkedOverAttention(TalkingHeadsAttention):
    def mask_similarity(self, sim, mask):
        i, j = sim.shape[-2:]
        sim = sim.masked_fill(self.causal_mask(i, j, sim.device), -1e4)
        return self.talk(sim)


class CosineAttention(Attention):
    def __init__(self, dim, **kwargs):
        super().__init__(dim, **kwargs)
        self.temperature = nn.Parameter(torch.ones(self.heads, 1, 1))

    def learned_scale(self):
        return self.temperature.exp().clamp(max=100)

    def similarity(self, q, k):
        return einsum("b h i d, b h j d -> b h i j", l2norm(q), l2norm(k)) * self.learned_scale()


class FrozenCosineAttention(CosineAttention):
    @torch.no_grad()
    def learned_scale(self):
        return self.temperature.exp().clamp(max=100)


class GatedAttention(Attention):
    def __init__(self, dim, **kwargs):
        super().__init__(dim, **kwargs)
        self.to_gates = nn.Linear(dim, self.heads * 6)

    def forward(self, x, **kwargs):
        self.gates = self.to_gates(x).sigmoid()
        return super().forward(x, **kwargs)

    def merge(self, out):
        return super().merge(out) * self.gates


class GatesForgottenAttention(GatedAttention):
    def merge(self, out):
        return rearrange(out, "b h n d -> b n (h d)")


class HiddenVisibleAttention(Attention):
    def mask_similarity(self, sim, mask):
        if exists(mask):
            mask = rearrange(mask, "b j -> b () () j")
            sim = sim.masked_fill(mask, max_neg_value(sim))
        return sim


class InfiniteMaskAttention(Attention):
    def mask_similarity(self, sim, mask):
        if exists(mask):
            sim = sim.masked_fill(~rearrange(mask, "b j -> b () () j"), float("-inf"))
        return sim


class ReshapedHeadsAttention(Attention):
    def merge(self, out):
        b, h, n, d = out.shape
        return out.reshape(b, n, h * d)


class MemoryAtTheWrongEndAttention(Attention):
    def pad_mask_for_mem(self, mask):
        return F.pad(mask, (0, self.num_mem_kv), value=True)


class FoldedHeadsAttention(Attention):
    """heads folded into the batch, as before einops had ellipses"""

    def mask_similarity(self, sim, mask):
        h = sim.shape[1]
        if exists(mask):
            sim = rearrange(sim, "b h i j -> (b h) i j")
            mask = self.repeat_over_heads(mask, h)
            sim = sim.masked_fill(~mask, max_neg_value(sim))
            sim = rearrange(sim, "(b h) i j -> b h i j", h=h)
        return sim

    def repeat_over_heads(self, mask, h):
        return repeat(mask, "b j -> (b h) () j", h=h)


class HeadsBeforeBatchAttention(FoldedHeadsAttention):
    def repeat_over_heads(self, mask, h):
        return repeat(mask, "b j -> (h b) () j", h=h)


class LinearAttention(nn.Module):
    """causal linear attention, no mask needed: the sums run over the past"""

    def __init__(self, dim, heads=4, dim_head=6, **kwargs):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, heads * dim_head * 3, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def normalizer(self, q, k):
        return einsum("b h n d, b h n d -> b h n", q, k.cumsum(dim=-2))

    def forward(self, x, **kwargs):
        q, k, v = rearrange(self.to_qkv(x), "b n (qkv h d) -> qkv b h n d", qkv=3, h=self.heads)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        context = einsum("b h n d, b h n e -> b h n d e", k, v).cumsum(dim=-3)
        out = einsum("b h n d, b h n d e -> b h n e", q, context)
        out = out / self.normalizer(q, k).clamp(min=1e-4)[..., None]
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))


class WholeSumLinearAttention(LinearAttention):
    def normalizer(self, q, k):
        return einsum("b h n d, b h d -> b h n", q, k.sum(dim=-2))


class DepthwiseConv(nn.Module):
    """mixes a token with its last few neighbours, GLU inside"""

    def __init__(self, dim, kernel_size=4, norm=nn.Identity, causal=True):
        super().__init__()
        self.pad = (kernel_size - 1, 0) if causal else (kernel_size // 2, (kernel_size - 1) // 2)
        self.to_in = nn.Linear(dim, dim * 2)
        self.conv = nn.Conv1d(dim, dim, kernel_size, groups=dim)
        self.norm = norm(dim)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, **kwargs):
        x = rearrange(F.glu(self.to_in(x), dim=-1), "b n d -> b d n")
        x = self.norm(self.conv(F.pad(x, self.pad)))
        return self.to_out(F.silu(rearrange(x, "b d n -> b n d")))


class GlobalContext(nn.Module):
    """squeeze and excite over the sequence"""

    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim), nn.Sigmoid())

    def squeeze(self, x, mask):
        if not exists(mask):
            return reduce(x, "b n d -> b () d", "mean")
        mask = rearrange(mask, "b n -> b n ()")
        return (x * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)

    def forward(self, x, mask=None, **kwargs):
        return x * self.net(self.squeeze(x, mask))


class PaddedGlobalContext(GlobalContext):
    def squeeze(self, x, mask):
        return reduce(x, "b n d -> b () d", "mean")


# models


class AttentionLayers(nn.Module):
    def __init__(self, dim, depth=2, attn=Attention, rotary=None, **kwargs):
        super().__init__()
        self.rotary_pos_emb = rotary
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(
                nn.ModuleList(
                    [
                        Residual(PreNorm(dim, attn(dim, **kwargs))),
                        Residual(PreNorm(dim, FeedForward(dim))),
                    ]
                )
            )

    def forward(self, x, mask=None):
        rotary_pos_emb = None
        if exists(self.rotary_pos_emb):
            rotary_pos_emb = self.rotary_pos_emb(x.shape[1], device=x.device)
        for attn, ff in self.layers:
            x = attn(x, mask=mask, rotary_pos_emb=rotary_pos_emb)
            x = ff(x)
        return x


class FirstLayerMasked(AttentionLayers):
    def forward(self, x, mask=None):
        kwargs = {"mask": mask}
        for attn, ff in self.layers:
            x = attn(x, **kwargs)
            x = ff(x)
            kwargs = {}
        return x


Encoder = partial(AttentionLayers, causal=False)
Decoder = partial(AttentionLayers, causal=True)
MisspeltDecoder = partial(AttentionLayers, is_causal=True)  # swallowed by **kwargs


class TransformerWrapper(nn.Module):
    def __init__(self, *, num_tokens=44, dim=24, layers=Decoder, num_out=None, **kwargs):
        super().__init__()
        self.token_emb = nn.Embedding(num_tokens, dim)
        self.attn_layers = layers(dim, **kwargs)
        self.norm = nn.LayerNorm(dim)
        self.to_logits = nn.Linear(dim, default(num_out, num_tokens))

    def forward(self, x, mask=None, return_embeddings=False):
        x = self.token_emb(x)
        x = self.norm(self.attn_layers(x, mask=mask))
        return x if return_embeddings else self.to_logits(x)


class CachedWrapper(nn.Module):
    """a decoder whose intermediates go out and come back in as a dict"""

    def __init__(self, num_tokens=39, dim=24, depth=2, attn=Attention):
        super().__init__()
        self.token_emb = nn.Embedding(num_tokens, dim)
        self.rotary_pos_emb = RotaryEmbedding(6)
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.attns = nn.ModuleList([attn(dim, causal=True) for _ in range(depth)])
        self.ff = Residual(PreNorm(dim, FeedForward(dim)))
        self.to_logits = nn.Linear(dim, num_tokens)

    def offset(self, cache):
        return cache["length"] if exists(cache) else 0

    def forward(self, x, cache=None):
        n, offset = x.shape[1], self.offset(cache)
        freqs = self.rotary_pos_emb(n, offset, device=x.device)
        x, kvs = self.token_emb(x), []
        cached_kvs = iter(cache["kvs"] if exists(cache) else [])
        for norm, attn in zip(self.norms, self.attns, strict=True):
            out, kv = attn(
                norm(x), rotary_pos_emb=freqs, cached_kv=next(cached_kvs, None), return_kv=True
            )
            x = x + out
            kvs.append(kv)
        return self.to_logits(self.ff(x)), {"kvs": kvs, "length": offset + n}


class OffsetByOneWrapper(CachedWrapper):
    def offset(self, cache):
        return cache["length"] - 1 if exists(cache) else 0


class SquareMaskAttention(Attention):
    def causal_mask(self, i, j, device):
        return torch.ones((i, j), dtype=torch.bool, device=device).triu(1)


def sequential_lm(mixer, num_tokens=35, dim=24, depth=2, positions=nn.Identity):
    blocks = [positions(dim)]
    for _ in range(depth):
        blocks.append(Residual(PreNorm(dim, mixer(dim))))
        blocks.append(Residual(PreNorm(dim, FeedForward(dim))))
    return nn.Sequential(
        nn.Embedding(num_tokens, dim), *blocks, nn.LayerNorm(dim), nn.Linear(dim, num_tokens)
    )


def context_tagger(context, num_tokens=46, dim=24):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(num_tokens, dim)
            self.attn = Residual(PreNorm(dim, Attention(dim)))
            self.context = Residual(PreNorm(dim, context(dim)))
            self.to_tags = nn.Linear(dim, 7)

        def forward(self, tokens, mask=None):
            x = self.attn(self.emb(tokens), mask=mask)
            return self.to_tags(self.context(x, mask=mask))

    return Tagger()


def decoder(**kwargs):
    return TransformerWrapper(rotary=RotaryEmbedding(6), **kwargs)


def tagger(**kwargs):
    return TransformerWrapper(**{"layers": Encoder, "num_out": 5, **kwargs})


LEAK = ("causality.perturb", "causality.gradient", "causality.prefix")
ROWS = ("batch.alone", "batch.others")
PADS = ("padding.right", "padding.left", "padding.gradient")
ATTN = "attn_layers.layers.*.0.fn.fn"

CASES = [
    Case(
        "kwargs-swallow-causal",
        lambda: decoder(layers=MisspeltDecoder),
        decoder,
        LEAK,
        ("attn_layers", ATTN),
    ),
    Case(
        "softmax-over-queries",
        lambda: decoder(attn=QuerySoftmaxAttention),
        decoder,
        LEAK,
        ATTN,
    ),
    Case(
        "softmax-over-batch",
        lambda: decoder(attn=BatchSoftmaxAttention),
        decoder,
        (*ROWS, *LEAK),
        ATTN,
    ),
    Case(
        "window-on-both-sides",
        lambda: decoder(attn=CentredWindowAttention),
        lambda: decoder(attn=WindowAttention),
        LEAK,
        ATTN,
    ),
    Case(
        "talking-heads-after-mask",
        lambda: decoder(attn=TalkedOverAttention),
        lambda: decoder(attn=TalkingHeadsAttention),
        LEAK,
        ATTN,
    ),
    Case(
        "linear-attention-whole-normalizer",
        lambda: sequential_lm(WholeSumLinearAttention),
        lambda: sequential_lm(LinearAttention),
        LEAK,
        ("2.fn.fn", "4.fn.fn"),
    ),
    Case(
        "conv-padded-on-both-sides",
        lambda: sequential_lm(partial(DepthwiseConv, causal=False)),
        lambda: sequential_lm(DepthwiseConv),
        LEAK,
        ("2.fn.fn", "4.fn.fn", "2.fn.fn.conv", "4.fn.fn.conv"),
    ),
    Case(
        "batch-norm-in-conv",
        lambda: sequential_lm(partial(DepthwiseConv, norm=nn.BatchNorm1d)),
        lambda: sequential_lm(DepthwiseConv),
        (*LEAK, *ROWS, "accumulation"),
        ("2.fn.fn", "4.fn.fn", "2.fn.fn.norm", "4.fn.fn.norm"),
    ),
    Case(
        "theta-only-grows",
        lambda: TransformerWrapper(rotary=DynamicNTKRotary(6)),
        decoder,
        ("determinism", "causality.prefix"),
        "attn_layers.rotary_pos_emb",
    ),
    Case(
        "temperature-without-gradient",
        lambda: decoder(attn=FrozenCosineAttention),
        lambda: decoder(attn=CosineAttention),
        ("gradient.reaches",),
        ATTN,
    ),
    Case(
        "gates-never-multiplied",
        lambda: decoder(attn=GatesForgottenAttention),
        lambda: decoder(attn=GatedAttention),
        ("gradient.reaches",),
        (ATTN, ATTN + ".to_gates"),
    ),
    Case(
        "sinusoids-stay-float32",
        lambda: sequential_lm(CausalAttention, positions=UncastSinusoidalEmbedding),
        lambda: sequential_lm(CausalAttention, positions=SinusoidalEmbedding),
        ("dtype.agree",),
        "1",
    ),
    Case(
        "mask-hides-what-is-real",
        lambda: tagger(attn=HiddenVisibleAttention),
        tagger,
        PADS,
        ATTN,
    ),
    Case(
        "mask-in-the-first-layer-only",
        lambda: tagger(layers=FirstLayerMasked),
        tagger,
        PADS,
        "attn_layers",
    ),
    Case(
        "memory-mask-at-the-wrong-end",
        lambda: tagger(attn=MemoryAtTheWrongEndAttention, num_mem_kv=3),
        lambda: tagger(num_mem_kv=3),
        PADS,
        ATTN,
    ),
    Case(
        "mask-repeated-heads-first",
        lambda: tagger(attn=HeadsBeforeBatchAttention),
        lambda: tagger(attn=FoldedHeadsAttention),
        (*PADS, *ROWS),
        ATTN,
    ),
    Case(
        "empty-row-is-nan",
        lambda: tagger(attn=InfiniteMaskAttention),
        tagger,
        ("masked-row",),
        ATTN,
    ),
    Case(
        "heads-reshaped-into-tokens",
        lambda: tagger(attn=ReshapedHeadsAttention),
        tagger,
        ("equivariance", *PADS),
        ATTN,
    ),
    Case(
        "padding-in-the-mean",
        lambda: context_tagger(PaddedGlobalContext),
        lambda: context_tagger(GlobalContext),
        PADS,
        "context.fn.fn",
    ),
    Case(
        "rotary-offset-by-one",
        OffsetByOneWrapper,
        CachedWrapper,
        ("cache.step", "cache.chunk"),
        "",
    ),
    Case(
        "chunk-mask-square",
        lambda: CachedWrapper(attn=SquareMaskAttention),
        CachedWrapper,
        ("cache.step", "cache.chunk"),
        "attns.*",
    ),
]
