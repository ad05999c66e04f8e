"""Weights in: a folder of Hugging Face's, or one of our own for what no family of theirs has.

model = load("folder")      # config.json and safetensors
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import nn

from querykey.models.build import build
from querykey.models.folders.families import FAMILIES
from querykey.models.folders.families.family import (
    Family,
    FolderError,
    Origin,
    Row,
    Settings,
    read_special,
)
from querykey.models.folders.files import (
    Tensors,
    as_folder,
    read_generation,
    read_settings,
    read_tensors,
)
from querykey.models.folders.names import OURS, Match, matches, stored_tensors
from querykey.models.folders.records import from_record, to_record
from querykey.models.text.config import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    Special,
)


def load(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> nn.Module:
    """Return the model of a folder, in evaluation mode, in the dtype of the file unless given."""
    folder = as_folder(folder)
    settings = read_settings(folder)
    family = _family(settings, folder)
    tensors, generation = read_tensors(folder), read_generation(folder)
    names = _names(family, tensors)
    with _blamed(folder / "config.json"):
        config = _config(settings, family, names)
        _refuse_layers(to_record(config), len(names))
    if generation is not None:
        with _blamed(folder / "generation_config.json"):
            config = _with_special(config, generation)
    with _blamed(folder / "config.json"), torch.device("meta"):
        model = build(config)
    weights = _read(model, _places(model, config, family, tensors), family, tensors)
    if dtype is None:
        kinds = [tensor.dtype for tensor in weights.values() if tensor.is_floating_point()]
        dtype = reduce(torch.promote_types, kinds) if kinds else torch.float32
    model.to(dtype).to_empty(device=device)
    model.tie()  # type: ignore[operator]
    with torch.no_grad():
        for name, tensor in stored_tensors(model):
            tensor.copy_(weights[name])
    _warn_of_what_is_not_finite(model, weights, folder)
    if family is not None:
        kept = {name: settings[name] for name in family.entries.kept if name in settings}
        model.origin = Origin(settings["model_type"], kept)  # type: ignore[assignment]
    return model.eval()


def _warn_of_what_is_not_finite(
    model: nn.Module, weights: dict[str, torch.Tensor], folder: Path
) -> None:
    """Warn of NaN and infinity in the file, and of numbers that the model's dtype cannot hold."""
    wrong = {name: tensor for name, tensor in stored_tensors(model) if not _is_finite(tensor)}
    if wrong:
        first = next((name for name in wrong if not _is_finite(weights[name])), None)
        what = f"NaN or infinity, `{first}` among them"
        if first is None:
            what = f"numbers beyond {str(next(iter(wrong.values())).dtype).removeprefix('torch.')}"
        count = "1 tensor holds" if len(wrong) == 1 else f"{len(wrong)} tensors hold"
        warnings.warn(f"{folder}: {count} {what}", stacklevel=3)


def _is_finite(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or bool(tensor.isfinite().all())


@contextmanager
def _blamed(file: Path) -> Iterator[None]:
    """Turn an error about the entries of a file into a FolderError that names the file."""
    try:
        yield
    except FolderError as error:
        raise FolderError(f"{file.parent}/{error}") from None
    except ValueError as error:
        raise FolderError(f"{file}: {error}") from None
    except (
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        raise FolderError(f"{file}: an entry is not of the kind that is wanted ({error})") from None


def _family(settings: Settings, folder: Path) -> Family | None:
    kind = settings.get("model_type")
    if kind == OURS:
        return None
    for family in FAMILIES:
        if kind in family.types:
            return family
    types = ", ".join(name for family in FAMILIES for name in family.types)
    raise FolderError(f"{folder}/config.json: we have no model of the type {kind!r} ({types})")


def _names(family: Family | None, tensors: Tensors) -> frozenset[str]:
    """Return the names of all tensors, but not that of a head that only repeats the embedding."""
    head = None if family is None else family.names.tied_if_equal
    if family is None or head is None or head not in tensors.names:
        return tensors.names
    aliases = {name for pair in family.names.aliases for name in pair}
    tables = tensors.names & aliases - {head}
    repeats = any(torch.equal(tensors.read(head), tensors.read(table)) for table in tables)
    return tensors.names - {head} if repeats else tensors.names


def _config(settings: Settings, family: Family | None, names: frozenset[str]) -> Any:
    if family is None:
        return from_record(settings.get("config"))
    if settings.get("quantization_config"):
        raise FolderError("config.json: its weights are quantized (`quantization_config`)")
    entries = family.entries
    renamed = {ours: settings[name] for name, ours in entries.aliases.items() if name in settings}
    defaults = entries.defaults_of(settings["model_type"])
    return family.read(defaults | settings | renamed, names)


def _refuse_layers(record: Any, tensors: int) -> None:
    """Refuse more layers than there are tensors, before memory is taken for their modules."""
    parts = list(record.items()) if isinstance(record, dict) else []
    for name, value in parts:
        if name in ("layers", "depth", "blocks") and isinstance(value, int) and value > tensors:
            raise FolderError(f"config.json: {value} layers, and the folder has {tensors} tensors")
    for value in [v for _, v in parts] if parts else record if isinstance(record, list) else []:
        _refuse_layers(value, tensors)


def _with_special(config: Any, generation: Settings) -> Any:
    """Return the config with the special tokens of generation_config.json, be they none."""
    if isinstance(config, EncoderDecoderConfig):
        start = generation.get("decoder_start_token_id")
        return replace(
            config,
            encoder=_with_special(config.encoder, generation),
            decoder=_with_special(config.decoder, generation),
            start=config.start if start is None else start,
        )
    if not isinstance(config, EncoderConfig | DecoderConfig):
        return config
    new, old = read_special(generation), config.embedding.special
    skips = getattr(config.positions, "skip", None) is not None
    special = Special(
        old.bos if new.bos is None else new.bos,
        new.eos,
        old.pad if skips else new.pad,  # RoBERTa counts positions by the one of its config
    )
    return replace(config, embedding=replace(config.embedding, special=special))


def _places(model: nn.Module, config: Any, family: Family | None, tensors: Tensors) -> list[Match]:
    """Say where every tensor of ours is in the folder."""
    ours = {name for name, _ in stored_tensors(model)}
    if family is None:
        return [(Row(name, (name,)), (name,)) for name in sorted(ours)]
    bare = not any(name.startswith(family.names.prefix) for name in tensors.names)
    places, matched = [], [*matches(family, config, ours)]
    wanted = {row.theirs for row, _ in matched}
    for row, names in matched:
        theirs = row.theirs.removeprefix(family.names.prefix) if bare else row.theirs
        for new, old in ((".weight", ".gamma"), (".bias", ".beta")):  # BERT's first names
            if theirs not in tensors.names and f"{theirs.removesuffix(new)}{old}" in tensors.names:
                theirs = f"{theirs.removesuffix(new)}{old}"
        for end, alias in family.names.aliases:
            tied = theirs.endswith(end) and alias not in wanted
            if tied and theirs not in tensors.names and alias in tensors.names:
                theirs = alias
        places.append((Row(theirs, names, row.layout), names))
    assert {name for _, names in places for name in names} == ours, "the table has a hole"
    return places


def _read(
    model: nn.Module, places: list[Match], family: Family | None, tensors: Tensors
) -> dict[str, torch.Tensor]:
    """Read every tensor of ours; refuse what is missing, misshapen or has no place."""
    shapes = {name: tuple(tensor.shape) for name, tensor in stored_tensors(model)}
    weights = {}
    for row, names in places:
        wanted = shapes[names[0]]
        if len(names) > 1:
            wanted = (sum(shapes[name][0] for name in names), *wanted[1:])
        turned = row.layout == "transposed" and len(wanted) == 2
        wanted = wanted[::-1] if turned else wanted
        if row.theirs not in tensors.names:
            where = sorted({file.name for file in tensors.files.values()})
            raise FolderError(
                f"{tensors.folder}: tensor `{row.theirs}` is not in {', '.join(where)}"
            )
        if tensors.shapes[row.theirs] != wanted:
            raise FolderError(
                f"{tensors.files[row.theirs]}: tensor `{row.theirs}` is "
                f"{tensors.shapes[row.theirs]}, and by config.json it is {wanted}"
            )
        tensor = tensors.read(row.theirs, whole_numbers=family is None)  # batch norm counts
        tensor = tensor.mT if turned else tensor
        parts = [tensor]
        if len(names) > 1:
            parts = tensor.split([shapes[name][0] for name in names])
        weights |= dict(zip(names, parts, strict=True))
    _check_rest(tensors, places, family)
    return weights


def _check_rest(tensors: Tensors, places: list[Match], family: Family | None) -> None:
    """Every other tensor is one that we need not read, or a copy of one that we have read."""
    ignored, copies = ((), {}) if family is None else (family.names.ignored, family.names.copies)
    dropped = []
    for name in sorted(tensors.names - {row.theirs for row, _ in places}):
        if name.endswith(ignored):
            continue
        if family is not None and name.endswith(family.names.dropped):
            dropped.append(name)
            continue
        ends = tuple(ours for theirs, ours in copies.items() if name.endswith(theirs))
        read = next((row.theirs for row, ours in places if ours[0].endswith(ends)), None)
        if read is None:
            raise FolderError(
                f"{tensors.files[name]}: tensor `{name}` has no place in the model of config.json"
            )
        if not torch.equal(tensors.read(name), tensors.read(read)):
            raise FolderError(
                f"{tensors.files[name]}: tensor `{name}` is not `{read}`, "
                "though config.json says that they are tied"
            )
    if dropped:
        warnings.warn(
            f"{tensors.folder}: the model of config.json has no place for {', '.join(dropped)}, "
            "so they are left out",
            stacklevel=4,
        )
