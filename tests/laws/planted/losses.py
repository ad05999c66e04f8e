"""Losses of models: labels that meet the wrong answer, and labels of -100 that are counted."""

from dataclasses import dataclass

import torch
from tests.laws.strangers.case import Case
from torch import nn
from torch.nn import functional

WORDS, WIDTH = 43, 16


class Causal(nn.Module):
    """The part that all share: a table, one layer of attention that looks back, a head."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def hidden(self, ids, memory=None, seen=None):
        x = self.embed(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        T = ids.size(1)
        scores = q @ k.mT / WIDTH**0.5
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -1e30)
        if seen is not None:
            scores = scores.masked_fill(~seen.bool()[:, None], -1e30)
        x = x + scores.softmax(-1) @ v
        return x if memory is None else x + memory


@dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Records(Causal):
    """Ids and labels by Hugging Face's names, a record out; labels are the ids themselves."""

    def __init__(self, skip=1, reduction="mean"):
        super().__init__()
        self.skip, self.reduction = skip, reduction

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.hidden(input_ids, seen=attention_mask))
        if labels is None:
            return Output(logits)
        skip = self.skip
        logp = logits[:, : logits.size(1) - skip].log_softmax(-1)
        labels = labels[:, skip:]
        if self.reduction == "clamped":
            labels = labels.clamp(min=0)
        loss = functional.nll_loss(logp.flatten(0, 1), labels.flatten(), reduction="none")
        if self.reduction == "all":
            return Output(logits, loss.mean())
        if self.reduction == "real" and attention_mask is not None:
            return Output(logits, loss.sum() / attention_mask[:, skip:].sum())
        if self.reduction == "real":
            return Output(logits, loss.sum() / labels.numel())
        return Output(logits, loss.sum() / (labels != -100).sum())


class Targets(Causal):
    """nanoGPT's way: targets that the caller has shifted."""

    def __init__(self, how=""):
        super().__init__()
        self.how = how

    def forward(self, idx, targets=None):
        logits = self.head(self.hidden(idx))
        if targets is None:
            return logits, None
        scores = logits
        if self.how == "wrong way":
            scores, targets = logits[:, 1:], targets[:, :-1]
        if self.how == "flattened":
            flat = logits.reshape(-1, WORDS)[:-1], targets.reshape(-1)[1:]
            return logits, functional.cross_entropy(*flat)
        if self.how == "turned":
            scores = logits.transpose(0, 1)
        if self.how == "per row":
            loss = functional.cross_entropy(scores.mT, targets, reduction="none", ignore_index=-1)
            return logits, loss.mean(1).mean()
        loss = functional.cross_entropy(
            scores.reshape(-1, WORDS), targets.reshape(-1), ignore_index=-1
        )
        return logits, loss


class LossAlone(Causal):
    """With labels it returns the loss alone, without them the scores."""

    def __init__(self, shift=1, wrap=False):
        super().__init__()
        self.shift, self.wrap = shift, wrap

    def forward(self, ids, labels=None):
        scores = self.head(self.hidden(ids)).float()
        if labels is None:
            return scores
        labels = torch.cat(
            [labels[:, self.shift :], labels.new_full((len(ids), self.shift), -100)], 1
        )
        real = labels != -100
        logp = scores.log_softmax(-1).gather(-1, (labels % WORDS)[..., None])[..., 0]
        if self.wrap:  # -100 is a number of a word, too
            last = torch.arange(ids.size(1)) < ids.size(1) - self.shift
            return -(logp * last).sum() / last.sum() / len(ids)
        return -(logp * real).sum() / real.sum()


class Pair(nn.Module):
    """An encoder-decoder that makes its decoder's input from the labels."""

    def __init__(self, places=1, skip=0):
        super().__init__()
        self.places, self.skip = places, skip
        self.encoder, self.decoder = nn.Embedding(WORDS, WIDTH), Causal()

    def forward(self, input_ids, decoder_input_ids=None, labels=None):
        memory = self.encoder(input_ids).mean(1, keepdim=True)
        if decoder_input_ids is None:
            begin = labels.new_zeros(len(labels), self.places)
            decoder_input_ids = torch.cat([begin, labels.clamp(min=0)], 1)[:, : labels.size(1)]
        logits = self.decoder.head(self.decoder.hidden(decoder_input_ids, memory))
        if labels is None:
            return {"logits": logits}
        cut = (
            logits[:, : logits.size(1) - self.skip].flatten(0, 1),
            labels[:, self.skip :].flatten(),
        )
        return {"loss": functional.cross_entropy(*cut), "logits": logits}


def pair(**how):
    ids = torch.randint(0, WORDS, (2, 7)), torch.randint(0, WORDS, (2, 5))
    return Pair(**how), {"input_ids": ids[0], "decoder_input_ids": ids[1]}


SHIFT, PADDING = ("loss.shift",), ("loss.padding",)
CASES = [
    Case("labels-shifted-twice", lambda: Records(2), Records, SHIFT, ""),
    Case("targets-shifted-the-wrong-way", lambda: Targets("wrong way"), Targets, SHIFT, ""),
    Case("rows-joined-before-the-shift", lambda: Targets("flattened"), Targets, SHIFT, ""),
    Case("positions-first-against-rows-first", lambda: Targets("turned"), Targets, SHIFT, ""),
    Case("loss-alone-shifted-twice", lambda: LossAlone(2), LossAlone, SHIFT, ""),
    Case("decoder-reads-what-it-predicts", lambda: pair(places=0), pair, SHIFT, ""),
    Case("decoder-input-shifted-twice", lambda: pair(places=2), pair, SHIFT, ""),
    Case("pairs-shifted-in-the-loss-too", lambda: pair(skip=2), pair, SHIFT, ""),
    Case("hidden-labels-in-the-mean", lambda: Records(reduction="all"), Records, PADDING, ""),
    Case("hidden-labels-are-word-0", lambda: Records(reduction="clamped"), Records, PADDING, ""),
    Case("divided-by-real-tokens", lambda: Records(reduction="real"), Records, PADDING, ""),
    Case("rows-of-zeros-in-the-mean", lambda: Targets("per row"), Targets, PADDING, ""),
    Case("hidden-labels-wrap-around", lambda: LossAlone(wrap=True), LossAlone, PADDING, ""),
]  # fmt: skip
