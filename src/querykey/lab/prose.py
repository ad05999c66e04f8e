"""Real text that every machine has: the English sentences in the docstrings of Python's library."""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Literal
from zlib import crc32

from querykey.lab.language import SentencePair, halves

LENGTHS = range(4, 17)  # words of a sentence that is taken
LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3"}


def docstrings(text: str) -> Iterator[str]:
    """Yield the docstrings of Python source; none of what cannot be parsed."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of English text: its words in small letters, nothing else."""
    for part in re.split(r"(?<=[.!?])\s+|\n\s*\n", text):
        words = re.findall(r"[a-z']+", part.lower())
        if len(words) in LENGTHS:
            yield " ".join(words)


@cache
def library() -> tuple[list[list[str]], list[list[str]]]:
    """Return docstrings as lists of sentences: those to train with, and one in six held out.

    All docstrings of a file are on the same side.
    """
    sides: tuple[list[list[str]], list[list[str]]] = ([], [])
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        if LEFT_OUT.isdisjoint(file.relative_to(root).parts):
            text = file.read_text(encoding="utf-8", errors="replace")
            held = crc32(file.relative_to(root).as_posix().encode()) % 6 == 0
            sides[held].extend(found for d in docstrings(text) if (found := [*sentences(d)]))
    return sides


@cache
def edition() -> str:
    """Return a hash of the sentences, because other versions of Python have others."""
    return sha256(repr(library()).encode()).hexdigest()[:16]


def adjacent(random: Random, texts: list[list[str]]) -> SentencePair:
    """Return two sentences that follow each other in a docstring, or are of different ones."""
    text = random.choice(texts)
    while len(text) < 2:
        text = random.choice(texts)
    place = random.randrange(len(text) - 1)
    if random.randrange(2):
        return SentencePair(text[place], text[place + 1], 1)
    return SentencePair(text[place], random.choice(random.choice(texts)), 0)


def inverted(random: Random, texts: list[list[str]]) -> SentencePair:
    """Return a sentence and its two halves exchanged, or its words in no order."""
    first = random.choice(random.choice(texts))
    words = first.split()
    label, half = random.randrange(2), len(words) // 2
    second = words[half:] + words[:half] if label else random.sample(words, len(words))
    return SentencePair(first, " ".join(second), label)


MAKERS = {"adjacent": adjacent, "inverted": inverted}


def prose_pairs(
    task: Literal["adjacent", "inverted"], seed: int, count: int, held: bool
) -> list[SentencePair]:
    """Return pairs for training, or different ones, half of them right, of files held out."""
    random, texts = Random(f"{task} {seed} {held}"), library()[held]
    drawn = (MAKERS[task](random, texts) for _ in range(20 * count if held else count))
    return halves(drawn, count) if held else [*drawn]
