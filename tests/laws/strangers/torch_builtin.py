"""Models glued from torch's own parts: nn.Transformer*, nn.MultiheadAttention, F.sdpa."""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from tests.laws.strangers.case import Case
from torch import nn

VOCAB, WIDTH, NHEAD, MAX_LEN = 43, 24, 3, 400


def encoder_layer(**options):
    return nn.TransformerEncoderLayer(
        WIDTH, NHEAD, 2 * WIDTH, dropout=0.1, **{"batch_first": True, **options}
    )


def stack(layer, depth=2):
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


def future(n, like):
    """-inf above the diagonal."""
    return nn.Transformer.generate_square_subsequent_mask(n, device=like.device, dtype=like.dtype)


def count_real(pad):
    """Positions 0, 1, 2, ... of the real tokens, wherever the padding is."""
    return ((~pad).cumsum(1) - 1).clamp(min=0)


def never_all(pad):
    """Softmax over nothing is NaN, so a row of padding alone is shown to itself."""
    return pad & ~pad.all(dim=1, keepdim=True)


class EncoderLM(nn.Module):
    """nn.TransformerEncoder and a causal mask make a GPT."""

    def __init__(self, **options):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Embedding(MAX_LEN, WIDTH)
        self.encoder = stack(encoder_layer(**options))
        self.head = nn.Linear(WIDTH, VOCAB)

    def embed(self, ids):
        return self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))

    def mask(self, x):
        return future(x.size(1), x)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(self.encoder(x, mask=self.mask(x)))


class EncoderLMKeep(EncoderLM):
    """True where attention is allowed."""

    def mask(self, x):
        n = x.size(1)
        return torch.ones(n, n, dtype=torch.bool, device=x.device).tril()


class EncoderLMOnes(EncoderLM):
    def mask(self, x):
        n = x.size(1)
        return torch.tril(torch.ones(n, n, device=x.device, dtype=x.dtype))


class EncoderLMMemo(EncoderLM):
    """The mask is made once; batches have one length anyway."""

    made = None

    def mask(self, x):
        if self.made is None:
            self.made = future(x.size(1), x)
        return self.made if self.made.size(0) == x.size(1) else None


class EncoderLMFrozenStem(EncoderLM):
    def embed(self, ids):
        with torch.no_grad():
            return super().embed(ids)


class EncoderLMSeqFirst(EncoderLM):
    def __init__(self):
        super().__init__(batch_first=False)

    def mask(self, x):
        return future(x.size(0), x)


class SinusoidTable(nn.Module):
    def __init__(self):
        super().__init__()
        at = torch.arange(MAX_LEN).unsqueeze(1)
        speed = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
        pe = torch.zeros(MAX_LEN, 1, WIDTH)
        pe[:, 0, 0::2], pe[:, 0, 1::2] = torch.sin(at * speed), torch.cos(at * speed)
        self.keep(pe)

    def keep(self, pe):
        self.register_buffer("pe", pe)

    def forward(self, x):
        """x: (batch, time, width)."""
        return x + self.pe[: x.size(1)].transpose(0, 1)


class SinusoidTableFromTutorial(SinusoidTable):
    def forward(self, x):
        return x + self.pe[: x.size(0)]


class SinusoidTableAttribute(SinusoidTable):
    def keep(self, pe):
        self.pe = pe


class SinusoidLM(nn.Module):
    def __init__(self, table=SinusoidTable):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.table = table()
        self.encoder = stack(encoder_layer(norm_first=True))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.table(self.tok(ids) * math.sqrt(WIDTH))
        return self.head(self.encoder(x, mask=future(x.size(1), x), is_causal=True))


class DecoderLM(nn.Module):
    """nn.TransformerDecoder wants a memory; a language model has none but itself."""

    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, WIDTH), nn.Embedding(MAX_LEN, WIDTH)
        layer = nn.TransformerDecoderLayer(WIDTH, NHEAD, 2 * WIDTH, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))
        mask = future(x.size(1), x)
        return self.head(self.decode(x, mask))

    def decode(self, x, mask):
        return self.decoder(x, x, tgt_mask=mask, memory_mask=mask)


class DecoderLMOpenMemory(DecoderLM):
    def decode(self, x, mask):
        return self.decoder(x, x, tgt_mask=mask)


# ------------------------------------------------------------------ encoders with padding


class Tagger(nn.Module):
    """attention_mask has 1 for tokens and 0 for padding, as tokenizers give it."""

    def __init__(self, depth=3, tags=9):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, WIDTH), nn.Embedding(MAX_LEN, WIDTH)
        self.layers = nn.ModuleList(encoder_layer() for _ in range(depth))
        self.tags = nn.Linear(WIDTH, tags)

    def hidden(self, attention_mask):
        return never_all(attention_mask == 0)

    def forward(self, ids, attention_mask=None):
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        x = self.tok(ids) + self.pos(count_real(real == 0))
        hidden = None if attention_mask is None else self.hidden(attention_mask)
        for n, layer in enumerate(self.layers):
            x = layer(x, src_key_padding_mask=self.of_layer(n, hidden))
        return self.tags(x)

    def of_layer(self, n, hidden):
        return hidden


class TaggerOtherSense(Tagger):
    def hidden(self, attention_mask):
        return attention_mask.bool()


class TaggerFirstLayer(Tagger):
    def of_layer(self, n, hidden):
        return hidden if n == 0 else None


class TaggerInPlace(Tagger):
    """Flips the mask for torch, which wants True for padding."""

    def forward(self, ids, attention_mask=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(ids)
        x = self.tok(ids) + self.pos(count_real(attention_mask == 0))
        hidden = never_all(attention_mask.sub_(1).abs_().bool())
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=hidden)
        return self.tags(x)


class PaddedLM(nn.Module):
    """nn.MultiheadAttention with a mask per row and head: (batch * heads, time, time)."""

    def __init__(self, depth=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, WIDTH), nn.Embedding(MAX_LEN, WIDTH)
        self.attn = nn.ModuleList(
            nn.MultiheadAttention(WIDTH, NHEAD, batch_first=True) for _ in range(depth)
        )
        self.norm = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(depth))
        self.head = nn.Linear(WIDTH, VOCAB)

    def hidden(self, pad):
        n = pad.size(1)
        ahead = torch.ones(n, n, dtype=torch.bool, device=pad.device).triu(1)
        own = torch.eye(n, dtype=torch.bool, device=pad.device)
        mask = self.per_head((ahead | pad.unsqueeze(1)) & ~own)
        return {"attn_mask": mask, "need_weights": False}

    def per_head(self, mask):
        return mask.repeat_interleave(NHEAD, dim=0)

    def forward(self, ids, padding=None):
        """padding: True where there is no token."""
        pad = torch.zeros_like(ids, dtype=torch.bool) if padding is None else padding.bool()
        x = self.tok(ids) + self.pos(count_real(pad))
        for attn, norm in zip(self.attn, self.norm, strict=True):
            h = norm(x)
            x = x + attn(h, h, h, **self.hidden(pad))[0]
        return self.head(x)


class PaddedLMRepeat(PaddedLM):
    def per_head(self, mask):
        return mask.repeat(NHEAD, 1, 1)


class PaddedLMTwoMasks(PaddedLM):
    """torch merges the two masks by itself."""

    def hidden(self, pad):
        n = pad.size(1)
        ahead = torch.ones(n, n, dtype=torch.bool, device=pad.device).triu(1)
        return {"attn_mask": ahead, "key_padding_mask": pad}


# ------------------------------------------------------------------ source and target


class Translator(nn.Module):
    """nn.Transformer from source ids and target ids to scores of the next target."""

    def __init__(self):
        super().__init__()
        self.src, self.tgt = nn.Embedding(VOCAB, WIDTH), nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Embedding(MAX_LEN, WIDTH)
        encoder = stack(encoder_layer(), depth=1)
        self.net = nn.Transformer(
            WIDTH, NHEAD, 1, 2, 2 * WIDTH, custom_encoder=encoder, batch_first=True
        )
        self.out = nn.Linear(WIDTH, VOCAB)

    def forward(self, src, tgt, src_key_padding_mask=None):
        pad = src_key_padding_mask
        pad = torch.zeros_like(src, dtype=torch.bool) if pad is None else pad.bool()
        s = self.src(src) + self.pos(count_real(pad))
        t = self.tgt(tgt) + self.pos(torch.arange(tgt.size(1), device=tgt.device))
        return self.out(self.translate(s, t, never_all(pad)))

    def translate(self, s, t, pad):
        n = t.size(1)
        ahead = torch.ones(n, n, dtype=torch.bool, device=t.device).triu(1)
        return self.net(s, t, tgt_mask=ahead, src_key_padding_mask=pad, memory_key_padding_mask=pad)


class TranslatorOpenMemory(Translator):
    def translate(self, s, t, pad):
        n = t.size(1)
        ahead = torch.ones(n, n, dtype=torch.bool, device=t.device).triu(1)
        return self.net(s, t, tgt_mask=ahead, src_key_padding_mask=pad)


class TranslatorThirdArgument(Translator):
    def translate(self, s, t, pad):
        n = s.size(1)
        ahead = torch.ones(n, n, dtype=torch.bool, device=t.device).triu(1)
        return self.net(s, t, ahead, src_key_padding_mask=pad, memory_key_padding_mask=pad)


class TranslatorTwoPhases(Translator):
    """Encodes once and decodes often, as at inference."""

    def translate(self, s, t, pad):
        n = t.size(1)
        ahead = torch.ones(n, n, dtype=torch.bool, device=t.device).triu(1)
        memory = self.net.encoder(s, src_key_padding_mask=pad)
        return self.net.decoder(t, self.reuse(memory), ahead, memory_key_padding_mask=pad)

    def reuse(self, memory):
        return memory


class TranslatorConstantMemory(TranslatorTwoPhases):
    """The encoder's answer does not change while a sentence is decoded."""

    def reuse(self, memory):
        return memory.detach()


# ------------------------------------------------------------------ scaled_dot_product_attention


class SelfAttention(nn.Module):
    """Fused attention; past is (keys, values) of earlier calls."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = 0.1

    def forward(self, x, past=None):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, NHEAD, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        return self.proj(self.join(self.attend(q, k, v), b, t)), (k, v)

    def attend(self, q, k, v):
        t, s = q.size(2), k.size(2)
        seen = torch.ones(t, s, dtype=torch.bool, device=q.device).tril(s - t)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=self.rate())

    def rate(self):
        return self.drop if self.training else 0.0

    def join(self, y, b, t):
        return y.transpose(1, 2).reshape(b, t, -1)


class SelfAttentionTraining(SelfAttention):
    """Decoding has one query and needs no mask."""

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.rate(), is_causal=self.training
        )


class SelfAttentionFlag(SelfAttention):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate(), is_causal=True)


class SelfAttentionFlagUnlessOne(SelfAttention):
    def attend(self, q, k, v):
        one = q.size(2) == 1
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate(), is_causal=not one)


class SelfAttentionJoined(SelfAttention):
    def join(self, y, b, t):
        return y.reshape(b, t, -1)


class SelfAttentionAlwaysDrops(SelfAttention):
    def rate(self):
        return self.drop


class SelfAttentionHidden(SelfAttention):
    """attn_mask as nn.MultiheadAttention takes it."""

    def attend(self, q, k, v):
        t, s = q.size(2), k.size(2)
        hidden = torch.ones(t, s, dtype=torch.bool, device=q.device).triu(s - t + 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=hidden, dropout_p=self.rate())


class SelfAttentionTwoPaths(SelfAttention):
    """`flash` chooses the fused kernel; the plain path is for machines without it."""

    def __init__(self):
        super().__init__()
        self.flash = True

    def attend(self, q, k, v):
        if self.flash:
            return super().attend(q, k, v)
        t, s = q.size(2), k.size(2)
        seen = torch.ones(t, s, dtype=torch.bool, device=q.device).tril(s - t)
        a = self.scores(q, k).masked_fill(~seen, float("-inf")).softmax(dim=-1)
        return F.dropout(a, self.rate()) @ v if self.training else a @ v

    def scores(self, q, k):
        return q @ k.mT / math.sqrt(q.size(-1))


class SelfAttentionTwoScales(SelfAttentionTwoPaths):
    def scores(self, q, k):
        return q @ k.mT


class TimeAndFeatureNorm(nn.Module):
    def forward(self, x):
        return F.layer_norm(x, x.shape[1:])


class ChannelNorm(nn.BatchNorm1d):
    """BatchNorm1d wants channels second."""

    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class FusedBlock(nn.Module):
    def __init__(self, attn, norm):
        super().__init__()
        self.norm1, self.attn, self.norm2 = norm(), attn(), nn.LayerNorm(WIDTH)
        self.ff = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x, past=None):
        y, present = self.attn(self.norm1(x), past)
        x = x + y
        return x + self.ff(self.norm2(x)), present


class FusedLM(nn.Module):
    """logits, past_key_values = model(input_ids, past_key_values)."""

    def __init__(self, attn=SelfAttention, norm=lambda: nn.LayerNorm(WIDTH)):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(MAX_LEN, WIDTH)
        self.blocks = nn.ModuleList(FusedBlock(attn, norm) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, input_ids, past_key_values=None):
        start = 0 if past_key_values is None else past_key_values[0][0].size(2)
        stop = start + input_ids.size(1)
        x = self.wte(input_ids) + self.wpe(torch.arange(start, stop, device=input_ids.device))
        presents = []
        for n, block in enumerate(self.blocks):
            x, present = block(x, None if past_key_values is None else past_key_values[n])
            presents.append(present)
        return self.head(x), tuple(presents)


class FusedLMNoCache(FusedLM):
    def forward(self, input_ids):
        return super().forward(input_ids)[0]


class TiedLM(FusedLMNoCache):
    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(vocab_size=VOCAB, tie_word_embeddings=True)
        if self.config.tie_word_embeddings:
            self.tie()

    def tie(self):
        self.head.weight = self.wte.weight

    def get_input_embeddings(self):
        return self.wte

    def get_output_embeddings(self):
        return self.head


class TiedLMByCopy(TiedLM):
    def tie(self):
        self.head.weight.data.copy_(self.wte.weight.data)


CAUSALITY = ("causality.perturb", "causality.gradient", "causality.prefix")
BATCH = ("batch.others", "batch.alone")
PADDING = ("padding.right", "padding.left", "padding.gradient")
CACHE = ("cache.step", "cache.chunk", "cache.generate")

CASES = [
    Case(
        "bool-mask-true-is-keep",
        faulty=EncoderLMKeep,
        lawful=EncoderLM,
        laws=CAUSALITY,
        module=("", "encoder"),
    ),
    Case(
        "float-mask-of-ones",
        faulty=EncoderLMOnes,
        lawful=EncoderLM,
        laws=CAUSALITY,
        module=("", "encoder"),
    ),
    Case(
        "mask-only-for-the-first-length",
        faulty=EncoderLMMemo,
        lawful=EncoderLM,
        laws=(*CAUSALITY, "determinism"),
        module=("", "encoder"),
    ),
    Case(
        "stem-under-no-grad",
        faulty=EncoderLMFrozenStem,
        lawful=EncoderLM,
        laws=("gradient.reaches",),
        module=("", "tok", "pos"),
    ),
    Case(
        "encoder-layers-time-first",
        faulty=EncoderLMSeqFirst,
        lawful=EncoderLM,
        laws=(*BATCH, "accumulation"),
        module=("", "encoder", "encoder.*"),
    ),
    Case(
        "positions-indexed-by-row",
        faulty=lambda: SinusoidLM(SinusoidTableFromTutorial),
        lawful=SinusoidLM,
        laws=("batch.alone",),
        module="table",
    ),
    Case(
        "table-is-no-buffer",
        faulty=lambda: SinusoidLM(SinusoidTableAttribute),
        lawful=SinusoidLM,
        laws=("dtype.agree",),
        module="table",
    ),
    Case(
        "decoder-is-its-own-memory",
        faulty=DecoderLMOpenMemory,
        lawful=DecoderLM,
        laws=CAUSALITY,
        module=("", "decoder", "decoder.layers.*"),
    ),
    Case(
        "key-padding-other-sense",
        faulty=TaggerOtherSense,
        lawful=Tagger,
        laws=(*PADDING, "masked-row"),
        module="",
    ),
    Case(
        "key-padding-in-the-first-layer",
        faulty=TaggerFirstLayer,
        lawful=Tagger,
        laws=PADDING,
        module="",
    ),
    Case(
        "padding-mask-flipped-in-place",
        faulty=TaggerInPlace,
        lawful=Tagger,
        laws=("purity",),
        module="",
    ),
    Case(
        "mask-per-head-in-the-wrong-order",
        faulty=PaddedLMRepeat,
        lawful=PaddedLM,
        laws=(*PADDING, *BATCH),
        module="",
    ),
    Case(
        "two-masks-leave-nothing",
        faulty=PaddedLMTwoMasks,
        lawful=PaddedLM,
        laws=("masked-row", "padding.left"),
        module=("", "attn.*"),
    ),
    Case(
        "memory-padding-forgotten",
        faulty=TranslatorOpenMemory,
        lawful=Translator,
        laws=PADDING,
        module=("", "net"),
    ),
    Case(
        "third-argument-is-the-source-mask",
        faulty=TranslatorThirdArgument,
        lawful=Translator,
        laws=CAUSALITY,
        module=("", "net"),
    ),
    Case(
        "memory-detached",
        faulty=TranslatorConstantMemory,
        lawful=TranslatorTwoPhases,
        laws=("gradient.reaches",),
        module=("", "net.encoder", "src"),
    ),
    Case(
        "causal-only-in-training",
        faulty=lambda: FusedLMNoCache(SelfAttentionTraining),
        lawful=FusedLMNoCache,
        laws=CAUSALITY,
        module="blocks.*.attn",
    ),
    Case(
        "causal-flag-with-a-cache",
        faulty=lambda: FusedLM(SelfAttentionFlag),
        lawful=FusedLM,
        laws=CACHE,
        module="blocks.*.attn",
    ),
    Case(
        "causal-flag-unless-one-query",
        faulty=lambda: FusedLM(SelfAttentionFlagUnlessOne),
        lawful=FusedLM,
        laws=("cache.chunk",),
        module="blocks.*.attn",
    ),
    Case(
        "heads-joined-without-transpose",
        faulty=lambda: FusedLMNoCache(SelfAttentionJoined),
        lawful=FusedLMNoCache,
        laws=CAUSALITY,
        module="blocks.*.attn",
    ),
    Case(
        "sdpa-always-drops",
        faulty=lambda: FusedLMNoCache(SelfAttentionAlwaysDrops),
        lawful=FusedLMNoCache,
        laws=("determinism",),
        module="blocks.*.attn",
    ),
    Case(
        "sdpa-mask-true-is-hidden",
        faulty=lambda: FusedLMNoCache(SelfAttentionHidden),
        lawful=FusedLMNoCache,
        laws=CAUSALITY,
        module="blocks.*.attn",
    ),
    Case(
        "plain-path-without-scale",
        faulty=lambda: FusedLMNoCache(SelfAttentionTwoScales),
        lawful=lambda: FusedLMNoCache(SelfAttentionTwoPaths),
        laws=("backend.agree",),
        module="blocks.*.attn",
    ),
    Case(
        "layer-norm-over-time",
        faulty=lambda: FusedLMNoCache(norm=TimeAndFeatureNorm),
        lawful=FusedLMNoCache,
        laws=CAUSALITY,
        module="blocks.*.norm1",
    ),
    Case(
        "batch-norm-without-statistics",
        faulty=lambda: FusedLMNoCache(norm=lambda: ChannelNorm(WIDTH, track_running_stats=False)),
        lawful=FusedLMNoCache,
        laws=(*CAUSALITY, *BATCH, "accumulation"),
        module="blocks.*.norm1",
    ),
    Case(
        "tied-by-copy",
        faulty=TiedLMByCopy,
        lawful=TiedLM,
        laws=("tying",),
        module=("", "head", "wte"),
    ),
]
