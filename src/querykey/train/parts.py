"""From the names in a config to the data, the objective and the model that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from querykey.models import PRESETS, ClassHead, EncoderConfig, build, preset, preset_sizes
from querykey.targets import build as build_target
from querykey.train.config import ConfigError, ModelConfig, ObjectiveConfig, TrainConfig
from querykey.train.data.source import Data, Facts
from querykey.train.data.text import load_text
from querykey.train.objectives.images import HiddenPatches, ImageClass, Reconstruction
from querykey.train.objectives.objective import Objective
from querykey.train.objectives.text import HiddenTokens, NextToken, TextClass, Translation
from querykey.words import suggest

# config, folder for files that are mapped, special tokens -> data
Loader = Callable[[TrainConfig, Path, tuple[str, ...]], Data]


@dataclass(frozen=True)
class ObjectiveKind:
    """An objective by name: what it says, its special tokens, and how it is made."""

    says: str
    make: Callable[[ObjectiveConfig, Facts, Any], Objective]
    special: tuple[str, ...] = ()


def _special(facts: Facts, name: str) -> int:
    assert facts.tokenizer is not None
    return facts.tokenizer.special[name]


OBJECTIVES: dict[str, ObjectiveKind] = {
    "causal": ObjectiveKind("the next token", lambda config, facts, model: NextToken()),
    "masked": ObjectiveKind(
        "hidden tokens, as BERT's masked words",
        lambda config, facts, model: HiddenTokens(
            config.share, _special(facts, "mask"), facts.vocabulary
        ),
        special=("mask",),
    ),
    "classes": ObjectiveKind(
        "the class of a text, or of a pair of sentences",
        lambda config, facts, model: TextClass(),
        special=("begin", "separate"),
    ),
    "translation": ObjectiveKind(
        "a target sequence from a source sequence, with teacher forcing",
        lambda config, facts, model: Translation(_special(facts, "begin"), _special(facts, "end")),
        special=("begin", "end"),
    ),
    "images": ObjectiveKind(
        "the class of an image", lambda config, facts, model: ImageClass()
    ),
    "autoencoding": ObjectiveKind(
        "vectors again, from themselves", lambda config, facts, model: Reconstruction()
    ),
    "denoising": ObjectiveKind(
        "vectors again, from noisy ones",
        lambda config, facts, model: Reconstruction(noise=config.noise),
    ),
    "hidden-features": ObjectiveKind(
        "hidden features of vectors, from the others",
        lambda config, facts, model: Reconstruction(share=config.share),
    ),
    "hidden-patches": ObjectiveKind(
        "hidden patches of images, from the others",
        lambda config, facts, model: HiddenPatches(model.config.tokens, model.config.visible),
    ),
}  # fmt: skip

DATA: dict[str, Loader] = {
    name: lambda config, folder, special: load_text(config.data, folder, config.loop.seed, special)
    for name in ("stdlib", "text")
}


def load_data(config: TrainConfig, folder: Path) -> Data:
    """Return the data that a config names."""
    kind = _known("data.name", config.data.name, DATA)
    return kind(config, folder, objective_kind(config).special)


def objective_kind(config: TrainConfig) -> ObjectiveKind:
    """Return the kind of objective that a config names."""
    return _known("objective.name", config.objective.name, OBJECTIVES)


def make_model(config: ModelConfig, objective: str, facts: Facts) -> nn.Module:
    """Return the model that a config names, of sizes that fit the data; any target will do too."""
    if ":" in config.name or "/" in config.name:
        return build_target(config.name).model
    _known("model.name", config.name, PRESETS)
    open_sizes, sizes = preset_sizes(config.name), _sizes(config, facts)
    fitting = {name: size for name, size in sizes.items() if name in open_sizes}
    model_config = _with_dropout(preset(config.name, fitting), config.dropout)
    if objective == "classes":
        model_config = replace(model_config, head=ClassHead(facts.classes))
    return build(model_config)


def _sizes(config: ModelConfig, facts: Facts) -> dict[str, int]:
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
    raise ConfigError(f"model.dropout: a {type(config).__name__} has no dropout; set it to 0")


def _known(field: str, name: str, table: dict[str, Any]) -> Any:
    if name not in table:
        raise ConfigError(
            f"{field}: there is no `{name}`{suggest(name, table)} (there is {', '.join(table)})"
        )
    return table[name]
