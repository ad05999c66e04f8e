"""Python sources as bytes to train on: of the standard library, or of all installed packages."""

from __future__ import annotations

import sysconfig
import zlib
from pathlib import Path
from typing import NamedTuple

import torch

HELD_OUT = 20  # one package in so many is kept for validation


class Text(NamedTuple):
    """Bytes to train on, and bytes of other packages to validate on, if there are any."""

    training: torch.Tensor
    validation: torch.Tensor | None


def standard_library(most: int) -> Text:
    """Return up to so many bytes of Python's standard library, file after file by name."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [
        file
        for file in sorted(folder.rglob("*.py"))
        if not {"site-packages", "test"} & set(file.relative_to(folder).parts)
    ]
    return Text(joined(files, most), None)


def packages(most: int, folders: list[Path] | None = None) -> Text:
    """Return up to so many bytes of all installed packages and the standard library.

    A package is trained on or validated on, whole, whichever the checksum of its name says; files
    follow in the order of the checksums of their paths, so that packages are mixed.
    """
    paths = sysconfig.get_paths()
    places = folders or [Path(paths[kind]) for kind in ("purelib", "platlib", "stdlib")]
    sides: tuple[dict, dict] = {}, {}  # by checksum, then path: to train on, to validate on
    for folder in dict.fromkeys(places):
        for file in folder.rglob("*.py"):
            inner = file.relative_to(folder).parts
            if "site-packages" not in inner and "dist-packages" not in inner:
                held = zlib.crc32(Path(inner[0]).stem.encode()) % HELD_OUT == 0
                sides[held][zlib.crc32("/".join(inner).encode()), str(file)] = file
    training, validation = ([files[key] for key in sorted(files)] for files in sides)
    return Text(joined(training, most), joined(validation, max(most // HELD_OUT, 1)))


def joined(files: list[Path], most: int) -> torch.Tensor:
    """Return up to so many bytes of the files, one after the other, as token ids."""
    found, size = [], 0
    for file in files:
        if size >= most:
            break
        found.append(file.read_bytes())
        size += len(found[-1])
    content = bytearray(b"".join(found)[:most])
    return torch.frombuffer(content, dtype=torch.uint8).clone()
