"""Ids that mean something nobody declared: hidden because they are 0, or an end by their number."""

import torch
from tests.laws.strangers.case import Case
from torch import nn
from torch.nn import functional

WORDS, WIDTH = 47, 16


class Decoder(nn.Module):
    """A small decoder whose mask, sums or scores may look at the numbers of ids."""

    def __init__(self, fault="", tied=False, pad_id=None, wide=False):
        super().__init__()
        self.fault = fault
        if pad_id is not None:
            self.pad_id = pad_id
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = wide and nn.Linear(WIDTH, WORDS), nn.Linear(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        T = ids.size(1)
        x = self.embed(ids) + self.place(torch.arange(T))
        q, k, v = self.qkv(x).chunk(3, -1)
        seen = torch.ones(T, T, dtype=torch.bool).tril()
        hidden = getattr(self, "pad_id", 0 if self.fault == "0 is hidden" else None)
        if hidden is not None:
            seen = seen & ((ids != hidden)[:, None] | torch.eye(T, dtype=torch.bool))
        if self.fault == "2 ends a document":
            number = (ids == 2).long().cumsum(1)
            seen = seen & (number[:, :, None] == number[:, None])
        scores = (q @ k.mT / WIDTH**0.5).masked_fill(~seen, -1e30)
        x = x + self.out(scores.softmax(-1) @ v)
        if self.wide:
            x = x + self.narrow(self.wide(x).tanh().cumsum(-1))  # its features have an order
        logits = 20 * torch.tanh(self.head(x) / 20) if self.wide else self.head(x)
        if self.fault == "the last id is never said":
            logits = torch.cat([logits[..., :-1], torch.full_like(logits[..., -1:], -9.0)], -1)
        return logits


class Scaled(nn.Module):
    """Embeddings by hand, with a gate that reads the number of an id."""

    def __init__(self, gate=False):
        super().__init__()
        self.gate = gate
        self.table = nn.Parameter(torch.randn(WORDS, WIDTH))
        self.mix = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, ids):
        x = functional.embedding(ids, self.table)
        if self.gate:
            x = x * torch.where(ids < 4, 0.5, 1.0)[..., None]
        return functional.linear(self.mix(x)[0], self.table)


class Encoder(nn.Module):
    """An encoder that takes a mask, and hides id 1 besides."""

    def __init__(self, extra=False, padding_idx=None):
        super().__init__()
        self.extra = extra
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=padding_idx)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, ids, attention_mask=None):
        q, k, v = self.qkv(self.embed(ids)).chunk(3, -1)
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        real = real.bool()
        if self.extra:
            real = real & (ids != 1)
        scores = (q @ k.mT / WIDTH**0.5).masked_fill(~real[:, None], -1e30)
        return self.head(scores.softmax(-1) @ v)


LAW = ("vocabulary",)
CASES = [
    Case("id-0-is-hidden", lambda: Decoder("0 is hidden"), Decoder, LAW, ""),
    Case("a-layer-is-as-wide-as-the-vocabulary", lambda: Decoder("0 is hidden", wide=True),
         lambda: Decoder(wide=True), LAW, ""),
    Case("a-hard-coded-end", lambda: Decoder("2 ends a document", tied=True),
         lambda: Decoder(tied=True), LAW, ""),
    Case("a-score-by-number", lambda: Decoder("the last id is never said"), Decoder, LAW, ""),
    Case("small-ids-count-half", lambda: Scaled(gate=True), Scaled, LAW, ""),
    Case("id-1-is-hidden-beside-the-mask", lambda: Encoder(extra=True), Encoder, LAW, ""),
    Case("declared-as-padding-by-the-table", lambda: Encoder(extra=True),
         lambda: Encoder(extra=True, padding_idx=1), LAW, ""),
    Case("declared-as-padding-by-an-attribute", lambda: Decoder("0 is hidden"),
         lambda: Decoder(pad_id=0), LAW, ""),
]  # fmt: skip
