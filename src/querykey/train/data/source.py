"""What a source of training data answers: samples by number, and what a model must know of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from querykey.errors import QuerykeyError
from querykey.train.data.tokenizers import Tokenizer
from querykey.train.order import sample_generator


class DataError(QuerykeyError):
    """Says which data could not be read or do not fit, and what to do."""


class Source(Protocol):
    """Samples by number; the same number is the same sample whenever it is asked."""

    def __len__(self) -> int:
        """Count the samples of an epoch."""
        ...

    def sample(self, index: int, epoch: int = 0) -> dict[str, Any]:
        """Return one sample; a text is cut at other places in each epoch."""
        ...


@dataclass(frozen=True)
class Facts:
    """What a model must know of its data; 0 and () where that does not apply."""

    vocabulary: int = 0  # special tokens included
    length: int = 0  # tokens of a sample, at most
    classes: int = 0
    image: tuple[int, ...] = ()  # channels, height, width
    features: int = 0  # of a vector
    tokenizer: Tokenizer | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Data:
    """Samples to train with, others to evaluate with, and what both have in common."""

    train: Source
    valid: Source
    facts: Facts


@dataclass(frozen=True)
class Listed:
    """A source whose samples are all there, in memory."""

    samples: Sequence[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.samples)

    def sample(self, index: int, epoch: int = 0) -> dict[str, Any]:
        """Return the sample of a number."""
        return self.samples[index]


@dataclass(frozen=True)
class Drawn:
    """A generated task: sample `index` is drawn from the random numbers that belong to it.

    One that is `fresh` goes on counting, so that no epoch has the samples of another.
    """

    count: int
    draw: Callable[[int], dict[str, Any]]
    fresh: bool = False

    def __len__(self) -> int:
        return self.count

    def sample(self, index: int, epoch: int = 0) -> dict[str, Any]:
        """Draw the sample of a number."""
        return self.draw(index + epoch * self.count if self.fresh else index)


Draw = Callable[[np.random.Generator], Any]
TRIES = 200


def drawn_apart(draw: Draw, seed: int, split: str, index: int) -> Any:
    """Return a sample of a split such that the other split never has the same one.

    A hash of the sample says which split it belongs to, one in ten to `valid`; others are drawn
    again. Where a task has so few samples that none belongs to the split, the last one is taken.
    """
    sample: Any = None
    for attempt in range(TRIES):
        sample = draw(sample_generator(seed, split, index, attempt))
        digest = hashlib.blake2b(repr(_plain(sample)).encode(), digest_size=2).digest()
        if (digest[0] % 10 == 0) == (split == "valid"):
            break
    return sample


def _plain(sample: Any) -> Any:
    """Return a sample as values whose text tells one from another."""
    if isinstance(sample, dict):
        return {name: _plain(value) for name, value in sample.items()}
    return sample.tolist() if isinstance(sample, np.ndarray) else sample


def fingerprint(data: Data, samples: int = 64) -> str:
    """Return a hash of how many samples there are, of the tokenizer, and of samples all over."""
    digest = hashlib.sha256()
    if data.facts.tokenizer is not None:
        digest.update(data.facts.tokenizer.as_json().encode())
    for source in (data.train, data.valid):
        digest.update(f"{len(source)}".encode())
        for index in np.linspace(0, len(source) - 1, min(samples, len(source))).astype(int):
            for name, value in sorted(source.sample(int(index)).items()):
                digest.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
