"""How text becomes numbers: bytes, characters, or BPE that is trained here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from querykey.errors import QuerykeyError

# In this order they follow the tokens of the text: those that the data or the objective ask for.
SPECIAL = ("mask", "begin", "separate", "end")


class TokenizerError(QuerykeyError):
    """Says what a tokenizer lacks, and what to do."""


class Tokenizer(Protocol):
    """Text to ids and back; special tokens have the last ids."""

    @property
    def size(self) -> int:
        """Count the ids, special tokens included."""
        ...

    @property
    def special(self) -> dict[str, int]:
        """The ids of special tokens by name."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; special tokens are left out."""
        ...

    def as_json(self) -> str:
        """Return the tokenizer as a text from which `load_tokenizer` makes it again."""
        ...


@dataclass(frozen=True)
class ByteTokenizer:
    """Every byte of a text's UTF-8 is a token."""

    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Count 256 bytes and the special tokens."""
        return 256 + len(self.names)

    @property
    def special(self) -> dict[str, int]:
        """The ids of special tokens by name."""
        return {name: 256 + i for i, name in enumerate(self.names)}

    def encode(self, text: str) -> np.ndarray:
        """Return the bytes of a text."""
        return np.frombuffer(text.encode("utf-8", "surrogateescape"), dtype=np.uint8)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; bytes that are no UTF-8 are shown as such."""
        return bytes(int(i) for i in ids if int(i) < 256).decode("utf-8", "replace")

    def as_json(self) -> str:
        """Return the tokenizer as JSON."""
        return json.dumps({"tokenizer": "bytes", "special": list(self.names)})


@dataclass(frozen=True)
class CharacterTokenizer:
    """Every character that occurs in the text it was made from is a token."""

    letters: str
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Count the letters and the special tokens."""
        return len(self.letters) + len(self.names)

    @property
    def special(self) -> dict[str, int]:
        """The ids of special tokens by name."""
        return {name: len(self.letters) + i for i, name in enumerate(self.names)}

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text; a character that was not seen before is refused."""
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        known = np.frombuffer(self.letters.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        ids = np.minimum(np.searchsorted(known, points), max(len(known) - 1, 0))
        strange = known[ids] != points
        if strange.any():
            letter = chr(points[np.argmax(strange)])
            raise TokenizerError(
                f"the character {letter!r} is not among the {len(known)} that this tokenizer "
                f"knows; take the tokenizer `bytes`, which knows all"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return "".join(self.letters[int(i)] for i in ids if int(i) < len(self.letters))

    def as_json(self) -> str:
        """Return the tokenizer as JSON."""
        return json.dumps(
            {"tokenizer": "characters", "letters": self.letters, "special": list(self.names)}
        )


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
        """Return the tokenizer as JSON."""
        inner = json.loads(self.inner.to_str())
        return json.dumps({"tokenizer": "bpe", "inner": inner, "special": list(self.names)})


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
    """Return the tokenizer that `as_json` wrote."""
    value = json.loads(text)
    names = tuple(value["special"])
    if value["tokenizer"] == "bytes":
        return ByteTokenizer(names)
    if value["tokenizer"] == "characters":
        return CharacterTokenizer(value["letters"], names)
    return BPETokenizer(_tokenizers().Tokenizer.from_str(json.dumps(value["inner"])), names)


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise TokenizerError(
            "the tokenizer `bpe` needs the package `tokenizers`; install querykey[text], "
            "or take `bytes` or `characters`"
        ) from error
    return tokenizers
