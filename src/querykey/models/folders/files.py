"""Folders of weights: config.json and safetensors, in one file or in shards. No pickle is opened.

Whatever is wrong with a folder is one FolderError that names the file, and the tensor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from querykey.errors import QuerykeyError, WrongTypeError
from querykey.models.folders.families.family import FolderError, Settings
from querykey.show import WriteError, replacing
from querykey.words import last_line

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Tensors:
    """The tensors of a folder by name: where each is, its shape and dtype; read one at a time."""

    folder: Path
    files: dict[str, Path]
    shapes: dict[str, tuple[int, ...]]

    @property
    def names(self) -> frozenset[str]:
        """The names of all tensors."""
        return frozenset(self.files)

    def read(self, name: str, whole_numbers: bool = False) -> torch.Tensor:
        """Return one tensor, of floats unless whole numbers will do."""
        file = self.files[name]
        try:
            with safe_open(file, "pt") as opened:
                tensor = opened.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise FolderError(f"{file}: tensor `{name}` cannot be read ({error})") from None
        if whole_numbers and tensor.dtype == torch.int64:
            return tensor
        if not tensor.is_floating_point() or tensor.itemsize < 2:
            raise FolderError(
                f"{file}: tensor `{name}` is {tensor.dtype}; weights are floats of 16 bits or more"
            )
        return tensor


def as_folder(folder: Any) -> Path:
    """Return what a user gave as a folder as a path."""
    try:
        return Path(os.fsdecode(folder))
    except TypeError:
        raise WrongTypeError(f"a folder is a path; got {folder!r}") from None


def read_settings(folder: Path) -> Settings:
    """Return the entries of a folder's config.json."""
    file = folder / "config.json"
    try:
        if not folder.is_dir():
            what = "this is a file" if folder.exists() else "there is no such folder"
            raise FolderError(f"{folder}: {what}; weights are loaded from a folder")
    except (OSError, ValueError) as error:  # such as a name that is too long
        if isinstance(error, FolderError):
            raise
        raise FolderError(f"{str(folder)[:60]}: {last_line(error)}") from None
    if not file.is_file():
        raise FolderError(f"{file}: there is no such file; a folder of weights has one")
    return _read_object(file)


def read_generation(folder: Path) -> Settings | None:
    """Return the entries of generation_config.json, None where the folder has no such file."""
    file = folder / "generation_config.json"
    return _read_object(file) if file.is_file() else None


def _read_object(file: Path) -> Settings:
    try:
        content = json.loads(file.read_text(encoding="utf-8"), parse_constant=_no_number)
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(f"{file}: this is no JSON ({error})") from None
    if not isinstance(content, dict):
        raise FolderError(f"{file}: this is no JSON object")
    return content


def _no_number(text: str) -> Any:
    raise QuerykeyError(f"{text} is no number of JSON")


def read_tensors(folder: Path) -> Tensors:
    """Find every tensor of a folder, and open every file once to see that it is whole.

    Where there is one file beside an index of shards, the file counts, as in `transformers`.
    """
    if not (folder / ONE).is_file():
        if (folder / INDEX).is_file():
            return _read_shards(folder)
        others = [p.name for end in ("bin", "pt", "pth", "ckpt") for p in folder.glob(f"*.{end}")]
        hint = f"; it has {others[0]}, and pickles are not opened" if others else ""
        raise FolderError(f"{folder / ONE}: there is no such file{hint}")
    shapes = _shapes(folder / ONE)
    if not shapes:
        raise FolderError(f"{folder / ONE}: there are no tensors in it")
    return Tensors(folder, dict.fromkeys(shapes, folder / ONE), shapes)


def _read_shards(folder: Path) -> Tensors:
    try:
        places = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        places = {str(name): str(shard) for name, shard in places.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FolderError(f"{folder / INDEX}: this is no index of shards") from None
    if not places:
        raise FolderError(f"{folder / INDEX}: there are no tensors in it")
    files, shapes = {}, {}
    for shard in sorted(set(places.values())):
        wanted = [name for name, place in places.items() if place == shard]
        file = folder / shard
        if Path(shard).name != shard:
            raise FolderError(
                f"{folder / INDEX}: shard {shard!r} is outside the folder; a shard is named by its "
                f"file alone"
            )
        if not file.is_file():
            raise FolderError(
                f"{file}: this shard is missing; tensor `{wanted[0]}` should be in it"
            )
        held = _shapes(file)
        for name in wanted:
            if name not in held:
                raise FolderError(f"{file}: tensor `{name}` is missing, which {INDEX} says is here")
            files[name], shapes[name] = file, held[name]
    return Tensors(folder, files, shapes)


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(file, "pt") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        why = _cut_off(file) or f"this is no safetensors file ({error})"
        raise FolderError(f"{file}: {why}") from None


def _cut_off(file: Path) -> str | None:
    """Return which tensor a file is cut off in; None where its header cannot be read either."""
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if size > file.stat().st_size:
                return None
            header = json.loads(opened.read(size))
        ends = {
            name: entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    held = file.stat().st_size - 8 - size
    lost = sorted((end, name) for name, end in ends.items() if end > held)
    if not lost:
        return None
    return f"the file ends within tensor `{lost[0][1]}`; {lost[-1][0] - held} bytes are missing"


def write_folder(
    folder: Path,
    settings: Settings,
    tensors: Mapping[str, torch.Tensor],
    shard_bytes: int,
    special: Settings,
) -> None:
    """Write config.json and the tensors, in shards where they are larger than `shard_bytes`.

    A generation_config.json that is there already gets the entries of `special`. All is written
    beside what it replaces, and takes its place only when everything is on the disk.
    """
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder}: this is a file, and a folder of weights is to be written")
    shards: list[dict[str, torch.Tensor]] = [{}]
    for name, tensor in tensors.items():
        held = sum(part.nbytes for part in shards[-1].values())
        if shards[-1] and held + tensor.nbytes > shard_bytes:
            shards.append({})
        shards[-1][name] = tensor.contiguous()
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    objects: dict[str, Any] = {"config.json": settings}
    if len(shards) == 1:
        names = [ONE]
    else:
        objects[INDEX] = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
            "weight_map": {key: name for name, s in zip(names, shards, strict=True) for key in s},
        }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        generation = read_generation(folder)
        if generation is not None:
            objects["generation_config.json"] = generation | special
        _write_together(folder, objects, dict(zip(names, shards, strict=True)))
    except (OSError, SafetensorError, WriteError) as error:
        raise FolderError(f"{folder}: the weights cannot be written ({error})") from None


def _write_together(
    folder: Path, objects: dict[str, Any], shards: dict[str, dict[str, torch.Tensor]]
) -> None:
    """Write every file beside its place; then the weights take theirs, and config.json the last."""
    with ExitStack() as finished:
        for name, content in objects.items():
            aside = finished.enter_context(replacing(folder / name))
            aside.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        for name, shard in shards.items():
            aside = finished.enter_context(replacing(folder / name))
            save_file(shard, aside, metadata={"format": "pt"})
    for old in (*folder.glob("model-*-of-*.safetensors"), folder / INDEX, folder / ONE):
        if old.name not in shards and old.name not in objects:
            old.unlink(missing_ok=True)
