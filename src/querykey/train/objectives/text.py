"""Objectives over tokens: the next token, hidden tokens, the class of a text, a translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from querykey.train.objectives.objective import (
    IGNORED,
    LOSS,
    Batch,
    Example,
    MakeGenerator,
    Sample,
    Sums,
    cross_entropy_sum,
    padding,
    scores_of,
    stacked,
    terms_in,
)
from querykey.words import a_type


@dataclass(frozen=True)
class NextToken:
    """Causal language modelling: every token but the first is predicted from those before it.

    Rows are filled up on the right, where a causal model cannot see; so any model that takes ids
    will do. A sample may say in `judged` which of its tokens count, and in `documents` which of
    them are of one document: the first token of the next one is not predicted from it.
    """

    losses = LOSS

    def example(self, sample: Sample, new_generator: MakeGenerator) -> Example:
        """Return the tokens but the last, and as labels the tokens but the first."""
        tokens = np.asarray(sample["tokens"], dtype=np.int64)
        labels = tokens[1:]
        if "judged" in sample:
            labels = np.where(sample["judged"][1:], labels, IGNORED)
        example = {"ids": tokens[:-1], "labels": labels}
        if "documents" in sample:
            documents = np.asarray(sample["documents"], dtype=np.int64)
            example["documents"] = documents[:-1]
            example["labels"] = np.where(documents[1:] == documents[:-1], labels, IGNORED)
        return example

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Return rows of ids and labels, filled up on the right."""
        ids, labels = stacked(examples, "ids"), stacked(examples, "labels", IGNORED)
        tensors = {"ids": ids, "labels": labels} | _documents(examples)
        return Batch(tensors, terms_in(labels), ids.numel())

    def sums(self, model: nn.Module, batch: Batch) -> Sums:
        """Return the summed cross entropy of the next tokens."""
        output = model(batch.tensors["ids"], **_packed(batch))
        return cross_entropy_sum(output, batch.tensors["labels"])


@dataclass(frozen=True)
class HiddenTokens:
    """BERT's masked words: of a share of the tokens, 8 in 10 are hidden, 1 in 10 is replaced.

    The model says what all of that share were (Devlin et al., 2019).
    """

    share: float
    mask_token: int
    vocabulary: int  # random replacements are drawn below this
    length: int  # tokens of a sample that are read
    kept: tuple[int, ...] = ()  # marks that are never hidden

    losses = LOSS

    def example(self, sample: Sample, new_generator: MakeGenerator) -> Example:
        """Return the tokens with some hidden, and labels for those."""
        tokens = np.asarray(sample["tokens"][: self.length], dtype=np.int64)
        words, generator = ~np.isin(tokens, self.kept), new_generator()
        chosen = (generator.random(len(tokens)) < self.share) & words
        if not chosen.any() and words.any():
            chosen[generator.choice(np.flatnonzero(words))] = True
        fate = generator.random(len(tokens))
        random = generator.integers(self.vocabulary, size=len(tokens))
        ids = np.where(chosen & (fate < 0.8), self.mask_token, tokens)
        ids = np.where(chosen & (fate >= 0.9), random, ids)
        example = {"ids": ids, "labels": np.where(chosen, tokens, IGNORED)}
        if "documents" in sample:
            example["documents"] = np.asarray(sample["documents"][: self.length], dtype=np.int64)
        return example

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Return rows of ids, which of them are real, and labels."""
        labels = stacked(examples, "labels", IGNORED)
        tensors = {"ids": stacked(examples, "ids"), "labels": labels} | padding(examples, "ids")
        return Batch(tensors | _documents(examples), terms_in(labels), labels.numel())

    def sums(self, model: nn.Module, batch: Batch) -> Sums:
        """Return the summed cross entropy of the hidden tokens."""
        output = model(batch.tensors["ids"], batch.tensors.get("real"), **_packed(batch))
        return cross_entropy_sum(output, batch.tensors["labels"])


@dataclass(frozen=True)
class TextClass:
    """Classification of a text, or of a pair of texts, by the scores of its first token.

    A sample has `tokens`, a `label`, and for pairs `types` that tell the second text from the
    first. Adjacent, inverted and entailed sentences are classified so.
    """

    losses = LOSS

    def example(self, sample: Sample, new_generator: MakeGenerator) -> Example:
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
        return Batch(tensors, terms_in(tensors["labels"]), tensors["ids"].numel())

    def sums(self, model: nn.Module, batch: Batch) -> Sums:
        """Return the summed cross entropy of the classes."""
        output = model(batch.tensors["ids"], batch.tensors.get("real"), **_types(batch))
        return cross_entropy_sum(output, batch.tensors["labels"])


@dataclass(frozen=True)
class WordsAndPairs:
    """BERT's pretraining: hidden tokens of two texts, and whether the texts belong together.

    The model returns scores for every token, and scores of the pair's class; both losses are
    added, the mean over hidden tokens and the mean over pairs (Devlin et al., 2019).
    """

    words: HiddenTokens
    pairs: TextClass

    losses = ("words", "pairs")

    def example(self, sample: Sample, new_generator: MakeGenerator) -> Example:
        """Return the tokens with some hidden, labels for those, and the label of the pair."""
        pair = self.pairs.example(sample, new_generator)
        hidden = self.words.example(sample, new_generator)
        return pair | {"ids": hidden["ids"], "hidden": hidden["labels"]}

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Return rows of ids and types, which of them are real, and the labels of both tasks."""
        batch = self.pairs.batch(examples)
        hidden = stacked(examples, "hidden", IGNORED)
        words, pairs = terms_in(hidden)["loss"], batch.terms["loss"]
        terms = {"words": words, "words_correct": words, "pairs": pairs, "pairs_correct": pairs}
        return Batch(batch.tensors | {"hidden": hidden}, terms, batch.tokens)

    def sums(self, model: nn.Module, batch: Batch) -> Sums:
        """Return the summed cross entropies of hidden tokens and of pairs, each with its hits."""
        tensors = batch.tensors
        output = model(tensors["ids"], tensors.get("real"), **_types(batch))
        if not (isinstance(output, tuple | list) and len(output) == 2):
            raise TypeError(
                f"the model returned {a_type(output)}, where a pair is wanted: scores of "
                f"every token, and scores of the class of the pair"
            )
        sums: Sums = {}
        for name, labels, scores in zip(
            self.losses, (tensors["hidden"], tensors["labels"]), output, strict=True
        ):
            part = cross_entropy_sum(scores, labels)
            sums[name] = part.pop("loss")
            sums |= {f"{name}_{measure}": value for measure, value in part.items()}
        return sums


@dataclass(frozen=True)
class Translation:
    """Sequence to sequence with teacher forcing: a target token from those before.

    A sample has `source` and `target` tokens. The target begins with `start` and ends with `end`.
    """

    start: int
    end: int

    losses = LOSS

    def example(self, sample: Sample, new_generator: MakeGenerator) -> Example:
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
        terms = terms_in(labels) | {"rows": len(examples)}
        return Batch(tensors, terms, labels.numel() + tensors["source"].numel())

    def sums(self, model: nn.Module, batch: Batch) -> Sums:
        """Return the summed cross entropy of the target tokens, and how many rows are all right."""
        source, target, labels = (batch.tensors[name] for name in ("source", "target", "labels"))
        scores = scores_of(model(source, target, batch.tensors.get("source_real")), labels.shape)
        sums = cross_entropy_sum(scores, labels)
        if "correct" in sums:
            right = (scores.argmax(-1) == labels) | (labels == IGNORED)
            sums["rows"] = right.all(-1).sum()
        return sums


def _documents(examples: Sequence[Example]) -> dict[str, Tensor]:
    """Return the number of every token's document, where examples hold several documents."""
    return {"documents": stacked(examples, "documents", -1)} if "documents" in examples[0] else {}


def _packed(batch: Batch) -> dict[str, Tensor]:
    """Return the documents as models of ours take them; nothing where rows are not packed."""
    return {"documents": batch.tensors["documents"]} if "documents" in batch.tensors else {}


def _types(batch: Batch) -> dict[str, Tensor]:
    """Return the types that tell the second text of a pair from the first, where there are any."""
    return {"types": batch.tensors["types"]} if "types" in batch.tensors else {}
