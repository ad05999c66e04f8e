"""Objectives over tokens: the next token, hidden tokens, the class of a text, a translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from querykey.train.objectives.objective import (
    IGNORED,
    Batch,
    Example,
    Sample,
    Sums,
    cross_entropy_sum,
    padding,
    scores_of,
    stacked,
    terms_in,
)


@dataclass(frozen=True)
class NextToken:
    """Causal language modelling: every token but the first is predicted from those before it.

    Rows are filled up on the right, where a causal model cannot see; so any model that takes ids
    will do. A sample may say in `judged` which of its tokens count.
    """

    def example(self, sample: Sample, generator: np.random.Generator) -> Example:
        """Return the tokens but the last, and as labels the tokens but the first."""
        tokens = np.asarray(sample["tokens"], dtype=np.int64)
        labels = tokens[1:]
        if "judged" in sample:
            labels = np.where(sample["judged"][1:], labels, IGNORED)
        return {"ids": tokens[:-1], "labels": labels}

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Return rows of ids and labels, filled up on the right."""
        ids, labels = stacked(examples, "ids"), stacked(examples, "labels", IGNORED)
        return Batch({"ids": ids, "labels": labels}, terms_in(labels), ids.numel())

    def sums(self, model: nn.Module, batch: Batch) -> Sums:
        """Return the summed cross entropy of the next tokens."""
        return cross_entropy_sum(model(batch.tensors["ids"]), batch.tensors["labels"])


@dataclass(frozen=True)
class HiddenTokens:
    """BERT's masked words: of a share of the tokens, 8 in 10 are hidden, 1 in 10 is replaced.

    The model says what all of that share were (Devlin et al., 2019).
    """

    share: float
    mask_token: int
    vocabulary: int  # random replacements are drawn below this
    length: int  # tokens of a sample that are read

    def example(self, sample: Sample, generator: np.random.Generator) -> Example:
        """Return the tokens with some hidden, and labels for those."""
        tokens = np.asarray(sample["tokens"][: self.length], dtype=np.int64)
        chosen = generator.random(len(tokens)) < self.share
        if not chosen.any():
            chosen[generator.integers(len(tokens))] = True
        fate = generator.random(len(tokens))
        random = generator.integers(self.vocabulary, size=len(tokens))
        ids = np.where(chosen & (fate < 0.8), self.mask_token, tokens)
        ids = np.where(chosen & (fate >= 0.9), random, ids)
        labels = np.where(chosen, tokens, IGNORED)
        return {"ids": ids, "labels": labels}

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Return rows of ids, which of them are real, and labels."""
        labels = stacked(examples, "labels", IGNORED)
        tensors = {"ids": stacked(examples, "ids"), "labels": labels} | padding(examples, "ids")
        return Batch(tensors, terms_in(labels), labels.numel())

    def sums(self, model: nn.Module, batch: Batch) -> Sums:
        """Return the summed cross entropy of the hidden tokens."""
        output = model(batch.tensors["ids"], batch.tensors.get("real"))
        return cross_entropy_sum(output, batch.tensors["labels"])


@dataclass(frozen=True)
class TextClass:
    """Classification of a text, or of a pair of texts, by the scores of its first token.

    A sample has `tokens`, a `label`, and for pairs `types` that tell the second text from the
    first. Adjacent, inverted and entailed sentences are classified so.
    """

    def example(self, sample: Sample, generator: np.random.Generator) -> Example:
        """Return the tokens, their types where there are any, and the label."""
        tokens = np.asarray(sample["tokens"], dtype=np.int64)
        example = {
            "ids": tokens,
            "labels": np.asarray([sample["label"]], dtype=np.int64),
        }
        if "types" in sample:
            example["types"] = np.asarray(sample["types"], dtype=np.int64)
        return example

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Return rows of ids and types, which of them are real, and a label for each."""
        tensors = {name: stacked(examples, name) for name in examples[0]}
        tensors["labels"] = tensors["labels"][:, 0]
        tensors |= padding(examples, "ids")
        return Batch(tensors, len(examples), tensors["ids"].numel())

    def sums(self, model: nn.Module, batch: Batch) -> Sums:
        """Return the summed cross entropy of the classes."""
        more = {"types": batch.tensors["types"]} if "types" in batch.tensors else {}
        output = model(batch.tensors["ids"], batch.tensors.get("real"), **more)
        return cross_entropy_sum(output, batch.tensors["labels"])


@dataclass(frozen=True)
class Translation:
    """Sequence to sequence with teacher forcing: a target token from those before.

    A sample has `source` and `target` tokens. The target begins with `start` and ends with `end`.
    """

    start: int
    end: int

    def example(self, sample: Sample, generator: np.random.Generator) -> Example:
        """Return the source, the target shifted by one, and the target as labels."""
        source = np.asarray(sample["source"], dtype=np.int64)
        labels = np.append(np.asarray(sample["target"], dtype=np.int64), self.end)
        target = np.concatenate([[self.start], labels[:-1]])
        return {"source": source, "target": target, "labels": labels}

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Return rows of sources and targets, filled up on the right."""
        labels = stacked(examples, "labels", IGNORED)
        tensors = {name: stacked(examples, name) for name in ("source", "target")}
        tensors |= {"labels": labels} | padding(examples, "source", "source_real")
        return Batch(tensors, terms_in(labels), labels.numel() + tensors["source"].numel())

    def sums(self, model: nn.Module, batch: Batch) -> Sums:
        """Return the summed cross entropy of the target tokens, and how many rows are all right."""
        source, target, labels = (batch.tensors[name] for name in ("source", "target", "labels"))
        scores = scores_of(model(source, target, batch.tensors.get("source_real")), labels.shape)
        sums = cross_entropy_sum(scores, labels)
        right = (scores.argmax(-1) == labels) | (labels == IGNORED)
        return sums | {"rows": right.all(-1).sum()}
