"""Text in, text out: a folder's model with its tokenizer, or with bytes where it has none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from querykey.errors import QuerykeyError, WrongTypeError
from querykey.models.decoding.generate import check_decodes, special_tokens, stream
from querykey.models.folders.families.family import FolderError
from querykey.models.folders.load import load
from querykey.models.tokenizers import BYTES, ByteTokenizer, Codec, read_codec


@dataclass(frozen=True)
class Speaker:
    """A model that continues text: it holds the model and the codec of its texts."""

    model: nn.Module
    codec: Codec

    def __post_init__(self):
        if not isinstance(self.model, nn.Module):
            raise WrongTypeError(f"a speaker has a model; got {type(self.model).__name__}")
        if not (hasattr(self.codec, "encode") and hasattr(self.codec, "decode")):
            name = type(self.codec).__name__
            raise WrongTypeError(f"a speaker has a codec, with `encode` and `decode`; got {name}")

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
                    f"{folder}: there is no tokenizer.json to read a prompt with, and a vocabulary "
                    f"of {vocabulary} is too small for the {BYTES} bytes; such a model takes ids, "
                    "with `querykey.generate`"
                )
            return cls(model, ByteTokenizer())
        codec = read_codec(file)
        if codec.size > vocabulary:
            raise FolderError(
                f"{file}: it has {codec.size} tokens, and the vocabulary of config.json has "
                f"{vocabulary}"
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
        ids = torch.from_numpy(self.codec.encode(prompt).astype(np.int64))[None]
        if not ids.numel():
            raise QuerykeyError("a prompt has at least one token")
        new: list[int] = []
        shown = ""
        for token in stream(
            self.model, ids, max_new_tokens=tokens, temperature=temperature,
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
