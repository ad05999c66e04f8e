"""Pairs of sentences: adjacent in a text, inverted, entailed; and snippets of code by package.

The two contrastive tasks of document 003, 12.6, come from a small grammar that knows inversion and
entailment. Its wrong pairs have the words of right ones, so that counting words does not help.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from querykey.train.config import DataConfig
from querykey.train.data.source import Data, DataError, Drawn, Facts, drawn_apart
from querykey.train.data.text import phase, pieces, stdlib_files, text_files
from querykey.train.data.tokenizers import Tokenizer, TokenizerMaker
from querykey.train.objectives.objective import IGNORED
from querykey.train.order import sample_generator

PEOPLE = [
    "boy",
    "girl",
    "man",
    "woman",
    "child",
    "farmer",
    "doctor",
    "teacher",
    "painter",
    "sailor",
    "baker",
    "singer",
]
ADVERBS = [
    "quickly",
    "slowly",
    "quietly",
    "loudly",
    "gladly",
    "sadly",
    "bravely",
    "calmly",
    "boldly",
    "gently",
]
MOVES = ["ran", "walked", "danced", "sang", "slept", "jumped", "swam", "worked", "waited", "smiled"]
PLACES = [
    "home",
    "garden",
    "forest",
    "market",
    "river",
    "school",
    "harbour",
    "castle",
    "village",
    "bridge",
]
THINGS = ["laptop", "book", "lamp", "chair", "coat", "knife", "boat", "drum", "clock", "mirror"]
# What one verb of a thing tells of having it afterwards.
GAINED = ["bought", "found", "received", "inherited", "won"]
LOST = ["sold", "lost", "gave", "dropped", "burned"]


def inverted_pair(generator: np.random.Generator) -> tuple[str, str, int]:
    """Return a sentence, and its syntactic inversion or that of another with the same words."""
    people = generator.permutation(len(PEOPLE))[:2]
    one, other = (PEOPLE[int(i)] for i in people)
    verb, adverb, place = (
        words[int(generator.integers(len(words)))] for words in (MOVES, ADVERBS, PLACES)
    )
    first = f"the {one} {verb} {adverb} to the {other} near the {place}"
    label = int(generator.integers(2))
    if label:
        second = f"{adverb} near the {place} {verb} the {one} to the {other}"
    else:
        second = f"{adverb} near the {place} {verb} the {other} to the {one}"
    return first, second, label


def entailed_pair(generator: np.random.Generator) -> tuple[str, str, int]:
    """Return a premise about two people and their things, and a claim that follows or does not.

    Each of them gains or loses a thing, whatever the other does; the claim is of one of them and of
    that one's thing. Claims that follow and claims that do not have the same words. Where one gains
    and one loses, as in half of the pairs, who is asked decides. Were it so in all of them, no
    single word and no two words would tell anything, and small models would not begin to learn.
    """
    people, things = generator.permutation(len(PEOPLE))[:2], generator.permutation(len(THINGS))[:2]
    events = []
    for person, thing in zip(people, things, strict=True):
        gains = bool(generator.integers(2))
        verbs = GAINED if gains else LOST
        verb = verbs[int(generator.integers(len(verbs)))]
        events.append((PEOPLE[int(person)], verb, THINGS[int(thing)], gains))
    label, article = int(generator.integers(2)), ("that", "the")[int(generator.integers(2))]
    who, _, what, gains = events[int(generator.integers(2))]
    # Gained is had, lost is not had.
    claim = f"the {who} {'now has' if gains == bool(label) else 'has no'} {article} {what}"
    return " and ".join(f"the {p} {verb} a {thing}" for p, verb, thing, _ in events), claim, label


def paired(
    special: dict[str, int], first: np.ndarray, second: np.ndarray, length: int
) -> dict[str, Any]:
    """Return tokens of [begin] first [separate] second [separate], and which text each is of."""
    if length < 5:
        raise DataError(
            f"data.length of a pair is at least 5, for its marks are 3 tokens; got {length}"
        )
    begin, separate, a, b = special["begin"], special["separate"], first, second
    while len(a) + len(b) > length - 3:
        a, b = (a[:-1], b) if len(a) > len(b) else (a, b[:-1])
    tokens = np.concatenate([[begin], a, [separate], b, [separate]])
    types = np.concatenate([np.zeros(len(a) + 2), np.ones(len(b) + 1)])
    return {"tokens": tokens.astype(np.int64), "types": types.astype(np.int64)}


def load_grammar(config: DataConfig, seed: int, make_tokenizer: TokenizerMaker) -> Data:
    """Return pairs of the grammar: inverted sentences, or claims that follow.

    A pair of one split is never in the other.
    """
    make = {"inverted": inverted_pair, "entailed": entailed_pair}[config.name]
    some = [make(sample_generator(seed, "words", i)) for i in range(2000)]
    texts = [text for first, second, _ in some for text in (first, second)]
    tokenizer = make_tokenizer(config.tokenizer, texts, config.vocabulary)
    longest = max(len(tokenizer.encode(a)) + len(tokenizer.encode(b)) for a, b, _ in some) + 3
    if config.length < longest:
        raise DataError(
            f"data.length is at least {longest} for the data `{config.name}`: of a pair that is "
            f"cut off the answer cannot be told; got {config.length}"
        )

    def split(name: str, count: int) -> Drawn:
        def draw(index: int) -> dict[str, Any]:
            first, second, label = drawn_apart(make, seed, name, index)
            ids = tokenizer.encode(first), tokenizer.encode(second)
            return paired(tokenizer.special, *ids, config.length) | {"label": label}

        return Drawn(count, draw)

    facts = Facts(tokenizer.size, config.length, classes=2, tokenizer=tokenizer)
    valid = min(max(config.samples // 10, 1), 2000)
    return Data(split("train", config.samples), split("valid", valid), facts)


def sentences(files: list[Path]) -> Iterator[str]:
    """Yield the sentences of a text: what ends with a full stop, a question or an exclamation."""
    for part in pieces(files):
        for sentence in re.split(r"(?<=[.!?])\s+", part):
            words = " ".join(sentence.split())
            if len(words) > 10:
                yield words


def load_adjacent(
    config: DataConfig, folder: Path, seed: int, make_tokenizer: TokenizerMaker
) -> Data:
    """Return pairs of sentences that are adjacent in a text, or whose second is from elsewhere.

    Every epoch draws anew which sentences are followed by their next one, and what the others get.
    """
    texts = list(sentences(text_files(config, folder.parent)))
    if len(texts) < 100:
        raise DataError(f"the text has {len(texts)} sentences, too few for pairs of them")
    tokenizer = make_tokenizer(config.tokenizer, texts, config.vocabulary)
    special, cut = tokenizer.special, int(len(texts) * 0.9)
    encoded = [tokenizer.encode(text) for text in texts]  # once: a sentence is in many pairs

    def split(name: str, texts: list[np.ndarray]) -> Drawn:
        def draw(index: int) -> dict[str, Any]:
            generator = sample_generator(seed, name, index)
            label = int(generator.integers(2))
            away = 1 if label else int(generator.integers(2, len(texts)))  # neither itself nor next
            first = index % (len(texts) - 1)
            second = texts[(first + away) % len(texts)]
            return paired(special, texts[first], second, config.length) | {"label": label}

        return Drawn(len(texts) - 1, draw, fresh=True)

    facts = Facts(tokenizer.size, config.length, classes=2, tokenizer=tokenizer)
    return Data(split("train", encoded[:cut]), split("valid", encoded[cut:]), facts)


PACKAGES = [
    "asyncio",
    "email",
    "http",
    "importlib",
    "logging",
    "multiprocessing",
    "unittest",
    "xml",
]


@dataclass(frozen=True)
class Snippets:
    """Pieces of labelled files, side by side; where the first of a file begins differs by epoch."""

    files: Sequence[tuple[int, np.ndarray]]  # label, or IGNORED where there is none; tokens
    room: int  # tokens of a piece, its mark left out
    begin: int
    seed: int | None = None  # None: every file is cut at its first token, in every epoch

    @cached_property
    def ends(self) -> np.ndarray:
        """How many pieces there are up to the end of each file."""
        return np.cumsum([len(ids) // self.room for _, ids in self.files])

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def sample(self, index: int, epoch: int = 0) -> dict[str, Any]:
        """Return the mark and the tokens of one piece, and the label of its file."""
        number = int(np.searchsorted(self.ends, index, side="right"))
        label, ids = self.files[number]
        first = (index - int(self.ends[number]) + len(ids) // self.room) * self.room
        if self.seed is not None:
            first = min(first + phase(self.seed, epoch, self.room), len(ids) - self.room)
        tokens = np.concatenate([[self.begin], ids[first : first + self.room]])
        return {"tokens": tokens.astype(np.int64), "label": label}


def load_snippets(config: DataConfig, seed: int, make_tokenizer: TokenizerMaker) -> Data:
    """Return snippets of the standard library, labelled by the package that they are from.

    Every fifth file of a package, or its last one of fewer, is kept for evaluation, so that no
    snippet has neighbours there. Each epoch cuts the other files at other places. If the config
    asks for it, files of no such package are trained on too, without a label.
    """
    files, others = _by_package()
    tokenizer = make_tokenizer(
        config.tokenizer,
        (part for group in files.values() for part in pieces(group)),
        config.vocabulary,
    )
    begin, room = tokenizer.special["begin"], config.length - 1
    if room < 1:
        raise DataError("data.length of a snippet is at least 2: a mark, and a token of code")
    splits: tuple[list[tuple[int, np.ndarray]], list[tuple[int, np.ndarray]]] = ([], [])
    for label, name in enumerate(PACKAGES):
        for number, file in enumerate(files[name]):
            kept = number % 5 == 4 or number == len(files[name]) - 1 < 4
            splits[kept].append((label, _ids(file, tokenizer)))
    if config.unlabelled:
        splits[0].extend((IGNORED, _ids(file, tokenizer)) for file in others)
    train, valid = Snippets(splits[0], room, begin, seed), Snippets(splits[1], room, begin)
    if not (len(train) and len(valid)):
        raise DataError("the packages of Python's own library have too few files for snippets")
    facts = Facts(tokenizer.size, config.length, classes=len(PACKAGES), tokenizer=tokenizer)
    return Data(train, valid, facts)


def _by_package() -> tuple[dict[str, list[Path]], list[Path]]:
    """Return the files of each package, and those of none of them."""
    files: dict[str, list[Path]] = {name: [] for name in PACKAGES}
    others = []
    for file in stdlib_files():
        package = next((name for name in PACKAGES if name in file.parts[-3:-1]), None)
        (others if package is None else files[package]).append(file)
    return files, others


def _ids(file: Path, tokenizer: Tokenizer) -> np.ndarray:
    return np.concatenate([tokenizer.encode(part) for part in pieces([file])] or [[]])
