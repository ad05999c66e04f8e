"""Checkpoints that are whole or not there: written aside, hashed, then renamed.

    save(folder, step, tensors, record)          # on every rank
    checkpoint = latest(folder)                  # the newest one whose hashes are right
    record = load(checkpoint, tensors)           # into the tensors, sharded over ranks or not

A checkpoint is a folder of safetensors files, written by torch.distributed.checkpoint so that any
number of ranks can read what any other number wrote, and a manifest in JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from querykey.errors import QuerykeyError
from querykey.words import last_line

MANIFEST, SCHEMA = "manifest.json", 1
Tensors = dict[str, Tensor]


class CheckpointError(QuerykeyError):
    """Says what is wrong with a checkpoint, and where it lies."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are all there, with the hashes that the manifest names."""

    folder: Path
    step: int
    record: dict[str, Any]


def save(folder: Path, step: int, tensors: Tensors, record: dict[str, Any], keep: int = 2) -> None:
    """Write a checkpoint of one step, then remove all but this and the `keep - 1` before it.

    Every rank calls this with its tensors. A process that dies on the way leaves the older
    checkpoints as they were.
    """
    final, partial = folder / f"step-{step:08d}", folder / f"partial-{step:08d}"
    if _is_first():
        shutil.rmtree(partial, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    _wait()
    try:
        with _quiet():
            writer = HuggingFaceStorageWriter(str(partial), save_distributed=True)
            plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_tensors(plain, storage_writer=writer, no_dist=not dist.is_initialized())
        _wait()
        if _is_first():
            _finish(partial, final, step, record)
            _remove_others(folder, final, keep)
    except (OSError, CheckpointException) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written to `{folder}`: {_reason(error)}"
        ) from error
    _wait()


def _remove_others(folder: Path, newest: Path, keep: int) -> None:
    """Remove older checkpoints, and later ones: a run that came back before them found them bad."""
    steps = _steps(folder)
    kept = [path for path in steps if path.name <= newest.name][:keep]
    for path in steps:
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _finish(partial: Path, final: Path, step: int, record: dict[str, Any]) -> None:
    """Write the manifest of files that are all there, and give their folder its name."""
    names = sorted(file.name for file in partial.iterdir())
    hashes = {name: _synced_hash(partial / name) for name in names}
    manifest = {"schema": SCHEMA, "step": step, "files": hashes, "record": record}
    _write_synced(partial / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    _sync_folder(partial)
    shutil.rmtree(final, ignore_errors=True)
    os.rename(partial, final)
    _sync_folder(final.parent)


def _reason(error: BaseException) -> str:
    """Return the system's own words for what went wrong, however deep they lie."""
    inner: Any = error
    while isinstance(inner, CheckpointException) and inner.failures:
        inner = next(iter(inner.failures.values()))[0]
    return getattr(inner, "strerror", None) or last_line(inner, 200)


def latest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that is whole; a warning names each one that is not."""
    for candidate in _steps(folder):
        try:
            return verified(candidate)
        except CheckpointError as error:
            warnings.warn(f"{error}; an older checkpoint is taken", stacklevel=2)
    return None


def verified(folder: Path) -> Checkpoint:
    """Return the checkpoint in a folder, or raise the error that says which file is not right."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        schema, step = manifest["schema"], manifest["step"]
        files, record = dict(manifest["files"]), dict(manifest["record"])
        if any(Path(name).name != name for name in files) or not isinstance(step, int):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"checkpoint `{folder}` has no readable {MANIFEST}") from error
    if schema != SCHEMA:
        raise CheckpointError(
            f"checkpoint `{folder}` has schema {schema}, and this version reads {SCHEMA}"
        )
    for name, expected in files.items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"checkpoint `{folder}` lacks its file {name}")
        if _hash(file) != expected:
            raise CheckpointError(f"checkpoint `{folder}` has a damaged file, {name}")
    return Checkpoint(folder, step, record)


def load(checkpoint: Checkpoint, tensors: Tensors, optional: Tensors) -> None:
    """Read a checkpoint into tensors of the same names, each rank its own part of them.

    Of the optional ones those are read that it has, in the same size.
    """
    reader = HuggingFaceStorageReader(str(checkpoint.folder))
    try:
        stored = reader.read_metadata().state_dict_metadata
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(
            f"checkpoint `{checkpoint.folder}` holds no tensors: {last_line(error, 200)}"
        ) from error
    for name, tensor in tensors.items():
        if name not in stored:
            raise CheckpointError(f"checkpoint `{checkpoint.folder}` has no tensor `{name}`")
        size = getattr(stored[name], "size", tensor.shape)
        if tuple(size) != tuple(tensor.shape):
            raise CheckpointError(
                f"checkpoint `{checkpoint.folder}`: `{name}` is {tuple(size)} there and "
                f"{tuple(tensor.shape)} in the model"
            )
    tensors = tensors | {
        name: tensor
        for name, tensor in optional.items()
        if name in stored and getattr(stored[name], "size", None) == tensor.shape
    }
    with _quiet(), torch.no_grad():
        load_tensors(tensors, storage_reader=reader, no_dist=not dist.is_initialized())


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; a tensor that has several names is there once."""
    tensors: dict[str, Tensor] = {}
    held: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in held:
            held.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


class TemporaryBuffers:
    """The buffers that a model leaves out of its state dict, as a running mean may be.

    A checkpoint has those that training has changed, not the tables that a model makes for itself.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.first = {name: buffer.cpu().clone() for name, buffer in self.all().items()}

    def all(self) -> Tensors:
        """Return all of them, by the names that they have in a checkpoint."""
        kept = self.model.state_dict(keep_vars=True)
        buffers = {
            f"buffer.{n}": b.detach() for n, b in self.model.named_buffers() if n not in kept
        }
        return {name: buffer for name, buffer in buffers.items() if not buffer.is_complex()}

    def changed(self) -> Tensors:
        """Return those that are no longer what they were at first."""
        return {
            name: buffer
            for name, buffer in self.all().items()
            if name not in self.first or not torch.equal(buffer.cpu(), self.first[name])
        }


def _steps(folder: Path) -> list[Path]:
    """Return the folders of finished checkpoints, the newest first."""
    return sorted(folder.glob("step-*"), key=lambda path: path.name, reverse=True)


def _is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _wait() -> None:
    if dist.is_initialized():
        dist.barrier()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the remark that a single process saves alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _synced_hash(file: Path) -> str:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write_synced(file: Path, text: str) -> None:
    with file.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
