"""How text becomes numbers: bytes, characters, or BPE that is trained here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from querykey.models import (
    ByteTokenizer,
    CharacterTokenizer,
    Codec,
    TokenizerError,
    plain_tokenizer,
    special_names,
    tokenizer_json,
)
from querykey.words import last_line

# In this order they follow the tokens of the text: those that the data or the objective ask for.
SPECIAL = ("mask", "begin", "separate", "end")


class Tokenizer(Codec, Protocol):
    """Text to ids and back; special tokens have the last ids."""

    @property
    def special(self) -> dict[str, int]:
        """The ids of special tokens by name."""
        ...

    def as_json(self) -> str:
        """Return the tokenizer.json from which `load_tokenizer` makes it again."""
        ...


# The kind of a tokenizer, texts to make it from, and the size of a BPE vocabulary.
TokenizerMaker = Callable[[str, Iterable[str], int], Tokenizer]


@dataclass(frozen=True)
class BPETokenizer:
    """Byte-pair encoding by the `tokenizers` library."""

    inner: Any  # tokenizers.Tokenizer
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Count the tokens of the vocabulary and the special tokens."""
        return self.inner.get_vocab_size() + len(self.names)

    @property
    def special(self) -> dict[str, int]:
        """The ids of special tokens by name."""
        first = self.inner.get_vocab_size()
        return {name: first + i for i, name in enumerate(self.names)}

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text."""
        return np.asarray(self.inner.encode(_valid(text)).ids, dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        size = self.inner.get_vocab_size()
        return self.inner.decode([int(i) for i in ids if int(i) < size])

    def as_json(self) -> str:
        """Return the tokenizer.json of this tokenizer."""
        inner = json.loads(self.inner.to_str())
        return tokenizer_json(
            inner["model"], inner["pre_tokenizer"], inner["decoder"], self.special
        )


def make_tokenizer(
    kind: str, texts: Iterable[str], vocabulary: int, special: tuple[str, ...] = ()
) -> Tokenizer:
    """Return a tokenizer by name; characters and BPE are made from the texts."""
    if kind == "bytes":
        return ByteTokenizer(special)
    if kind == "characters":
        letters: set[str] = set()
        for text in texts:
            letters.update(text)
        return CharacterTokenizer("".join(sorted(letters)), special)
    alphabet = 256  # every byte is a token, before any pair is
    if vocabulary < alphabet:
        raise TokenizerError(
            f"data.vocabulary is at least {alphabet} for the tokenizer `bpe`, for every byte is a "
            f"token of its own; got {vocabulary}"
        )
    tokenizers = _tokenizers()
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(map(_valid, texts), trainer)
    return BPETokenizer(inner, special)


def _valid(text: str) -> str:
    """Return the text with U+FFFD for bytes that are no UTF-8: `tokenizers` takes no others."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def load_tokenizer(text: str) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json that `as_json` wrote."""
    try:
        settings = json.loads(text)
        plain = plain_tokenizer(settings)
        if plain is not None:
            return plain
        # Special tokens are never read in a text, so the inner tokenizer does not know them.
        inner = _tokenizers().Tokenizer.from_str(json.dumps(settings | {"added_tokens": []}))
        return BPETokenizer(inner, special_names(settings))
    except TokenizerError:
        raise
    except Exception as error:  # the package `tokenizers` raises bare Exceptions
        raise TokenizerError(f"this is no tokenizer.json: {last_line(error)}") from error


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise TokenizerError(
            "the tokenizer `bpe` needs the package `tokenizers`; install querykey[text], "
            "or take `bytes` or `characters`"
        ) from error
    return tokenizers
