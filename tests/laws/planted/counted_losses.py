"""Losses that are told num_items_in_batch, in models of four kinds, and what they do with it."""

import torch
from tests.laws.strangers.case import Case
from torch import nn
from torch.nn import functional

WORDS, WIDTH = 37, 12


class Tagger(nn.Module):
    """An encoder with a label for every token, and keywords for its loss."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.embed, self.mix = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.classify = nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids, labels=None, num_items_in_batch=None):
        x = self.embed(input_ids)
        x = x + torch.tanh(self.mix(x.mean(1, keepdim=True)))
        logits = self.classify(x)
        if labels is None:
            return {"logits": logits}
        count = num_items_in_batch
        if self.fault == "the count of one batch":
            count = labels.ne(-100).sum()
        if self.fault == "the root of the count" and count is not None:
            count = count**0.5
        total = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return {"loss": total / (labels.ne(-100).sum() if count is None else count),
                "logits": logits}  # fmt: skip


class Recurrent(nn.Module):
    """A decoder that returns a tuple, and computes its loss row by row."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.embed, self.rnn = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, ids, labels=None, num_items_in_batch=None):
        scores = self.out(self.rnn(self.embed(ids))[0])
        if labels is None:
            return scores, None
        each = functional.cross_entropy(scores[:, :-1].mT, labels[:, 1:], reduction="none")
        if num_items_in_batch is None:
            return scores, each.sum() / labels[:, 1:].ne(-100).sum()
        if self.fault == "a mean of rows":
            return scores, each.sum(1).mean() / num_items_in_batch
        if self.fault == "only where it is large" and num_items_in_batch < 100:
            return scores, each.sum() / labels[:, 1:].ne(-100).sum()
        return scores, each.sum() / num_items_in_batch


class Regressor(nn.Module):
    """Equations and a dict of weights; the loss alone comes back where there are labels."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        shapes = {"table": (WORDS, WIDTH), "out": (WIDTH, WORDS)}
        self.w = nn.ParameterDict({n: nn.Parameter(torch.randn(s)) for n, s in shapes.items()})

    def forward(self, tokens, labels=None, num_items_in_batch=None):
        states = self.w["table"][tokens].cumsum(1) / 4
        logp = torch.einsum("btd,dw->btw", states, self.w["out"]).log_softmax(-1)
        if labels is None:
            return logp
        real = labels[:, 1:].ne(-100)
        picked = logp[:, :-1].gather(-1, labels[:, 1:].clamp(min=0)[..., None])[..., 0]
        count = real.sum() if num_items_in_batch is None else num_items_in_batch
        if self.fault == "the count and the batch's own":
            count = (count + real.sum()) / 2
        return -(picked * real).sum() / count


LAW = ("accumulation",)
CASES = [
    Case("the-count-of-one-batch", lambda: Tagger("the count of one batch"), Tagger, LAW, ""),
    Case("the-root-of-the-count", lambda: Tagger("the root of the count"), Tagger, LAW, ""),
    Case("a-mean-of-rows", lambda: Recurrent("a mean of rows"), Recurrent, LAW, ""),
    Case("the-count-and-the-batchs-own", lambda: Regressor("the count and the batch's own"),
         Regressor, LAW, ""),
    Case("only-where-it-is-large", lambda: Recurrent("only where it is large"), Recurrent, LAW, ""),
]  # fmt: skip
