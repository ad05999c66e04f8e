"""Outlines: models at the sizes of their own configuration, for what needs shapes and no values.

    outline("hf:gpt2")                                    # 124,439,808 parameters, no memory
    outline("hf:llama", {"num_hidden_layers": 80})        # a field of its configuration is set
    outline("folder/config.json")                         # a configuration without weights

Hugging Face models are made on torch's meta device. Other targets are built as `build` does.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn

from querykey.targets.errors import TargetError
from querykey.targets.factories import build_python, module_of
from querykey.targets.folders import OURS, model_class_of, read_config
from querykey.targets.guessing import find_inputs
from querykey.targets.huggingface import (
    class_with_head,
    config_classes,
    inputs_of,
    parse_architecture,
    transformers_library,
)
from querykey.targets.inputs import Input
from querykey.targets.kinds import is_hugging_face
from querykey.targets.limits import refuse_numbers
from querykey.targets.target import PRESETS, Target, build
from querykey.targets.trial import quiet
from querykey.words import checked, last_line, suggest

Fields = Mapping[str, Any]
Outline = tuple[nn.Module, tuple[Input, ...], str]


@checked
def outline(name: str, fields: Fields | None = None) -> Target:
    """Return the target of a name at its own size, with the fields of its configuration set.

    The fields of a Python factory are its arguments, those of a preset are its sizes.
    """
    began = time.perf_counter()
    name, fields = name.strip(), dict(fields or {})
    if name.startswith("hf:"):
        kind, built = "hf", _of_architecture(name, fields)
    elif (file := config_file(name)) is not None:
        kind, built = "config", _of_file(name, file, fields)
    elif not fields:
        return build(name)
    elif name in PRESETS:
        kind, built = "preset", _of_preset(name, fields)
    elif ":" in name and not os.path.isdir(name):
        product, inputs, note = build_python(name, name, arguments=fields)
        model = module_of(product)
        assert model is not None
        kind, built = "python", (model, inputs, note)
    else:
        raise TargetError(
            f"`{name}`: no field of it can be set; a configuration, a factory's arguments and a "
            "preset's sizes can be"
        )
    return Target(name, kind, *built, time.perf_counter() - began)


@checked
def parse_fields(words: Sequence[str]) -> dict[str, Any]:
    """Return the fields that texts such as `hidden_size=8192` set, read as Python does."""
    fields: dict[str, Any] = {}
    for text in words:
        name, sign, value = (part.strip() for part in text.partition("="))
        if not sign or not value or not all(part.isidentifier() for part in name.split(".")):
            raise TargetError(f"`{text}` sets no field; write FIELD=VALUE, as in hidden_size=1024")
        if name in fields:
            raise TargetError(f"`{name}` is set twice; set each field once")
        try:
            fields[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            fields[name] = {"true": True, "false": False, "null": None}.get(value.lower(), value)
    return fields


@checked
def field_of(model: Any, field: str) -> Any:
    """Return the value of a field of a Hugging Face model's configuration, by its path."""
    value = _config_of(model)
    _check(type(model).__name__, value, field)
    for part in field.split("."):
        value = getattr(value, part)
    return value


@checked
def rebuilt(model: Any, fields: Fields) -> nn.Module:
    """Return a Hugging Face model of the same class on meta, with fields of its config set."""
    name, config = type(model).__name__, _config_of(model)
    with _refusals(name):
        values = {n: config.__dict__[n] for n in _set_fields(config) if n not in fields}
        return _on_meta(type(model), _with_fields(name, config, values, fields), "")[0]


def _config_of(model: Any) -> Any:
    if not is_hugging_face(model):
        raise TargetError(
            f"{type(model).__name__} has no configuration whose fields could be set; give a "
            "builder that takes them as arguments"
        )
    return model.config


def _set_fields(config: Any) -> list[str]:
    """Return the fields that differ from what the configuration's class declares."""
    fresh = type(config)()
    fields = (f.name for f in dataclasses.fields(config) if f.init)
    return [n for n in fields if getattr(config, n, None) != getattr(fresh, n, None)]


def config_file(name: str) -> Path | None:
    """Return the configuration that a file or folder of Hugging Face's names, if it is one."""
    path = Path(name)
    try:
        file = path if path.suffix == ".json" else path / "config.json"
        if not file.is_file():
            return None
        ours = json.loads(file.read_text(encoding="utf-8")).get("model_type") == OURS
    except (OSError, ValueError, AttributeError, RecursionError):
        # What is wrong with a file is said where it is read; a folder is left to `build`.
        return path if path.suffix == ".json" and path.is_file() else None
    return None if ours else file


def _of_architecture(name: str, fields: Fields) -> Outline:
    model_type, head = parse_architecture(name)
    version = transformers_library().__version__
    make = config_classes()[model_type]
    with _refusals(name):
        config, model_class = class_with_head(model_type, head, make())
        if head == "causal" and "is_decoder" in _names(config):
            fields = {"is_decoder": True, **fields}  # or an encoder's causal head sees the future
        config = _with_fields(name, config, {}, fields)
        return _on_meta(model_class, config, f"the default configuration of transformers {version}")


def _of_file(name: str, file: Path, fields: Fields) -> Outline:
    values = read_config(file)
    named = model_class_of(file, values)
    with _refusals(name):
        config = config_classes()[values["model_type"]].from_dict(values)
        if not values.get("architectures"):
            config, named = class_with_head(values["model_type"], None, config)
        config = _with_fields(name, config, values, fields)
        return _on_meta(named, config, "the sizes of its config.json")


def _of_preset(name: str, fields: Fields) -> Outline:
    try:
        model = maker_of_preset(name)(**fields)
    except (TypeError, ValueError) as error:
        raise TargetError(f"preset `{name}`: {last_line(error, 300)}") from error
    inputs, note = find_inputs(model)
    return model, inputs, note


def maker_of_preset(name: str) -> Callable[..., nn.Module]:
    """Return a function of a preset's sizes that builds its model."""
    from querykey.models import PRESETS as OF_MODELS  # our models are imported when one is built
    from querykey.models import build as build_model
    from querykey.models import preset

    if name not in OF_MODELS:
        raise TargetError(f"the preset `{name}` has no size that can be set")

    @wraps(OF_MODELS[name])
    def make(**sizes: Any) -> nn.Module:
        return build_model(preset(name, sizes))

    return make


def _on_meta(model_class: Any, config: Any, note: str) -> Outline:
    """Return a model without memory for its weights, in the dtype of its configuration."""
    refuse_numbers(model_class.__name__, config.to_dict())
    before = torch.get_default_dtype()
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else None
    try:
        torch.set_default_dtype(dtype or before)
        with quiet(), torch.device("meta"):
            model = model_class(config).eval()
    finally:
        torch.set_default_dtype(before)
    return model, inputs_of(model), f"{note}, without weights"


def _with_fields(name: str, config: Any, values: Fields, fields: Fields) -> Any:
    """Return the configuration made anew with some fields set, so that it derives the rest."""
    if not fields:
        return config
    for field in fields:
        _check(name, config, field)
    settings = dict(values)
    for field, value in fields.items():
        part, _, inner = field.partition(".")
        part = type(config).attribute_map.get(part, part)
        if not inner:
            settings.pop(field, None)
            settings[part] = value
        else:
            nested = getattr(config, part)
            settings[part] = _with_fields(
                name, nested, settings.get(part) or {}, {inner: value}
            ).to_dict()
    make = type(config)
    return make.from_dict(settings) if values else make(**settings)


def _check(name: str, config: Any, field: str) -> None:
    """Refuse a field that the configuration does not have."""
    part, _, inner = field.partition(".")
    names = _names(config)
    if part not in names:
        nested = {n: c for n, c in vars(config).items() if dataclasses.is_dataclass(c)}
        within = [f"{n}.{part}" for n, c in nested.items() if part in _names(c)]
        hint = f"; did you mean `{within[0]}`?" if within else suggest(part, names)
        raise TargetError(f"`{name}`: its configuration has no field `{part}`{hint}")
    if inner:
        nested = getattr(config, part)
        if not dataclasses.is_dataclass(nested):
            raise TargetError(f"`{name}`: the field `{part}` has no fields of its own")
        _check(name, nested, inner)


def _names(config: Any) -> list[str]:
    return [*(f.name for f in dataclasses.fields(config) if f.init), *type(config).attribute_map]


@contextmanager
def _refusals(name: str) -> Iterator[None]:
    """Turn whatever the library raises while it builds a model into one sentence."""
    try:
        yield
    except TargetError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(
            f"`{name}` does not build at these sizes: {last_line(error)[:300]} "
            "(a field of its configuration is set with FIELD=VALUE)"
        ) from error
