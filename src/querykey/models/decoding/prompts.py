"""Text in, text out: a folder's model with its tokenizer, or with bytes where it has none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from querykey.models.decoding.generate import check_decodes, special_tokens, stream
from querykey.models.folders.families.family import FolderError
from querykey.models.folders.load import load

BYTES = 256


class Codec(Protocol):
    """An object that turns text into token ids and back."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids."""
        ...


class Bytes:
    """The codec without a tokenizer: ids are UTF-8 bytes, and ids above 255 are left out."""

    def encode(self, text: str) -> list[int]:
        """Return the UTF-8 bytes of a text."""
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        """Return the text, with a replacement character for bytes that are no UTF-8."""
        return bytes(token for token in ids if token < BYTES).decode(errors="replace")


class Tokens:
    """The codec of a folder's tokenizer.json."""

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

    def encode(self, text: str) -> list[int]:
        """Return the ids, with the special tokens that the tokenizer puts around a text."""
        text.encode()  # raises one clear error for what is no valid Unicode
        return self.tokenizer.encode(text).ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of the ids without special tokens."""
        return self.tokenizer.decode(ids)


@dataclass(frozen=True)
class Speaker:
    """A model that continues text: it holds the model and the codec of its texts."""

    model: nn.Module
    codec: Codec

    @classmethod
    def of(cls, folder: str | Path) -> Speaker:
        """Load a folder, or raise the FolderError that says why it cannot continue text."""
        folder = Path(folder)
        model = load(folder)
        try:
            check_decodes(model)
        except (TypeError, ValueError) as error:
            raise FolderError(f"{folder}: {error}") from None
        config: Any = model.config
        vocabulary = getattr(config, "decoder", config).embedding.vocabulary
        file = folder / "tokenizer.json"
        if not file.is_file():
            if vocabulary < BYTES:
                raise FolderError(
                    f"{folder}: there is no tokenizer.json, and a vocabulary of {vocabulary} is "
                    f"too small for the {BYTES} bytes"
                )
            return cls(model, Bytes())
        codec = Tokens(file)
        size = codec.tokenizer.get_vocab_size()
        if size > vocabulary:
            raise FolderError(
                f"{file}: it has {size} tokens, and the vocabulary of config.json has {vocabulary}"
            )
        return cls(model, codec)

    def say(
        self,
        prompt: str,
        tokens: int = 100,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> Iterator[str]:
        """Yield the continuation in pieces, as soon as a piece is made of whole characters."""
        ids = self.codec.encode(prompt)
        if not ids:
            raise ValueError("a prompt has at least one token")
        new: list[int] = []
        shown = ""
        for token in stream(
            self.model, torch.tensor([ids]), max_new_tokens=tokens, temperature=temperature,
            top_k=top_k, top_p=top_p, seed=seed,
        ):  # fmt: skip
            if int(token) in special_tokens(self.model).eos:
                break
            new.append(int(token))
            text = self.codec.decode(new)
            # A character of several tokens decodes to a replacement character until it is whole.
            if text.startswith(shown) and not text.endswith("\N{REPLACEMENT CHARACTER}"):
                yield text[len(shown) :]
                shown = text
        rest = self.codec.decode(new)
        if len(rest) > len(shown):
            yield rest[len(shown) :]
