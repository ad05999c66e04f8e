"""From the names in a config to the data, the objective and the model that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from querykey.models import ClassHead, build, presets
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
    make: Callable[[ObjectiveConfig, Facts, nn.Module], Objective]
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
    maker = _known("model.name", config.name, MODELS)
    made = maker(config, facts)
    if objective == "classes":
        made = replace(made, head=ClassHead(facts.classes))
    return build(made)


def _sizes(config: ModelConfig, facts: Facts) -> dict[str, int]:
    sizes = {"width": config.width, "layers": config.layers, "heads": config.heads}
    return sizes | {"vocabulary": facts.vocabulary}


def _dropout(made: Any, config: ModelConfig) -> Any:
    """Put the dropout rate into every block of a text model's config."""
    if not config.dropout:
        return made
    if hasattr(made, "encoder"):
        return replace(
            made, encoder=_dropout(made.encoder, config), decoder=_dropout(made.decoder, config)
        )
    return replace(made, block=replace(made.block, dropout=config.dropout))


def _text(preset: Callable[..., Any], **more: Any) -> Callable[[ModelConfig, Facts], Any]:
    return lambda config, facts: _dropout(preset(**_sizes(config, facts), **more), config)


def _with_table(preset: Callable[..., Any]) -> Callable[[ModelConfig, Facts], Any]:
    """Return the maker of a preset whose learned positions need to know the longest sample."""
    return lambda config, facts: _text(preset, length=facts.length)(config, facts)


MODELS: dict[str, Callable[[ModelConfig, Facts], Any]] = {
    "gpt": _with_table(presets.gpt),
    "bert": _with_table(presets.bert),
    "llama": _text(presets.llama, kv_heads=None),
    "alibi": _text(presets.alibi),
    "transformer": _text(presets.original),
    "t5": _text(presets.t5),
}


def _known(field: str, name: str, table: dict[str, Any]) -> Any:
    if name not in table:
        raise ConfigError(
            f"{field}: there is no `{name}`{suggest(name, table)} (there is {', '.join(table)})"
        )
    return table[name]
