"""Text to token ids and back, as the tokenizer.json of a folder says.

Bytes and characters are read and written without a package; any other tokenizer.json is read by
the package `tokenizers`. `transformers` reads all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from querykey.errors import QuerykeyError, WrongTypeError
from querykey.models.folders.families.family import FolderError
from querykey.words import check_fields, whole

BYTES = 256


class TokenizerError(QuerykeyError):
    """Says what a tokenizer lacks, and what to do."""


class Codec(Protocol):
    """An object that turns text into token ids and back."""

    @property
    def size(self) -> int:
        """Count the ids, special tokens included."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """Return the token ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; special tokens are left out."""
        ...


@dataclass(frozen=True)
class ByteTokenizer:
    """Every byte of a text's UTF-8 is a token; special tokens have the ids from 256 on."""

    names: tuple[str, ...] = ()

    def __post_init__(self):
        check_fields(self)

    @property
    def size(self) -> int:
        """Count 256 bytes and the special tokens."""
        return BYTES + len(self.names)

    @property
    def special(self) -> dict[str, int]:
        """The ids of special tokens by name."""
        return {name: BYTES + i for i, name in enumerate(self.names)}

    def encode(self, text: str) -> np.ndarray:
        """Return the bytes of a text."""
        check_text(text)
        return np.frombuffer(text.encode("utf-8", "surrogateescape"), dtype=np.uint8)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; bytes that are no UTF-8 are shown as such."""
        return bytes(i for i in check_ids(ids) if i < BYTES).decode("utf-8", "replace")

    def as_json(self) -> str:
        """Return the tokenizer.json of this tokenizer."""
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        reading = level | {"use_regex": False}
        return tokenizer_json(_byte_model(), reading, level | {"use_regex": True}, self.special)


@dataclass(frozen=True)
class CharacterTokenizer:
    """Every character that occurs in the text it was made from is a token, in sorted order."""

    letters: str
    names: tuple[str, ...] = ()

    def __post_init__(self):
        check_fields(self)

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
        check_text(text)
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
        """Return the text of ids; bytes that are no UTF-8 are shown as such."""
        text = "".join(self.letters[i] for i in check_ids(ids) if i < len(self.letters))
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def as_json(self) -> str:
        """Return the tokenizer.json of this tokenizer."""
        vocabulary = {letter: i for i, letter in enumerate(self.letters)}
        # `tokenizers` asks for the name of an unknown token; there is none, so it refuses too.
        model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": special_text("unknown")}
        return tokenizer_json(model, EACH_CHARACTER, {"type": "Fuse"}, self.special)


class TokenizerFile:
    """The codec of any tokenizer.json, read by the package `tokenizers`."""

    def __init__(self, file: Path):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise FolderError(
                f"{file}: reading it takes the package tokenizers, which is not installed"
            ) from None
        try:
            self.tokenizer = Tokenizer.from_file(str(file))
            # Both are for batches of texts; one prompt is read as it is.
            self.tokenizer.no_padding()
            self.tokenizer.no_truncation()
        except Exception as error:  # the package raises bare Exceptions
            raise FolderError(f"{file}: this is no tokenizer ({error})") from None

    @property
    def size(self) -> int:
        """Count the ids, special tokens included."""
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str) -> np.ndarray:
        """Return the ids, with the special tokens that the tokenizer puts around a text."""
        check_text(text)
        text.encode()  # raises one clear error for what is no valid Unicode
        return np.asarray(self.tokenizer.encode(text).ids, dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids without special tokens."""
        return self.tokenizer.decode(check_ids(ids))


def check_text(text: Any) -> None:
    """Refuse to read what is no text."""
    if not isinstance(text, str):
        raise WrongTypeError(f"what is encoded is a text; got {type(text).__name__}")


def check_ids(ids: Any) -> list[int]:
    """Return token ids as whole numbers, or refuse what is no sequence of them."""
    if isinstance(ids, str | bytes | dict) or not isinstance(ids, Iterable):
        raise WrongTypeError(f"token ids are a sequence of whole numbers; got {ids!r}")
    return [whole("a token id", number, least=0) for number in ids]


def read_codec(file: Path) -> Codec:
    """Return the codec of a tokenizer.json; ours of bytes and characters need no package."""
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return TokenizerFile(file)  # which says what is wrong with it
    return plain_tokenizer(settings) or TokenizerFile(file)


def plain_tokenizer(settings: Any) -> ByteTokenizer | CharacterTokenizer | None:
    """Return the tokenizer of bytes or characters that a tokenizer.json describes, if it does."""
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        return None
    model, names = settings["model"], special_names(settings)
    if model == _byte_model():
        return ByteTokenizer(names)
    if model.get("type") == "WordLevel" and settings.get("pre_tokenizer") == EACH_CHARACTER:
        letters = sorted(model["vocab"], key=lambda letter: model["vocab"][letter])
        if letters == sorted(letters) and all(len(letter) == 1 for letter in letters):
            return CharacterTokenizer("".join(letters), names)
    return None


EACH_CHARACTER = {
    "type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False,
}  # fmt: skip


def special_text(name: str) -> str:
    """Return how a special token is written where a tokenizer.json wants a text for it."""
    return f"<|{name}|>"


def special_names(settings: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of a tokenizer.json's special tokens, in the order of their ids."""
    tokens = sorted(settings.get("added_tokens") or [], key=lambda token: token["id"])
    return tuple(token["content"].removeprefix("<|").removesuffix("|>") for token in tokens)


def tokenizer_json(model: Any, reading: Any, decoder: Any, special: dict[str, int]) -> str:
    """Return a tokenizer.json of these parts, in the format of the package `tokenizers`."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokens = [
        {"id": number, "content": special_text(name), **plain, "special": True}
        for name, number in special.items()
    ]
    parts = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens}
    parts |= {"normalizer": None, "pre_tokenizer": reading, "post_processor": None}
    return json.dumps(parts | {"decoder": decoder, "model": model})


def _byte_model() -> dict[str, Any]:
    """Return the BPE model whose tokens are the bytes alone, each with its value as id."""
    vocabulary = {letter: byte for byte, letter in enumerate(_byte_letters())}
    nothing = dict.fromkeys(
        ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    )
    flags = dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False)
    return {"type": "BPE", **nothing, **flags, "vocab": vocabulary, "merges": []}


def _byte_letters() -> list[str]:
    """Return the letter that stands for each byte in byte-level files (Radford et al., 2019).

    Printable bytes of Latin-1 stand for themselves, the others for the letters from U+0100 on.
    """
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(others)) for byte in range(BYTES)]
