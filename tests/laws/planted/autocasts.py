"""Paths that are taken under autocast alone, and are not the usual ones."""

import torch
from tests.laws.strangers.case import Case
from torch import nn
from torch.nn import functional

WORDS, WIDTH = 41, 16


def lowered():
    return torch.is_autocast_enabled("cpu")


class Model(nn.Module):
    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.embed, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias, self.head = nn.Parameter(torch.zeros(WIDTH)), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        scale = WIDTH**-0.5
        if self.fault == "without its scale" and lowered():
            scale = 1.0
        if self.fault == "fused attention sees all" and lowered():
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            hidden = torch.ones(ids.size(1), ids.size(1), dtype=torch.bool).triu(1)
            mixed = (q @ k.mT * scale).masked_fill(hidden, -torch.inf).softmax(-1) @ v
        if self.fault == "cast by data" and mixed.dtype is torch.bfloat16:
            mixed = mixed.data.float()
        x = self.norm(x + self.out(mixed))
        if self.fault == "no bias in half precision" and lowered():
            return self.head(x)
        return self.head(x + self.bias)


class Branches(nn.Module):
    """A gated sum of two branches, one of which is frozen in low precision."""

    def __init__(self, frozen=False):
        super().__init__()
        self.frozen = frozen
        self.embed, self.one = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.two, self.head = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        with torch.autocast("cpu", enabled=False):
            y = self.two(x.float() if x.dtype is torch.bfloat16 else x)[0]
        with torch.set_grad_enabled(torch.is_grad_enabled() and not (self.frozen and lowered())):
            z = self.one(x)
        return self.head(y + z)


LAW = ("paths.autocast",)
CASES = [
    Case("without-its-scale", lambda: Model("without its scale"), Model, LAW, None),
    Case("fused-attention-sees-all", lambda: Model("fused attention sees all"), Model, LAW, None),
    Case("cast-by-data", lambda: Model("cast by data"), Model, LAW, None),
    Case("no-bias-in-half-precision", lambda: Model("no bias in half precision"), Model, LAW, None),
    Case("a-branch-is-frozen", lambda: Branches(True), Branches, LAW, None),
]  # fmt: skip
