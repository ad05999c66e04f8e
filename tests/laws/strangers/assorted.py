"""Twelve models as twelve kinds of authors write them: graphs, scripts, registries, golf."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from tests.laws.strangers.case import Case
from torch import Tensor, nn

LEAK = ("causality.perturb", "causality.gradient", "causality.prefix")
ROWS = ("batch.alone", "batch.others", "accumulation")
PADS = ("padding.right", "padding.gradient")
STEP = ("cache.step", "cache.chunk")


# ------------------------------------------------- layers called on symbols, run as a graph later


class Symbol:
    def __init__(self, layer=None, inputs=()):
        self.layer, self.inputs = layer, inputs


class Layer(nn.Module):
    def __call__(self, *args, **kwargs):
        if any(isinstance(a, Symbol) for a in args):
            return Symbol(self, args)
        return super().__call__(*args, **kwargs)


class Dense(Layer):
    def __init__(self, n_in, n_out, activation=None):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(n_in, n_out) / n_in**0.5)
        self.activation = activation or (lambda x: x)

    def forward(self, x):
        return self.activation(x @ self.kernel)


class Lookup(Layer):
    def __init__(self, n, width):
        super().__init__()
        self.table = nn.Parameter(torch.randn(n, width))

    def forward(self, ids):
        return self.table[ids]


class Attention(Layer):
    def __init__(self, width, use_causal_mask=False):
        super().__init__()
        self.q, self.k, self.v = (Dense(width, width) for _ in range(3))
        self.mask = use_causal_mask

    def forward(self, x):
        s = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        if self.mask:
            at = torch.arange(x.shape[1])
            s = torch.where(at[:, None] >= at, s, -1e9)
        return s.softmax(-1) @ self.v(x)


class Add(Layer):
    def forward(self, a, b):
        return a + b


class Graph(nn.Module):
    def __init__(self, inp, out):
        super().__init__()
        self.inp, self.out, order = inp, out, []
        self._collect(out, order)
        self.layers = nn.ModuleList(dict.fromkeys(s.layer for s in order if s.layer))

    def _collect(self, symbol, order):
        for other in symbol.inputs:
            self._collect(other, order)
        order.append(symbol)

    def forward(self, inputs):
        known = {self.inp: inputs}

        def value(symbol):
            if symbol not in known:
                known[symbol] = symbol.layer(*map(value, symbol.inputs))
            return known[symbol]

        return value(self.out)


def graph_lm(masks):
    inp = Symbol()
    x = Lookup(31, 24)(inp)
    for mask in masks:
        x = Add()(x, Attention(24, use_causal_mask=mask)(x))
        x = Add()(x, Dense(24, 24, torch.tanh)(x))
    return Graph(inp, Dense(24, 31)(x))


# ------------------------------------------------- blocks of a diffusion transformer


class DiTBlock(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden, elementwise_affine=False)
        self.attn = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(hidden, elementwise_affine=False)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden)
        )
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 6 * hidden))

    def condition(self, c):
        return c

    def forward(self, x, c):
        mods = self.adaLN_modulation(self.condition(c)).unsqueeze(1).chunk(6, dim=-1)
        shift1, scale1, gate1, shift2, scale2, gate2 = mods
        h = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.attn(h, h, h, need_weights=False)[0]
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class CentredDiTBlock(DiTBlock):
    def condition(self, c):
        return c - c.mean(dim=0, keepdim=True)


class DiT(nn.Module):
    def __init__(self, block=DiTBlock, hidden=24, depth=2):
        super().__init__()
        self.x_embedder = nn.Linear(8, hidden)
        self.t_embedder = nn.Sequential(nn.Linear(16, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.blocks = nn.ModuleList(block(hidden, 3) for _ in range(depth))
        self.final = nn.Linear(hidden, 8)

    def forward(self, x, t):
        freqs = torch.exp(-math.log(1e4) * torch.arange(8, device=x.device) / 8)
        angles = t[:, None].float() * freqs
        c = self.t_embedder(torch.cat([angles.cos(), angles.sin()], -1).to(x))
        x = self.x_embedder(x)
        for block in self.blocks:
            x = block(x, c)
        return self.final(x)


def dit(block=DiTBlock):
    return DiT(block), {"x": torch.randn(2, 11, 8), "t": torch.rand(2)}


# ------------------------------------------------- a speech encoder with a CTC head


class SpeechNorm(nn.Module):
    def forward(self, x, real):
        n = real.sum(1, keepdim=True)
        mean = (x * real).sum(1, keepdim=True) / n
        var = ((x - mean).pow(2) * real).sum(1, keepdim=True) / n
        return (x - mean) / (var + 1e-5).sqrt() * real


class SpeechNormOverAll(SpeechNorm):
    def forward(self, x, real):
        return super().forward(x, torch.ones_like(real)) * real


class CTCEncoder(nn.Module):
    def __init__(self, norm=SpeechNorm, n_mels=10, width=20, n_tokens=13):
        super().__init__()
        self.norm = norm()
        self.conv1 = nn.Conv1d(n_mels, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, padding=1)
        self.ctc_lo = nn.Linear(width, n_tokens)

    def forward(self, speech, speech_lengths):
        at = torch.arange(speech.size(1), device=speech.device)
        real = (at < speech_lengths[:, None])[..., None].to(speech.dtype)
        x = self.norm(speech, real).transpose(1, 2)
        x = F.relu(self.conv1(x)) * real.transpose(1, 2)
        x = F.relu(self.conv2(x)).transpose(1, 2) * real
        return self.ctc_lo(x).log_softmax(-1)


def ctc(norm=SpeechNorm):
    speech, lengths = torch.randn(2, 12, 10), torch.tensor([12, 12])
    return CTCEncoder(norm), {"speech": speech, "speech_lengths": lengths}


# ------------------------------------------------- as few lines as possible


class G(nn.Module):
    def __init__(self, v=29, d=32, h=4, n=2, a=-1):
        super().__init__()
        self.e, self.p, self.h, self.a, L = (
            nn.Embedding(v, d),
            nn.Embedding(256, d),
            h,
            a,
            nn.Linear,
        )
        self.b = nn.ModuleList(
            nn.ModuleList([L(d, 3 * d), L(d, d), L(d, 4 * d), L(4 * d, d)]) for _ in range(n)
        )

    def forward(self, i):
        (b, t), n = i.shape, lambda x: F.layer_norm(x, x.shape[-1:])
        x = self.e(i) + self.p(torch.arange(t))
        for q, o, u, w in self.b:
            Q, K, V = (z.view(b, t, self.h, -1).transpose(1, 2) for z in q(n(x)).chunk(3, -1))
            m = torch.full((t, t), -torch.inf).triu(1)
            x = x + o(
                ((Q @ K.mT / Q.shape[-1] ** 0.5 + m).softmax(self.a) @ V)
                .transpose(1, 2)
                .reshape(b, t, -1)
            )
            x = x + w(F.gelu(u(n(x))))
        return n(x) @ self.e.weight.T


# ------------------------------------------------- a retriever of two towers


class Tower(nn.Module):
    def __init__(self, vocab=41, dim=18):
        super().__init__()
        self.word = nn.Embedding(vocab, dim)
        self.inner = nn.TransformerEncoderLayer(dim, 3, 36, batch_first=True, norm_first=True)

    def pool(self, hidden, mask):
        mask = mask.unsqueeze(-1).to(hidden)
        return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)

    def forward(self, ids, mask):
        hidden = self.inner(self.word(ids), src_key_padding_mask=~mask.bool())
        return F.normalize(self.pool(hidden, mask), dim=-1)


class MeanOfAllTower(Tower):
    def pool(self, hidden, mask):
        return hidden.mean(1)


class Retriever(nn.Module):
    def __init__(self, tower=Tower):
        super().__init__()
        self.query_tower, self.passage_tower = tower(), tower()

    def forward(self, query_ids, query_mask, passage_ids, passage_mask):
        q = self.query_tower(query_ids, query_mask)
        return (q * self.passage_tower(passage_ids, passage_mask)).sum(-1, keepdim=True)


def retriever(tower=Tower):
    return Retriever(tower), {
        "query_ids": torch.randint(0, 41, (2, 6)),
        "query_mask": torch.ones(2, 6, dtype=torch.long),
        "passage_ids": torch.randint(0, 41, (2, 9)),
        "passage_mask": torch.ones(2, 9, dtype=torch.long),
    }


# ------------------------------------------------- a forecaster that normalises its series


class Forecaster(nn.Module):
    over = 1  # time

    def __init__(self, channels=3, past=24, horizon=6, patch=4, dim=16):
        super().__init__()
        self.patch, self.horizon = patch, horizon
        self.embed = nn.Linear(patch, dim)
        self.encoder = nn.TransformerEncoderLayer(dim, 2, 32, batch_first=True, dropout=0.0)
        self.head = nn.Linear(dim * (past // patch), horizon)

    def forward(self, history):
        mean = history.mean(self.over, keepdim=True)
        std = history.std(self.over, keepdim=True, unbiased=False) + 1e-5
        x = ((history - mean) / std).transpose(1, 2)
        b, c, _ = x.shape
        x = self.embed(x.unfold(-1, self.patch, self.patch)).flatten(0, 1)
        y = self.head(self.encoder(x).flatten(1)).view(b, c, self.horizon)
        return y.transpose(1, 2) * std + mean


class ForecasterOverBatch(Forecaster):
    over = (0, 1)


def forecaster(kind=Forecaster):
    return kind(), {"history": torch.randn(2, 24, 3)}


# ------------------------------------------------- everything from a registry and a dict


REGISTRY = {}


def register(name):
    def keep(thing):
        REGISTRY[name] = thing
        return thing

    return keep


@register("rope")
class Rope(nn.Module):
    def __init__(self, dim, **_):
        super().__init__()
        self.register_buffer("freq", 1e4 ** (-torch.arange(0, dim, 2) / dim), persistent=False)

    def forward(self, x, start):
        at = torch.arange(start, start + x.shape[-2], device=x.device)
        angle = (at[:, None] * self.freq).to(x.dtype)
        a, b = x.chunk(2, -1)
        c, s = angle.cos(), angle.sin()
        return torch.cat([a * c - b * s, a * s + b * c], -1)


@register("mha")
class RegisteredAttention(nn.Module):
    def __init__(self, dim, heads, positions, **cfg):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.rope = REGISTRY[positions](dim=dim // heads)

    def start_of(self, cache):
        return 0 if cache is None else cache[0].shape[2]

    def forward(self, x, cache=None):
        b, t, d = x.shape
        q, k, v = (
            w(x).view(b, t, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        start = self.start_of(cache)
        q, k = self.rope(q, start), self.rope(k, start)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        seen = torch.ones(t, k.shape[2], dtype=torch.bool, device=x.device).tril(k.shape[2] - t)
        y = F.scaled_dot_product_attention(q, k, v, seen)
        return self.wo(y.transpose(1, 2).reshape(b, t, d)), (k, v)


@register("mha_reset")
class RestartingAttention(RegisteredAttention):
    def start_of(self, cache):
        return 0


@register("lm")
class RegisteredLM(nn.Module):
    def __init__(self, vocab, dim, layers, attention):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            REGISTRY[attention["type"]](dim=dim, **attention) for _ in range(layers)
        )
        self.out = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids, cache=None):
        x, kept = self.tok(ids), []
        for i, layer in enumerate(self.layers):
            y, kv = layer(F.rms_norm(x, x.shape[-1:]), cache[i] if cache else None)
            x, kept = x + y, [*kept, kv]
        return {"logits": self.out(x), "cache": kept}


def from_config(attention):
    cfg = {
        "type": "lm",
        "vocab": 43,
        "dim": 24,
        "layers": 2,
        "attention": {"type": attention, "heads": 3, "positions": "rope"},
    }
    return REGISTRY[cfg.pop("type")](**cfg)


# ------------------------------------------------- compiled by TorchScript


class ScriptedBlock(nn.Module):
    def __init__(self, dim: int, first: int):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
        ahead = torch.ones(x.size(1), x.size(1), device=x.device).triu(self.first) > 0
        scores = scores.masked_fill(ahead, -1e9)
        return x + self.proj(torch.bmm(scores.softmax(-1), v))


class ScriptedDecoder(nn.Module):
    def __init__(self, first: int = 1):
        super().__init__()
        self.embed = nn.Embedding(37, 20)
        self.one = ScriptedBlock(20, first)
        self.two = ScriptedBlock(20, 1)
        self.head = nn.Linear(20, 37)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.two(self.one(self.embed(ids))))


# ------------------------------------------------- einsum and nothing else


class Einsums(nn.Module):
    after = False  # the mask comes before softmax

    def __init__(self, v=33, d=20, h=4, n=2):
        super().__init__()
        shapes = {"E": (v, d), "O": (d, v)}
        for i in range(n):
            shapes |= {f"Q{i}": (d, h, d // h), f"K{i}": (d, h, d // h), f"V{i}": (d, h, d // h)}
            shapes |= {f"W{i}": (h, d // h, d), f"U{i}": (d, 2 * d), f"D{i}": (2 * d, d)}
        self.w = nn.ParameterDict({k: torch.randn(s) / s[0] ** 0.5 for k, s in shapes.items()})
        self.n = n

    def forward(self, ids):
        w, e = self.w, torch.einsum
        x = w["E"][ids]
        seen = torch.arange(ids.shape[1])[:, None] >= torch.arange(ids.shape[1])
        for i in range(self.n):
            q, k, v = (e("btd,dhk->bthk", x, w[f"{c}{i}"]) for c in "QKV")
            s = e("bqhk,bthk->bhqt", q, k) / q.shape[-1] ** 0.5
            if self.after:
                p = s.softmax(-1) * seen
            else:
                p = s.masked_fill(~seen, -1e9).softmax(-1)
            x = x + e("bhqt,bthk,hkd->bqd", p, v, w[f"W{i}"])
            x = x + e("btd,df,fg->btg", x.tanh(), w[f"U{i}"], w[f"D{i}"])
        return e("btd,dv->btv", x, w["O"])


class EinsumsMaskedLate(Einsums):
    after = True


# ------------------------------------------------- a captioner: image tokens, then words


class Captioner(nn.Module):
    def __init__(self, vocab=47, dim=24):
        super().__init__()
        self.see, self.word = nn.Linear(12, dim), nn.Embedding(vocab, dim)
        self.place = nn.Parameter(torch.randn(200, dim) * 0.1)
        self.attn = nn.ModuleList(nn.MultiheadAttention(dim, 3, batch_first=True) for _ in range(2))
        self.lm_head = nn.Linear(dim, vocab)

    def hidden_pairs(self, images, words):
        n = images + words
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
        hidden[:, :images] = False
        return hidden

    def forward(self, patches, caption):
        x = torch.cat([self.see(patches), self.word(caption)], 1)
        x = x + self.place[: x.shape[1]]
        hidden = self.hidden_pairs(patches.shape[1], caption.shape[1])
        for attn in self.attn:
            x = x + attn(x, x, x, attn_mask=hidden, need_weights=False)[0]
        return self.lm_head(x[:, patches.shape[1] :])


class CaptionerCountsFromZero(Captioner):
    """the rows of words are not moved behind those of the image"""

    def hidden_pairs(self, images, words):
        n = images + words
        hidden = torch.zeros(n, n, dtype=torch.bool)
        hidden[:words, :words] = torch.ones(words, words, dtype=torch.bool).triu(1)
        return hidden


def captioner(kind=Captioner):
    return kind(), {"patches": torch.randn(2, 6, 12), "caption": torch.randint(0, 47, (2, 8))}


# ------------------------------------------------- a selective state, one step after the other


class ScanState(NamedTuple):
    conv: Tensor
    ssm: Tensor


class Scan(nn.Module):
    def __init__(self, dim, width=3):
        super().__init__()
        self.width = width
        self.inp, self.out = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.taps = nn.Parameter(torch.randn(width, dim) * 0.5)
        self.rate, self.skip = nn.Linear(dim, dim), nn.Parameter(torch.ones(dim))

    def keep(self, window):
        return window[:, 1:]

    def forward(self, x, state):
        u, gate = self.inp(x).chunk(2, -1)
        conv, ssm, ys = state.conv, state.ssm, []
        for t in range(x.shape[1]):
            window = torch.cat([conv, u[:, t : t + 1]], 1)
            conv = self.keep(window)
            c = F.silu((window * self.taps).sum(1))
            decay = torch.sigmoid(self.rate(c))
            ssm = decay * ssm + (1 - decay) * c
            ys.append(ssm + self.skip * c)
        y = torch.stack(ys, 1) * F.silu(gate)
        return self.out(y), self.after(ScanState(conv, ssm), state)

    def after(self, state, before):
        return state


class ScanKeepsOldTaps(Scan):
    def after(self, state, before):
        return ScanState(before.conv, state.ssm)


class ScanLM(nn.Module):
    def __init__(self, scan=Scan, vocab=39, dim=16, depth=2):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(scan(dim) for _ in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.lm_head = nn.Linear(dim, vocab)

    def init_states(self, batch_size):
        zeros = lambda *shape: torch.zeros(*shape).to(self.lm_head.weight)  # noqa: E731
        return [
            ScanState(zeros(batch_size, layer.width - 1, 16), zeros(batch_size, 16))
            for layer in self.layers
        ]

    def forward(self, input_ids, states=None):
        states = self.init_states(len(input_ids)) if states is None else states
        x, new = self.embedding(input_ids), []
        for layer, norm, state in zip(self.layers, self.norm, states, strict=True):
            y, state = layer(norm(x), state)
            x = x + y
            new.append(state)
        return self.lm_head(x), new


# ------------------------------------------------- experts with room for so many tokens


class Experts(nn.Module):
    def __init__(self, dim=18, count=3):
        super().__init__()
        self.gate = nn.Linear(dim, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, dim, 2 * dim) / dim**0.5)
        self.down = nn.Parameter(torch.randn(count, 2 * dim, dim) / (2 * dim) ** 0.5)

    def kept(self, chosen):
        return torch.ones_like(chosen, dtype=torch.bool)

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        room = self.kept(chosen)
        for i in range(len(self.up)):
            mine = (chosen == i) & room
            y[mine] = (F.relu(x[mine] @ self.up[i]) @ self.down[i]) * weight[mine, None]
        return y.view(shape)


class ExpertsWithRoom(Experts):
    """a token that finds its expert full is passed by; who comes first in the batch is served"""

    def kept(self, chosen):
        onehot = F.one_hot(chosen, len(self.up))
        place = (onehot.cumsum(0) * onehot).sum(-1)
        return place <= max(1, len(chosen) // (2 * len(self.up)))


class ExpertTagger(nn.Module):
    def __init__(self, experts=Experts, vocab=45, dim=18):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.moe, self.tag = experts(dim), nn.Linear(dim, 9)

    def forward(self, tokens):
        x = self.emb(tokens)
        x = x + self.attn(x, x, x, need_weights=False)[0]
        return self.tag(x + self.moe(x))


CASES = [
    Case(
        "graph-one-mask-less",
        lambda: graph_lm([True, False]),
        lambda: graph_lm([True, True]),
        LEAK,
        "layers.*",
    ),
    Case("condition-centred-over-the-batch", lambda: dit(CentredDiTBlock), dit, ROWS, "blocks.*"),
    Case(
        "speech-normalised-with-its-padding",
        lambda: ctc(SpeechNormOverAll),
        ctc,
        PADS,
        ("norm", ""),
    ),
    Case("golf-softmax-over-queries", lambda: G(a=-2), G, LEAK, ""),
    Case(
        "towers-mean-over-padding",
        lambda: retriever(MeanOfAllTower),
        retriever,
        PADS,
        ("*_tower", ""),
    ),
    Case(
        "series-scaled-by-the-batch",
        lambda: forecaster(ForecasterOverBatch),
        forecaster,
        ROWS,
        ("", "embed"),
    ),
    Case(
        "registry-positions-restart",
        lambda: from_config("mha_reset"),
        lambda: from_config("mha"),
        STEP,
        "layers.*",
    ),
    Case(
        "script-one-diagonal-late",
        lambda: torch.jit.script(ScriptedDecoder(2)),
        lambda: torch.jit.script(ScriptedDecoder()),
        LEAK,
        ("one", ""),
    ),
    Case("einsum-mask-after-softmax", EinsumsMaskedLate, Einsums, LEAK, ""),
    Case(
        "captions-see-ahead",
        lambda: captioner(CaptionerCountsFromZero),
        captioner,
        LEAK,
        ("", "attn.*"),
    ),
    Case("scan-forgets-its-taps", lambda: ScanLM(ScanKeepsOldTaps), ScanLM, STEP, ("layers.*", "")),
    Case(
        "experts-full-by-other-rows",
        lambda: ExpertTagger(ExpertsWithRoom),
        ExpertTagger,
        ROWS,
        "moe",
    ),
]
