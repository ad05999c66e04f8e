"""Text as a stream of tokens: Python's own library, or any files.

Tokens lie in a file that is mapped into memory, so that a text may be larger than memory.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from querykey.train.config import DataConfig
from querykey.train.data.find import find_folder
from querykey.train.data.source import Data, DataError, Facts
from querykey.train.data.tokenizers import Tokenizer, TokenizerMaker
from querykey.train.order import sample_generator

VALID = 0.1  # the share of a text, its end, that is kept for evaluation
# What tells that a file is no UTF-8: a zero byte, or a byte that could not be decoded.
NO_TEXT = re.compile("[\0\udc80-\udcff]")


@dataclass(frozen=True)
class Windows:
    """Pieces of `length + 1` tokens, side by side; where the first one begins differs by epoch."""

    tokens: np.ndarray
    length: int
    seed: int | None = None  # None: the first piece begins at the first token, in every epoch
    starts: np.ndarray | None = None  # where documents begin, if samples are to tell them apart

    def __len__(self) -> int:
        free = 0 if self.seed is None else self.length - 1
        return max((len(self.tokens) - 1 - free) // self.length, 1)

    def sample(self, index: int, epoch: int = 0) -> dict[str, np.ndarray]:
        """Return the tokens of one piece."""
        first = index * self.length
        if self.seed is not None and len(self.tokens) > 2 * self.length:
            first += phase(self.seed, epoch, self.length)
        sample = {"tokens": np.asarray(self.tokens[first : first + self.length + 1])}
        if self.starts is not None:
            places = np.arange(first, first + len(sample["tokens"]))
            number = np.searchsorted(self.starts, places, side="right")
            sample["documents"] = number - number[0]
        return sample


@lru_cache(maxsize=8)
def phase(seed: int, epoch: int, length: int) -> int:
    """Return where the first piece of a text begins in an epoch, below `length`."""
    return int(sample_generator(seed, "phase", epoch).integers(length))


def load_text(config: DataConfig, folder: Path, seed: int, make_tokenizer: TokenizerMaker) -> Data:
    """Return the windows of a text; its tokens are kept in `folder`.

    Where the config tells documents apart, a document is a file.
    """
    files = text_files(config, folder.parent)
    tokenizer = make_tokenizer(config.tokenizer, pieces(files), config.vocabulary)
    tokens, starts = token_file(files, tokenizer, folder / "tokens.bin")
    split = int(len(tokens) * (1 - VALID))
    if min(split, len(tokens) - split) < config.length + 1:
        raise DataError(
            f"the text has {len(tokens)} tokens, too few to train on pieces of {config.length} and "
            f"to evaluate on a tenth; give more text, or a smaller data.length"
        )
    facts = Facts(tokenizer.size, config.length, tokenizer=tokenizer)
    own = (starts, starts - split) if config.documents else (None, None)
    train = Windows(tokens[:split], config.length, seed, own[0])
    return Data(train, Windows(tokens[split:], config.length, None, own[1]), facts)


def text_files(config: DataConfig, run: Path) -> list[Path]:
    """Return the files of a text: the one named, those of a folder, or Python's own library.

    Of a folder hidden files are left out, and what the run itself writes, if its own folder lies
    there.
    """
    if config.name != "text" and not config.path:
        return stdlib_files()
    path = Path(config.path).expanduser() if config.path else find_folder("", "text", "a text")
    files = [path]
    if path.is_dir():
        inside = sorted(file for file in path.rglob("*") if file.is_file())
        seen = [file for file in inside if not _is_hidden(file.relative_to(path))]
        files = [file for file in seen if run.resolve() not in file.resolve().parents]
    if not files or not files[0].exists():
        raise DataError(f"there is no text at `{path}`")
    return files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def stdlib_files() -> list[Path]:
    """Return the source files of Python's standard library, tests left out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "test", "tests", "idle_test", "__pycache__", "dist-packages"}
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in left_out)
        files += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    if not files:
        raise DataError(f"Python's own library at `{root}` has no source files; give data.path")
    return files


def token_file(
    files: list[Path], tokenizer: Tokenizer, path: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Write the tokens of all files one after the other, and map that file into memory.

    Where each file begins is returned with it. A file of tokens that was made from the same files,
    by their names, sizes and times of change, and by the same tokenizer, is used again.
    """
    dtype = np.uint8 if tokenizer.size <= 1 << 8 else np.uint16
    dtype = dtype if tokenizer.size <= 1 << 16 else np.uint32
    origin, made_from = path.with_suffix(".origin"), _origin(files, tokenizer)
    beginnings = path.with_suffix(".starts")
    path.parent.mkdir(parents=True, exist_ok=True)
    there = all(file.exists() for file in (origin, beginnings, path))
    if not (there and origin.read_text() == made_from):
        origin.unlink(missing_ok=True)
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        starts, doubtful = [], []
        with aside.open("wb") as stream:
            for file in files:
                starts.append(stream.tell() // np.dtype(dtype).itemsize)
                for part in pieces([file]):
                    stream.write(tokenizer.encode(part).astype(dtype).tobytes())
                    if NO_TEXT.search(part) and file not in doubtful:
                        doubtful.append(file)
        beginnings.write_bytes(np.asarray(starts, np.int64).tobytes())
        os.replace(aside, path)
        origin.write_text(made_from)
        if doubtful:
            warnings.warn(
                f"{counted_files(doubtful)} that no UTF-8 text has; the model learns them as they "
                f"are, so keep files that are not to be learned out of data.path",
                stacklevel=2,
            )
    if not path.stat().st_size:
        raise DataError("the text is empty")
    starts = np.frombuffer(beginnings.read_bytes(), np.int64)
    return np.memmap(path, dtype=dtype, mode="r"), starts


def counted_files(files: list[Path]) -> str:
    """Say that some files hold bytes: the first one by its name, the others by their number."""
    others = len(files) - 1
    if not others:
        return f"`{files[0]}` holds bytes"
    return f"`{files[0]}` and {others} other file{'s' * (others > 1)} hold bytes"


def _origin(files: list[Path], tokenizer: Tokenizer) -> str:
    """Return a hash of what a file of tokens is made from; no file is read for it."""
    digest = hashlib.sha256(tokenizer.as_json().encode())
    for file in files:
        facts = file.stat()
        digest.update(f"{file.resolve()} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def pieces(files: list[Path], letters: int = 1 << 24) -> Iterator[str]:
    """Yield the text of files in parts that fit in memory; a part ends with a line where it can.

    Where a file has no lines, a part has at most twice as many letters.
    """
    for file in files:
        try:
            with file.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
                while part := stream.read(letters):
                    yield part + (stream.readline(letters) if len(part) == letters else "")
        except OSError as error:
            raise DataError(f"`{file}` cannot be read: {error.strerror}") from error
