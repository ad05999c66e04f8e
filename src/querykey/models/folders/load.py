"""Weights in and out: folders of Hugging Face's, and our own for what no family of theirs has.

model = load("folder")      # config.json and safetensors
save(model, "copy")         # a folder that `transformers` loads, where it has such a model
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import nn

from querykey.models.build import MODELS, build
from querykey.models.folders.families import FAMILIES
from querykey.models.folders.families.family import (
    Family,
    FolderError,
    Row,
    Settings,
    read_special,
    write_special,
)
from querykey.models.folders.files import (
    Tensors,
    read_generation,
    read_settings,
    read_tensors,
    write_folder,
)
from querykey.models.folders.records import from_record, same, to_record
from querykey.models.text.config import (
    DecoderConfig,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    Special,
)

OURS = "querykey"  # the model_type of folders that only we can read


def load(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> nn.Module:
    """Return the model of a folder, in evaluation mode, in the dtype of the file unless given."""
    folder = Path(folder)
    settings = read_settings(folder)
    family = _family(settings, folder)
    tensors, said = read_tensors(folder), read_generation(folder)
    names = _names(family, tensors)
    with _blamed(folder / "config.json"):
        config = _config(settings, family, names)
    if said is not None:
        with _blamed(folder / "generation_config.json"):
            config = _told(config, said)
    with _blamed(folder / "config.json"), torch.device("meta"):
        model = build(config)
    found = _read(model, _places(model, config, family, tensors), family, tensors)
    if dtype is None:
        kinds = [tensor.dtype for tensor in found.values() if tensor.is_floating_point()]
        dtype = reduce(torch.promote_types, kinds) if kinds else torch.float32
    model.to(dtype).to_empty(device=device)
    model.tie()  # type: ignore[operator]
    with torch.no_grad():
        for name, tensor in _stored(model):
            tensor.copy_(found[name])
    return model.eval()


def save(model: nn.Module, folder: str | Path, *, shard_bytes: int = 5 * 10**9) -> None:
    """Write a folder that `load` reads, and `transformers` too where it has such a model."""
    model = getattr(model, "_orig_mod", model)  # of torch.compile's
    config: Any = getattr(model, "config", None)
    if type(config) not in MODELS:
        raise TypeError(f"save wants a model of querykey.models; got {type(model).__name__}")
    ours = _described(model, config)
    family, settings = _expressed(config)
    settings["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
    if family is None:
        write_folder(Path(folder), settings, ours, shard_bytes, _said(config))
        return
    prefix = family.prefix if getattr(config, "head", None) is None else ""
    theirs = {}
    for row, names in _matched(family.table(config, _layers(config)), set(ours)):
        tensor = torch.cat([ours[name] for name in names])
        tensor = tensor.mT if row.layout == "transposed" and tensor.ndim == 2 else tensor
        theirs[row.theirs.removeprefix(prefix)] = tensor
    write_folder(Path(folder), settings, theirs, shard_bytes, _said(config))


def _described(model: nn.Module, config: Any) -> dict[str, torch.Tensor]:
    """Return the model's tensors by name; refuse those that its config does not describe."""
    with torch.device("meta"):
        fresh = build(config)
    wanted, every = dict(_stored(fresh)), fresh.state_dict(keep_vars=True)
    found, wants = dict(_stored(model)), "save wants the tensors of the model's config"
    for name, tensor in wanted.items():
        if name not in found:
            raise ValueError(f"{wants}; `{name}` is missing")
        if found[name].shape != tensor.shape:
            sizes = f"{tuple(found[name].shape)}, not {tuple(tensor.shape)}"
            raise ValueError(f"{wants}; `{name}` is {sizes}")
    for name in sorted(found.keys() - wanted):
        twin = next((each for each in wanted if wanted[each] is every.get(name)), None)
        if twin is None:
            raise ValueError(f"{wants}; `{name}` is none of them")
        if not torch.equal(found.pop(name), found[twin]):
            raise ValueError(f"{wants}; `{name}` is not `{twin}`, with which it is tied")
    return {name: tensor.detach().cpu() for name, tensor in found.items()}


def _said(config: Any) -> Settings:
    """Return what generation_config.json is to say of a model's special tokens."""
    embedding = getattr(getattr(config, "decoder", config), "embedding", None)
    return write_special(embedding) if isinstance(embedding, EmbeddingConfig) else {}


def _expressed(config: Any) -> tuple[Family | None, Settings]:
    """Return the family whose config.json reads back as this config, and that config.json."""
    for family in FAMILIES:
        settings = family.write(config)
        if settings is None:
            continue
        pooled = ("pooler.dense.weight",) if getattr(config, "pooler", None) else ()
        names = frozenset((*pooled, *_untied(config)))
        settings |= {"model_type": family.types[0]}
        with suppress(ValueError):  # a family may refuse what it cannot express
            if same(family.read(family.defaults | settings, names), config):
                return family, settings
    return None, {"model_type": OURS, "config": to_record(config)}


def _untied(config: Any) -> tuple[str, ...]:
    head = getattr(getattr(config, "decoder", None), "head", None)
    return () if head is None or head.tied else ("lm_head.weight", "shared.weight")


@contextmanager
def _blamed(file: Path) -> Iterator[None]:
    """Let what is wrong with a file's entries name the file."""
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
    known = ", ".join(name for family in FAMILIES for name in family.types)
    raise FolderError(f"{folder}/config.json: we have no model of the type {kind!r} ({known})")


def _names(family: Family | None, tensors: Tensors) -> frozenset[str]:
    """Return the names of all tensors, but not that of a head that only repeats the embedding."""
    names = tensors.names
    if family is None or family.judged is None or family.judged not in names:
        return names
    head, tables = tensors.read(family.judged), {each for pair in family.aliases for each in pair}
    tables = names & tables - {family.judged}
    repeats = any(torch.equal(head, tensors.read(each)) for each in tables)
    return names - {family.judged} if repeats else names


def _config(settings: Settings, family: Family | None, names: frozenset[str]) -> Any:
    if family is None:
        return from_record(settings.get("config"))
    if settings.get("quantization_config"):
        raise FolderError("config.json: its weights are quantized (`quantization_config`)")
    renamed = {ours: settings[name] for name, ours in family.entries.items() if name in settings}
    return family.read(family.defaults | settings | renamed, names)


def _told(config: Any, said: Settings) -> Any:
    """Return the config with what ends and fills a row by generation_config.json, be it nothing."""
    if isinstance(config, EncoderDecoderConfig):
        start = said.get("decoder_start_token_id")
        return replace(
            config,
            encoder=_told(config.encoder, said),
            decoder=_told(config.decoder, said),
            start=config.start if start is None else start,
        )
    if not isinstance(config, EncoderConfig | DecoderConfig):
        return config
    new, old = read_special(said), config.embedding.special
    skips = getattr(config.positions, "skip", None) is not None
    special = Special(
        old.bos if new.bos is None else new.bos,
        new.eos,
        old.pad if skips else new.pad,  # RoBERTa counts positions by the one of its config
    )
    return replace(config, embedding=replace(config.embedding, special=special))


def _stored(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter once, however many names it has, and every buffer that is kept."""
    yield from model.named_parameters()
    kept = model.state_dict(keep_vars=True)
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in kept)


def _layers(config: Any) -> int:
    pair = getattr(config, "encoder", None)
    return config.layers if pair is None else max(pair.layers, config.decoder.layers)


Match = tuple[Row, tuple[str, ...]]  # a row with their full name, and our full names


def _matched(rows: Iterator[Row], ours: set[str]) -> Iterator[Match]:
    """Every row that speaks of tensors of ours, with .weight or .bias where those are meant."""
    for row in rows:
        for end in ("", ".weight", ".bias"):
            names = tuple(name + end for name in row.ours)
            if ours.issuperset(names):
                yield Row(row.theirs + end, names, row.layout), names


def _places(model: nn.Module, config: Any, family: Family | None, tensors: Tensors) -> list[Match]:
    """Say where every tensor of ours is in the folder."""
    ours = {name for name, _ in _stored(model)}
    if family is None:
        return [(Row(name, (name,)), (name,)) for name in sorted(ours)]
    bare = not any(name.startswith(family.prefix) for name in tensors.names)
    found, matched = [], [*_matched(family.table(config, _layers(config)), ours)]
    wanted = {row.theirs for row, _ in matched}
    for row, names in matched:
        theirs = row.theirs.removeprefix(family.prefix) if bare else row.theirs
        for new, old in ((".weight", ".gamma"), (".bias", ".beta")):  # BERT's first names
            if theirs not in tensors.names and f"{theirs.removesuffix(new)}{old}" in tensors.names:
                theirs = f"{theirs.removesuffix(new)}{old}"
        for end, alias in family.aliases:
            tied = theirs.endswith(end) and alias not in wanted
            if tied and theirs not in tensors.names and alias in tensors.names:
                theirs = alias
        found.append((Row(theirs, names, row.layout), names))
    assert {name for _, names in found for name in names} == ours, "the table has a hole"
    return found


def _read(
    model: nn.Module, places: list[Match], family: Family | None, tensors: Tensors
) -> dict[str, torch.Tensor]:
    """Read every tensor of ours; refuse what is missing, misshapen or has no place."""
    shapes = {name: tuple(tensor.shape) for name, tensor in _stored(model)}
    found = {}
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
        found |= dict(zip(names, parts, strict=True))
    _check_rest(tensors, places, family)
    return found


def _check_rest(tensors: Tensors, places: list[Match], family: Family | None) -> None:
    """Every other tensor is one that we need not read, or a copy of one that we have read."""
    ignored, copies = ((), {}) if family is None else (family.ignored, family.copies)
    for name in sorted(tensors.names - {row.theirs for row, _ in places}):
        if name.endswith(ignored):
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
