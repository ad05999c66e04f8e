"""Rows that hold several documents, told of by ids, by borders, or by positions that restart."""

import torch
from tests.laws.strangers.case import Case
from torch import nn

WORDS, WIDTH = 43, 16


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, seen):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT / WIDTH**0.5).masked_fill(~seen, -1e30)
        return x + self.out(scores.softmax(-1) @ v)


def restarting(same):
    """Return how many earlier tokens of its own document every token has."""
    T = same.size(-1)
    return (same & torch.ones(T, T, dtype=torch.bool).tril(-1)).sum(-1)


class Tables(nn.Module):
    """An id per token; positions begin anew with every document."""

    def __init__(self, fault="", causal=True):
        super().__init__()
        self.fault, self.causal = fault, causal
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids, documents=None):
        B, T = ids.shape
        if documents is None:
            documents = torch.zeros_like(ids)
        if self.fault == "the first row's documents":
            documents = documents[:1].expand(B, T)
        same = documents[:, :, None] == documents[:, None]
        if self.fault == "neighbours are the same":
            same = (documents[:, :, None] - documents[:, None]).abs() <= 1
        seen = same & torch.ones(T, T, dtype=torch.bool).tril() if self.causal else same
        places = restarting(same)
        if self.fault == "positions go on":
            places = torch.arange(T).expand(B, T)
        x = self.embed(ids) + self.place(places)
        for index, layer in enumerate(self.layers):
            forgotten = self.fault == "the second layer sees all" and index
            x = layer(x, torch.ones(T, T, dtype=torch.bool).tril() if forgotten else seen)
        return self.head(x)


class Borders(nn.Module):
    """Cumulated lengths over one long row, as fused kernels take them."""

    def __init__(self, side="right"):
        super().__init__()
        self.side = side
        self.embed, self.layer = nn.Embedding(WORDS, WIDTH), Layer()
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids, cu_seqlens=None, max_seqlen=None):
        T = input_ids.size(1)
        number = torch.zeros(T, dtype=torch.long)
        if cu_seqlens is not None:
            right = self.side == "right"
            number = torch.searchsorted(cu_seqlens.long(), torch.arange(T), right=right)
        seen = (number[:, None] == number[None]).tril()
        return self.head(self.layer(self.embed(input_ids), seen))


class Recurrent(nn.Module):
    """A gated sum that is to begin anew where a document does."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.embed, self.gate = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, seq_idx=None):
        x = self.embed(tokens)
        fresh = torch.zeros(tokens.shape, dtype=torch.bool)
        if seq_idx is not None:
            fresh[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
            if self.fault == "a place too late":
                fresh = fresh.roll(1, 1)
        state, outputs = torch.zeros_like(x[:, 0]), []
        for t in range(x.size(1)):
            state = torch.where(fresh[:, t, None], 0.0, state)
            keep = torch.sigmoid(self.gate(x[:, t]))
            state = keep * state + (1 - keep) * x[:, t]
            outputs.append(state)
        return self.head(torch.stack(outputs, 1))


class Convolved(nn.Module):
    """An encoder of documents with a convolution before attention."""

    def __init__(self, masked=True):
        super().__init__()
        self.masked = masked
        self.embed, self.conv = nn.Embedding(WORDS, WIDTH), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.layer, self.head = Layer(), nn.Linear(WIDTH, WORDS)

    def forward(self, ids, document_ids=None):
        ids_of = torch.zeros_like(ids) if document_ids is None else document_ids
        same = ids_of[:, :, None] == ids_of[:, None]
        x = self.embed(ids)
        if self.masked:  # every document convolved by itself
            parts = []
            for row, numbers in zip(x, ids_of, strict=True):
                _, counts = numbers.unique_consecutive(return_counts=True)
                pieces = row.split(counts.tolist())
                parts.append(torch.cat([self.conv(p.mT[None])[0].mT for p in pieces]))
            x = torch.stack(parts)
        else:
            x = self.conv(x.mT).mT
        return self.head(self.layer(x, same))


LAW = ("documents",)
CASES = [
    Case("the-first-rows-documents", lambda: Tables("the first row's documents"), Tables, LAW, ""),
    Case("neighbours-are-the-same", lambda: Tables("neighbours are the same", causal=False),
         lambda: Tables(causal=False), LAW, None),
    Case("positions-go-on", lambda: Tables("positions go on"), Tables, LAW, None),
    Case("the-second-layer-sees-all", lambda: Tables("the second layer sees all"), Tables, LAW,
         None),
    Case("borders-one-off", lambda: Borders("left"), Borders, LAW, None),
    Case("a-state-is-cleared-too-late", lambda: Recurrent("a place too late"), Recurrent, LAW, ""),
    Case("a-convolution-crosses-borders", lambda: Convolved(masked=False), Convolved, LAW, "conv"),
]  # fmt: skip
