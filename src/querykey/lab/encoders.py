"""Pairs of sentences as tensors, and encoders that learn from them: words, labels, or both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from querykey.lab.language import SentencePair
from querykey.lab.weights import fit_weights
from querykey.models import ClassHead, Encoder, PairHead, TokenHead, preset

PADDING, BEGIN, SEPARATE, HIDDEN, UNKNOWN = range(5)  # then the words, the most frequent first
IGNORED = -100
SHARE = 0.15  # of the words are hidden


@dataclass(frozen=True)
class EncodedPairs:
    """[begin] first [separate] second [separate], filled up on the right, and what is known."""

    ids: Tensor
    real: Tensor
    types: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Tensor) -> EncodedPairs:
        return EncodedPairs(self.ids[rows], self.real[rows], self.types[rows], self.labels[rows])


@dataclass(frozen=True)
class Words:
    """The words that have an id."""

    ids: dict[str, int]

    @property
    def count(self) -> int:
        """How many ids there are, marks included."""
        return UNKNOWN + 1 + len(self.ids)

    def encode(self, pairs: Sequence[SentencePair]) -> EncodedPairs:
        """Return pairs of sentences as tensors."""
        texts = [[[self.ids.get(w, UNKNOWN) for w in text.split()] for text in (p.first, p.second)]
                 for p in pairs]  # fmt: skip
        longest = max(len(first) + len(second) for first, second in texts) + 3
        ids = torch.full((len(pairs), longest), PADDING)
        types = torch.zeros_like(ids)
        for row, (first, second) in enumerate(texts):
            tokens = [BEGIN, *first, SEPARATE, *second, SEPARATE]
            ids[row, : len(tokens)] = torch.tensor(tokens)
            types[row, len(first) + 2 : len(tokens)] = 1
        return EncodedPairs(
            ids, ids != PADDING, types, torch.tensor([pair.label for pair in pairs])
        )


def most_frequent(pairs: Sequence[SentencePair], count: int) -> Words:
    """Return an id for each of the most frequent words."""
    found = Counter(word for pair in pairs for word in f"{pair.first} {pair.second}".split())
    return Words({word: UNKNOWN + 1 + i for i, (word, _) in enumerate(found.most_common(count))})


def encoder(width: int, words: int, length: int, hidden: bool, labelled: bool) -> Encoder:
    """Return BERT in small, with a head for hidden words, for the label of a pair, or for both."""
    config = preset("bert", {"width": width, "vocabulary": words, "length": length})
    head: TokenHead | ClassHead | PairHead = ClassHead(2, "tanh")
    if hidden and labelled:
        head = PairHead(config.head, head)
    elif hidden:
        head = config.head
    model = Encoder(replace(config, head=head))
    fit_weights(model)
    return model


def hide(ids: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Return ids with a share of the words hidden, at least one in a row, and what these were."""
    chance = torch.rand(ids.shape, generator=generator)
    chance[ids <= SEPARATE] = 2.0  # marks and padding are never hidden
    chosen = (chance < SHARE) | (chance == chance.min(1, keepdim=True)[0])
    return ids.masked_fill(chosen, HIDDEN), ids.masked_fill(~chosen, IGNORED)


def loss_of(model: nn.Module, pairs: EncodedPairs, hidden: bool, labelled: bool) -> Tensor:
    """Return the mean loss of hidden words, of labels, or their sum."""
    ids, wanted = hide(pairs.ids) if hidden else (pairs.ids, pairs.ids)
    scores = model(ids, pairs.real, pairs.types)
    words, label = scores if hidden and labelled else (scores, scores)
    loss = torch.zeros(())
    if hidden:
        loss = loss + cross_entropy(words.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
    return loss + cross_entropy(label, pairs.labels) if labelled else loss


def train(
    model: nn.Module, pairs: EncodedPairs, steps: int, hidden: bool, labelled: bool, batch: int = 64
) -> None:
    """Train by AdamW; the rate rises and falls over the steps."""
    rate = 2e-3
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps + 1, pct_start=0.1)
    model.train()
    for _ in range(steps):
        rows = torch.randint(len(pairs), (batch,))
        optimizer.zero_grad()
        loss_of(model, pairs[rows], hidden, labelled).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
