"""Models of torch's own parts, positions before rows, as they were written before 2020."""

import math

import torch
from tests.laws.strangers.case import Case
from torch import nn
from torch.nn import functional

WORDS, WIDTH = 37, 16


class Angles(nn.Module):
    """Sines and cosines of positions, positions first."""

    def __init__(self, how="buffer"):
        super().__init__()
        place = torch.arange(60.0)[:, None]
        rate = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(100.0) / WIDTH))
        pe = torch.cat([(place * rate).sin(), (place * rate).cos()], -1)[:, None]
        if how == "turned at random":
            self.register_buffer("pe", pe @ torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0], False)
        else:
            self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(0)]


class Classic(nn.Module):
    """nn.TransformerEncoder over (positions, rows), and a mask made in the forward pass."""

    def __init__(self, fault="", pad=None):
        super().__init__()
        self.fault = fault
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=pad)
        self.angles = Angles(fault)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decoder = nn.Linear(WIDTH, WORDS)

    def forward(self, src):
        ids = src.t()
        x = self.angles(self.embed(ids) * math.sqrt(WIDTH))
        ahead = torch.triu(torch.full((len(ids), len(ids)), float("-inf"), dtype=x.dtype), 1)
        hidden = None
        if self.fault == "the last word is a stop":
            stop = (src == WORDS - 1).cumsum(1) - (src == WORDS - 1).long()
            hidden = torch.zeros(src.shape, dtype=x.dtype)
            hidden = hidden.masked_fill((stop > 0) & (torch.arange(len(ids)) > 0), float("-inf"))
        x = self.encoder(x, mask=ahead, src_key_padding_mask=hidden)
        if self.fault == "half precision sums rows" and torch.is_autocast_enabled("cpu"):
            x = x + 0.2 * x.mean(0, keepdim=True)
        return self.decoder(x).transpose(0, 1)


class Dotted(nn.Module):
    """One torch attention whose fast way is a switch of the user's own."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault, self.use_sdpa = fault, False
        self.embed, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids.t())
        q, k, v = (t.transpose(0, 1) for t in self.qkv(x).chunk(3, -1))
        if self.use_sdpa:
            causal = self.fault != "sdpa sees ahead"
            scale = 1 / WIDTH if self.fault == "sdpa scales twice" else None
            if self.fault == "values lose their gradient":
                v = v.detach()
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
        else:
            hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
            scores = torch.baddbmm(torch.zeros((), dtype=x.dtype), q, k.mT, alpha=WIDTH**-0.5)
            mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        return self.head(x.transpose(0, 1) + mixed)


class Translated(nn.Module):
    """fairseq's way: a loss over all targets, one of which is the padding."""

    pad = 1

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=self.pad)
        self.rnn, self.out = nn.GRU(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, target=None):
        states, _ = self.rnn(self.embed(tokens.t()))
        logits = self.out(states).transpose(0, 1)
        if target is None:
            return logits, None
        logp = logits.log_softmax(-1)
        keep = target.ne(-100)
        nll = -logp.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        if self.fault == "sum over all, mean over real":
            return logits, nll.sum() / keep.sum()
        if self.fault == "mean over the batch's size":
            return logits, (nll * keep).sum() / target.numel()
        return logits, (nll * keep).sum() / keep.sum()


CASES = [
    Case("the-last-word-is-a-stop", lambda: Classic("the last word is a stop"), Classic,
         ("vocabulary",), None),
    Case("angles-turned-at-random", lambda: Classic("turned at random"), Classic,
         ("paths.reload",), "angles"),
    Case("half-precision-sums-rows", lambda: Classic("half precision sums rows"), Classic,
         ("paths.autocast",), None),
    Case("sdpa-sees-ahead", lambda: Dotted("sdpa sees ahead"), Dotted, ("paths.backend",), ""),
    Case("sdpa-scales-twice", lambda: Dotted("sdpa scales twice"), Dotted, ("paths.backend",), ""),
    Case("values-lose-their-gradient", lambda: Dotted("values lose their gradient"), Dotted,
         ("paths.backend",), None),
    Case("sum-over-all-mean-over-real", lambda: Translated("sum over all, mean over real"),
         Translated, ("loss.padding",), ""),
    Case("mean-over-the-batchs-size", lambda: Translated("mean over the batch's size"), Translated,
         ("loss.padding",), ""),
]  # fmt: skip
