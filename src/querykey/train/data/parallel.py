"""Parallel text: a sentence per line in two files, one for each language, packed by gzip or not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

from querykey.train.config import DataConfig
from querykey.train.data.find import find_folder
from querykey.train.data.source import Data, DataError, Facts, Listed
from querykey.train.data.tokenizers import Tokenizer, TokenizerMaker


def load_parallel(config: DataConfig, make_tokenizer: TokenizerMaker) -> Data:
    """Return pairs of `train.SOURCE`, `train.TARGET` and `val.SOURCE`, `val.TARGET` in a folder.

    One tokenizer serves both languages; it is made from the training text.
    """
    folder = find_folder(config.path, "mt", f"train.{config.source} and train.{config.target}")
    lines = {
        (split, language): read_lines(folder, f"{split}.{language}")
        for split in ("train", "val")
        for language in (config.source, config.target)
    }
    texts = (t for (split, _), part in lines.items() if split == "train" for t in part)
    tokenizer = make_tokenizer(config.tokenizer, texts, config.vocabulary)
    train, valid = (
        Listed(_pairs(lines[split, config.source], lines[split, config.target], tokenizer, config))
        for split in ("train", "val")
    )
    return Data(train, valid, Facts(tokenizer.size, config.length, tokenizer=tokenizer))


def read_lines(folder: Path, name: str) -> list[str]:
    """Return the lines of a file, or of its packed form."""
    file = next((f for f in (folder / name, folder / f"{name}.gz") if f.exists()), None)
    if file is None:
        raise DataError(f"`{folder}` lacks {name}, and {name}.gz")
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        lines = content.decode("utf-8").split("\n")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"`{file}` cannot be read: {error}") from error
    # Not splitlines(): it cuts at characters such as U+2028 too, which one language may have alone.
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def _pairs(
    sources: list[str], targets: list[str], tokenizer: Tokenizer, config: DataConfig
) -> list[dict[str, Any]]:
    if len(sources) != len(targets):
        raise DataError(
            f"{len(sources)} lines of {config.source} cannot be paired with {len(targets)} of "
            f"{config.target}: line i of one is line i of the other"
        )
    room = config.length - 1  # the target gets one more token, its end
    return [
        {"source": tokenizer.encode(a)[: config.length], "target": tokenizer.encode(b)[:room]}
        for a, b in zip(sources, targets, strict=True)
        if a.strip() and b.strip()
    ]
