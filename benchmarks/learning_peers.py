"""What `learning.py` and `training.py` compare with, each in few lines of plain PyTorch or sklearn.

nanoGPT's model and loop (A. Karpathy's, MIT licence) written again; the encoder-decoder on torch's
own nn.Transformer with the weights of ours; classifiers that count words; unigrams.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.models import build, preset
from querykey.nn import MLPConfig


class PlainBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); queries, keys and values are one product."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        parts = self.qkv(self.ln_1(x)).split(width, 2)
        q, k, v = (p.view(batch, tokens, self.heads, -1).transpose(1, 2) for p in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class PlainGPT(nn.Module):
    """GPT-2 as nanoGPT writes it: tied tables, learned positions; returns scores and the loss."""

    def __init__(self, vocabulary, length, layers, heads, width):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(PlainBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))
        return scores, F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def exact_gelu(sizes):
    """Return the config of the preset `gpt` with the exact GELU, which nanoGPT has."""
    config = preset("gpt", sizes)
    mlp = MLPConfig(4 * sizes["width"], "gelu")
    return replace(config, block=replace(config.block, mlp=mlp))


def plain_gpt(ours):
    """Return a PlainGPT with the weights of our Decoder."""
    config = ours.config
    attention, width = config.block.attention, config.block.width
    plain = PlainGPT(
        config.embedding.vocabulary, config.positions.count, config.layers, attention.heads, width
    )
    pairs = [(plain.tokens, ours.embed.tokens), (plain.places, ours.embed.positions)]
    pairs.append((plain.norm, ours.stack.norm))
    with torch.no_grad():
        for mine, theirs in zip(plain.blocks, ours.stack.blocks, strict=True):
            pairs += [(mine.ln_1, theirs.attention_norm), (mine.ln_2, theirs.mlp_norm)]
            pairs += [(mine.proj, theirs.attention.o)]
            pairs += [(mine.up, theirs.mlp.up), (mine.down, theirs.mlp.down)]
            parts = [getattr(theirs.attention, name) for name in "qkv"]
            mine.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
            mine.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
        for mine, theirs in pairs:
            for name, parameter in mine.named_parameters():
                parameter.copy_(theirs.get_parameter(name))
    return plain


class PlainLoop:
    """nanoGPT's loop: random windows, warmup and cosine, clipping, AdamW on decayed matrices."""

    def __init__(self, model, tokens, batch, length, compile=False, half=False):
        self.model = torch.compile(model) if compile else model
        self.tokens, self.batch, self.length, self.half = tokens, batch, length, half
        self.device = next(model.parameters()).device
        matrices = [p for p in model.parameters() if p.ndim >= 2]
        vectors = [p for p in model.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0}]
        fused = self.device.type == "cuda"  # as there
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=fused)
        self.step_number = 0

    def windows(self):
        starts = torch.randint(len(self.tokens) - self.length - 1, (self.batch,))
        rows = [self.tokens[i : i + self.length + 1].astype(np.int64) for i in starts.tolist()]
        rows = torch.from_numpy(np.stack(rows)).to(self.device)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def step(self, ids=None, labels=None, steps=2000, warmup=100, rate=1e-3):
        if ids is None:
            ids, labels = self.windows()
        done = (self.step_number - warmup) / (steps - warmup)
        cosine = rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))
        now = rate * (self.step_number + 1) / (warmup + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = now if self.step_number < warmup else cosine
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            _, loss = self.model(ids, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step_number += 1
        return float(loss.detach())


class TorchTranslator(nn.Module):
    """An encoder-decoder of ours on torch's nn.Transformer, with its weights and its dropout."""

    def __init__(self, ours):
        super().__init__()
        block, layers = ours.config.encoder.block, ours.config.encoder.layers
        self.tokens = nn.Embedding(ours.config.encoder.embedding.vocabulary, block.width)
        self.scale, self.start = ours.config.encoder.embedding.scale, ours.config.start
        shape = (block.width, block.attention.heads, block.mlp.hidden, block.dropout)
        reader = nn.TransformerEncoderLayer(*shape, batch_first=True)
        writer = nn.TransformerDecoderLayer(*shape, batch_first=True)
        self.body = nn.Transformer(
            *shape[:2], batch_first=True,
            custom_encoder=nn.TransformerEncoder(reader, layers, enable_nested_tensor=False),
            custom_decoder=nn.TransformerDecoder(writer, layers),
        )  # fmt: skip
        for layer in (*self.body.encoder.layers, *self.body.decoder.layers):
            layer.dropout.p = layer.self_attn.dropout = 0.0  # ours drops what a part adds, no more
        self._take_weights(ours)

    @torch.no_grad()
    def _take_weights(self, ours):
        self.tokens.weight.copy_(ours.decoder.embed.tokens.weight)
        sides = ((self.body.encoder, ours.encoder), (self.body.decoder, ours.decoder))
        for mine, theirs in ((m, t) for a, b in sides for m, t in zip(a.layers, b.stack.blocks)):  # noqa: B905
            norms, attentions = [theirs.attention_norm, theirs.mlp_norm], ["attention"]
            if theirs.cross is not None:
                norms.insert(1, theirs.cross_norm)
                attentions.append("cross")
                norms = [theirs.attention_norm, theirs.cross_norm, theirs.mlp_norm]
            pairs = [(mine.linear1, theirs.mlp.up), (mine.linear2, theirs.mlp.down)]
            pairs += [(getattr(mine, f"norm{i + 1}"), norm) for i, norm in enumerate(norms)]
            for name, source in zip(("self_attn", "multihead_attn"), attentions):  # noqa: B905
                target, parts = getattr(mine, name), getattr(theirs, source)
                pairs.append((target.out_proj, parts.o))
                for kind in ("weight", "bias"):
                    joined = torch.cat([getattr(getattr(parts, c), kind) for c in "qkv"])
                    getattr(target, f"in_proj_{kind}").copy_(joined)
            for target, parts in pairs:
                target.weight.copy_(parts.weight)
                target.bias.copy_(parts.bias)

    def _embedded(self, ids):
        half = torch.arange(0, self.tokens.embedding_dim, 2, device=ids.device)
        rates = torch.exp(-math.log(10000.0) * half / self.tokens.embedding_dim)
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None] * rates
        places = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        return self.tokens(ids) * self.scale + places

    def forward(self, source, target, source_real=None):
        hidden = None if source_real is None else ~source_real
        later = nn.Transformer.generate_square_subsequent_mask(target.shape[1], ids_device(target))
        later = later.isinf()  # booleans, as the padding is
        out = self.body(
            self._embedded(source), self._embedded(target), tgt_mask=later, tgt_is_causal=True,
            src_key_padding_mask=hidden, memory_key_padding_mask=hidden,
        )  # fmt: skip
        return F.linear(out, self.tokens.weight)

    @torch.no_grad()
    def translate(self, source, real, end, most=64):
        """Return target ids, the most likely one each time, as `querykey.generate` does."""
        target = torch.full_like(source[:, :1], self.start)
        over = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        while target.shape[1] <= most and not over.all():
            best = self(source, target, real)[:, -1].argmax(-1)
            best = torch.where(over, end, best)
            target, over = torch.cat([target, best[:, None]], 1), over | (best == end)
        return target


def ids_device(tensor):
    return tensor.device


def unigram_nats(train, valid, vocabulary):
    """Return the mean surprise of `valid` tokens under the frequencies of `train` tokens."""
    counts = np.bincount(train, minlength=vocabulary) + 1.0
    return float(-np.log(counts / counts.sum())[valid].mean())


def bag_of_words(train, valid, vocabulary, pairs=False):
    """Return the share of right answers of classifiers over counts of tokens, by name.

    Pairs have the counts of both texts, which words they share, and how much of each that is.
    """
    from scipy.sparse import csr_matrix, hstack
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import MultinomialNB

    def counts(texts):
        rows = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        ones = np.ones(len(rows), np.float32)
        return csr_matrix((ones, (rows, np.concatenate(texts))), (len(texts), vocabulary))

    def features(samples):
        tokens = [sample["tokens"] for sample in samples]
        if not pairs:
            return counts(tokens)
        types = [sample["types"] for sample in samples]
        a, b = (
            counts([t[k == kind] for t, k in zip(tokens, types, strict=True)]) for kind in (0, 1)
        )
        shared = a.minimum(b)
        sizes = [np.asarray(x.sum(1)) for x in (shared, a, b)]
        overlap = np.hstack([*sizes, sizes[0] / sizes[1], sizes[0] / sizes[2]])
        return hstack([a, b, shared.minimum(1), csr_matrix(overlap / overlap.std(0))]).tocsr()

    x, y = features(train), [sample["label"] for sample in train]
    z, truth = features(valid), [sample["label"] for sample in valid]
    found = {
        f"logistic regression, C={c}": LogisticRegression(C=c, max_iter=300).fit(x, y)
        for c in (0.003, 0.03, 0.3)
    }
    found["naive Bayes"] = MultinomialNB().fit(abs(x), y)
    return {name: float(model.score(z, truth)) for name, model in found.items()}


def fresh_gpt(sizes, seed=0):
    """Return a Decoder of ours with the exact GELU, and the same weights as a PlainGPT."""
    torch.manual_seed(seed)
    ours = build(exact_gelu(sizes))
    return ours, plain_gpt(ours)
