"""Ports of four kinds of model, each with what such a port may do otherwise."""

import torch
from torch import nn
from torch.nn import functional

WORDS, WIDTH, HEADS = 41, 16, 2


class Rotary(nn.Module):
    """A decoder whose queries and keys are turned by their positions."""

    def __init__(self, port=""):
        super().__init__()
        self.port = port
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.wq, self.wk, self.wv = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in "qkv")

    def turned(self, x):
        half = x.size(-1) // 2
        rates = 10.0 ** -(torch.arange(half, dtype=x.dtype) / half)
        angles = torch.arange(x.size(-2), dtype=x.dtype)[:, None] * rates
        if self.port == "neighbours in place of halves":
            a, b = x[..., ::2], x[..., 1::2]
        else:
            a, b = x[..., :half], x[..., half:]
        if self.port == "turned the other way for keys":
            angles = -angles
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()],
                         -1)  # fmt: skip

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = (
            w(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        other = Rotary.turned if self.port != "turned the other way for keys" else plainly_turned
        q, k = other(self, q), self.turned(k)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + mixed.transpose(1, 2).flatten(2))


def plainly_turned(model, x):
    """Return queries turned as the model without its fault does."""
    port, model.port = model.port, ""
    try:
        return model.turned(x)
    finally:
        model.port = port


class Library(nn.Module):
    """torch's own encoder layers."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 24, 0.0, activation="gelu", batch_first=True, norm_first=True
        )

    def forward(self, ids):
        return self.head(self.layer(self.embed(ids)))


class ByHand(nn.Module):
    """The same by hand, with names of its own; a function maps the weights."""

    def __init__(self, port=""):
        super().__init__()
        self.port = port
        self.wte, self.lm_head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
        if port == "another epsilon":
            self.ln_1.eps = 1e-2

    def forward(self, tokens):
        x = self.wte(tokens)
        y = self.ln_1(x)
        parts = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.attn(y).chunk(3, -1))
        y = functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        x = x + self.proj(y)
        kind = "tanh" if self.port == "an approximate gelu" else "none"
        base = self.ln_1(x) if self.port == "the first norm twice" else self.ln_2(x)
        return self.lm_head(x + self.out(functional.gelu(self.fc(base), approximate=kind)))


NAMES = {"wte": "embed", "lm_head": "head", "ln_1": "layer.norm1", "ln_2": "layer.norm2",
         "attn": "layer.self_attn.in_proj", "proj": "layer.self_attn.out_proj",
         "fc": "layer.linear1", "out": "layer.linear2"}  # fmt: skip


def by_hand(state):
    """Return torch's weights under the names of the model by hand."""
    found = {}
    for mine, its in NAMES.items():
        for kind in ("weight", "bias"):
            name = f"{its}_{kind}" if its.endswith("in_proj") else f"{its}.{kind}"
            if name in state:
                found[f"{mine}.{kind}"] = state[name]
    return found


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.rnn = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


class Gates(nn.Module):
    """The same with the cell by hand, and the same names of weights."""

    def __init__(self, port=""):
        super().__init__()
        self.port = port
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.rnn = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, ids):
        w, x = self.rnn, self.embed(ids)
        h = c = torch.zeros_like(x[:, 0])
        outputs = []
        for t in range(ids.size(1)):
            both = functional.linear(x[:, t], w.weight_ih_l0, w.bias_ih_l0)
            both = both + functional.linear(h, w.weight_hh_l0, w.bias_hh_l0)
            i, f, g, o = both.chunk(4, -1)
            if self.port == "gates in another order":
                f, i = i, f
            if self.port == "the forget gate opens by one":
                f = f + 1
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return self.head(torch.stack(outputs, 1))


class Patches(nn.Module):
    """Patches of an image by a convolution, or cut out and multiplied."""

    def __init__(self, cut=False, port=""):
        super().__init__()
        self.cut, self.port = cut, port
        self.patch, self.head = nn.Conv2d(3, WIDTH, 4, 4), nn.Linear(WIDTH, 5)
        self.place = nn.Parameter(torch.randn(4, WIDTH))

    def forward(self, images):
        if self.cut:
            B, C, H, W = images.shape
            parts = images.view(B, C, H // 4, 4, W // 4, 4)
            order = (0, 4, 2, 1, 3, 5) if self.port == "columns first" else (0, 2, 4, 1, 3, 5)
            rows = parts.permute(order).reshape(B, -1, C * 16)
            x = functional.linear(rows, self.patch.weight.flatten(1), self.patch.bias)
        else:
            x = self.patch(images).flatten(2).transpose(1, 2)
        x = x + self.place
        x = x + functional.scaled_dot_product_attention(x, x, x)
        return self.head(x.mean(1))
