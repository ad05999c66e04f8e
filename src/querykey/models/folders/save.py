"""Weights out: a folder that `load` reads, and `transformers` too where it has such a model."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from querykey.errors import QuerykeyError, WrongTypeError
from querykey.models.build import MODELS, build
from querykey.models.folders.families import FAMILIES
from querykey.models.folders.families.family import Family, Origin, Settings, write_special
from querykey.models.folders.files import as_folder, write_folder
from querykey.models.folders.names import OURS, matches, stored_tensors
from querykey.models.folders.records import same, to_record
from querykey.models.text.config import EmbeddingConfig


def save(model: nn.Module, folder: str | Path, *, shard_bytes: int = 5 * 10**9) -> None:
    """Write a folder that `load` reads, and `transformers` too where it has such a model."""
    folder = as_folder(folder)
    config: Any = getattr(model, "config", None)
    if type(config) not in MODELS:
        raise WrongTypeError(f"save wants a model of querykey.models; got {type(model).__name__}")
    # torch.compile returns a module around the model, whose tensors have other names.
    model = next((m for m in model.modules() if isinstance(m, MODELS[type(config)])), model)
    ours = _described(model, config)
    family, settings = _expressed(config, getattr(model, "origin", Origin()))
    settings["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
    if family is None:
        write_folder(folder, settings, ours, shard_bytes, _special_settings(config))
        return
    prefix = family.names.prefix if getattr(config, "head", None) is None else ""
    theirs = {}
    for row, names in matches(family, config, set(ours)):
        tensor = torch.cat([ours[name] for name in names])
        tensor = tensor.mT if row.layout == "transposed" and tensor.ndim == 2 else tensor
        theirs[row.theirs.removeprefix(prefix)] = tensor
    repeated = family.names.repeats.items()
    theirs |= {name: theirs[other].clone() for name, other in repeated if other in theirs}
    write_folder(folder, settings, theirs, shard_bytes, _special_settings(config))


def _described(model: nn.Module, config: Any) -> dict[str, torch.Tensor]:
    """Return the model's tensors by name; refuse those that its config does not describe."""
    with torch.device("meta"):
        fresh = build(config)
    wanted, named = dict(stored_tensors(fresh)), fresh.state_dict(keep_vars=True)
    tensors, rule = dict(stored_tensors(model)), "save wants the tensors of the model's config"
    for name, tensor in wanted.items():
        if name not in tensors:
            raise QuerykeyError(f"{rule}; `{name}` is missing")
        if tensors[name].shape != tensor.shape:
            sizes = f"{tuple(tensors[name].shape)}, not {tuple(tensor.shape)}"
            raise QuerykeyError(f"{rule}; `{name}` is {sizes}")
    for name in sorted(tensors.keys() - wanted):
        twin = next((other for other in wanted if wanted[other] is named.get(name)), None)
        if twin is None:
            raise QuerykeyError(f"{rule}; `{name}` is none of them")
        if not torch.equal(tensors.pop(name), tensors[twin]):
            raise QuerykeyError(f"{rule}; `{name}` is not `{twin}`, with which it is tied")
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


def _special_settings(config: Any) -> Settings:
    """Return the special tokens of a model as generation_config.json writes them."""
    embedding = getattr(getattr(config, "decoder", config), "embedding", None)
    return write_special(embedding) if isinstance(embedding, EmbeddingConfig) else {}


def _expressed(config: Any, origin: Origin) -> tuple[Family | None, Settings]:
    """Return the family whose config.json reads back as this config, and that config.json.

    The family that the model was loaded from comes first, with what its folder said beside.
    """
    pooled = ("pooler.dense.weight",) if getattr(config, "pooler", None) else ()
    names = frozenset((*pooled, *_untied(config)))
    for family in sorted(FAMILIES, key=lambda family: origin.model_type not in family.types):
        written = family.write(config)
        if written is None:
            continue
        native = origin.model_type in family.types
        written["model_type"] = origin.model_type if native else family.types[0]
        for settings in (written | (origin.kept if native else {}), written):
            defaults = family.entries.defaults_of(settings["model_type"])
            with suppress(ValueError):  # a family may refuse what it cannot express
                if same(family.read(defaults | settings, names), config):
                    return family, _renamed(settings)
    return None, {"model_type": OURS, "config": to_record(config)}


def _renamed(settings: Settings) -> Settings:
    """Return the settings with the name that the model_type has for the class of RoBERTa."""
    name = {"xlm-roberta": "XLMRoberta", "camembert": "Camembert"}.get(settings["model_type"])
    named = [kind.replace("Roberta", name or "Roberta") for kind in settings["architectures"]]
    return settings | {"architectures": named}


def _untied(config: Any) -> tuple[str, ...]:
    head = getattr(getattr(config, "decoder", None), "head", None)
    return () if head is None or head.tied else ("lm_head.weight", "shared.weight")
