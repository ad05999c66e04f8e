"""The model that a config names: a preset of sizes that fit the data, or any target."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from querykey.models import (
    PRESETS,
    ClassHead,
    EncoderConfig,
    EncoderDecoderConfig,
    PairHead,
    Special,
    TokenHead,
    build,
    initialise,
    preset,
    preset_sizes,
)
from querykey.targets import build as build_target
from querykey.targets import quiet
from querykey.train.config import ConfigError, ModelConfig, TrainConfig
from querykey.train.data.source import Facts
from querykey.train.order import seed_generators
from querykey.train.parts import known
from querykey.words import a_type, last_line


def make_model(config: TrainConfig, facts: Facts) -> nn.Module:
    """Return the model that a config names, of sizes that fit the data; any target will do too.

    Its weights follow from the seed of the run.
    """
    seed_generators(config.loop.seed, "weights")
    if _names_target(config.model.name):
        if config.model.weights != "paper":
            raise ConfigError(f"model.weights is for presets; `{config.model.name}` draws its own")
        return _target(config.model.name, facts, config.loop.seed)
    return _preset(config, facts)


def _names_target(name: str) -> bool:
    """Whether a name is that of a target, and no preset's: has a mark of one, or is a folder."""
    if name in PRESETS:
        return False
    return ":" in name or "/" in name or name.endswith(".py") or os.path.isdir(name)


def in_precision(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Move a model to a device, its real numbers in a dtype; complex buffers stay complex."""
    if not any(buffer.is_complex() for buffer in model.buffers()):
        return model.to(device, dtype)
    model.to(device)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    for name, buffer in list(model.named_buffers()):
        if buffer.is_floating_point():
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, buffer.to(dtype))
    return model


def _preset(whole: TrainConfig, facts: Facts) -> nn.Module:
    """Return a preset of `querykey.models` with the sizes and special tokens of the data."""
    config, objective = whole.model, whole.objective.name
    known("model.name", config.name, PRESETS)
    open_sizes, sizes = preset_sizes(config.name), _sizes(config, facts)
    if objective == "hidden-patches" and whole.objective.share:
        sizes["share"] = whole.objective.share
    fitting = {name: size for name, size in sizes.items() if name in open_sizes}
    try:
        model_config = _with_dropout(preset(config.name, fitting), config.dropout)
        if objective in ("classes", "words-and-pairs"):
            if not isinstance(model_config, EncoderConfig):
                raise ConfigError(f"the objective `{objective}` trains an encoder, such as `bert`")
            model_config = replace(model_config, head=_head(model_config, objective, facts))
        if objective == "translation" and isinstance(model_config, EncoderDecoderConfig):
            model_config = _with_ends(model_config, facts)
        model = build(model_config)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the model `{config.name}` cannot be built: {error}") from error
    except (MemoryError, RuntimeError) as error:
        raise ConfigError(
            f"the model `{config.name}` of {config.layers} layers of {config.width} features takes "
            f"more memory than there is ({last_line(error, 80)})"
        ) from error
    if config.weights == "inputs":
        initialise(model, std=None)
    return model


def _head(config: EncoderConfig, objective: str, facts: Facts) -> ClassHead | PairHead:
    """Return the head of a classifier, or both heads of BERT's pretraining."""
    if objective == "classes":
        return ClassHead(facts.classes)
    if not isinstance(config.head, TokenHead):
        raise ConfigError("the objective `words-and-pairs` trains a model that scores tokens")
    return PairHead(config.head, ClassHead(facts.classes, "tanh"))


def _with_ends(config: EncoderDecoderConfig, facts: Facts) -> EncoderDecoderConfig:
    """Return the config with the tokens that a target begins and ends with, for `generate`."""
    assert facts.tokenizer is not None  # the objective needs one
    begin, end = (facts.tokenizer.special[name] for name in ("begin", "end"))
    sides = {
        side: replace(part, embedding=replace(part.embedding, special=Special(begin, (end,))))
        for side, part in (("encoder", config.encoder), ("decoder", config.decoder))
    }
    return replace(config, start=begin, **sides)


def _target(name: str, facts: Facts, seed: int) -> nn.Module:
    """Return the model of a target; an architecture of Hugging Face gets the data's vocabulary."""
    target = build_target(name, seed)
    model: Any = target.model
    if target.kind == "hf" and facts.vocabulary > _token_count(model):
        with quiet():
            model.resize_token_embeddings(facts.vocabulary)
    return model


def _token_count(model: Any) -> float:
    """Return how many tokens a model of Hugging Face has vectors for; inf where it reads none."""
    try:
        return getattr(model.get_input_embeddings(), "num_embeddings", math.inf)
    except NotImplementedError:
        return math.inf


def _sizes(config: ModelConfig, facts: Facts) -> dict[str, Any]:
    """Return the sizes that a config and its data give, by the names that presets have for them."""
    sizes = {"width": config.width, "layers": config.layers, "heads": config.heads}
    sizes |= {"latent": config.latent, "patch": config.patch, "hidden": config.width}
    if facts.vocabulary:
        sizes |= {"vocabulary": facts.vocabulary, "length": facts.length}
    if facts.image:
        sizes |= {"channels": facts.image[0], "image": facts.image[1], "classes": facts.classes}
    return sizes | ({"inputs": facts.features} if facts.features else {})


def _with_dropout(config: Any, dropout: float) -> Any:
    """Return a model's config with a dropout rate in every block that it has."""
    if not dropout:
        return config
    if hasattr(config, "block"):
        return replace(config, block=replace(config.block, dropout=dropout))
    if isinstance(getattr(config, "encoder", None), EncoderConfig):
        sides = {
            side: _with_dropout(getattr(config, side), dropout) for side in ("encoder", "decoder")
        }
        return replace(config, **sides)
    raise ConfigError(f"model.dropout: {a_type(config)} has no dropout; set it to 0")
