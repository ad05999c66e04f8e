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
from querykey.train.data.images import load_digits, load_mnist, load_vectors
from querykey.train.data.parallel import load_parallel
from querykey.train.data.sentences import load_adjacent, load_grammar, load_snippets
from querykey.train.data.source import Data, Facts
from querykey.train.data.tasks import load_copy, load_dates, load_recall
from querykey.train.data.text import load_text
from querykey.train.objectives.images import HiddenPatches, ImageClass, Reconstruction
from querykey.train.objectives.objective import Objective
from querykey.train.objectives.text import HiddenTokens, NextToken, TextClass, Translation
from querykey.words import suggest


@dataclass(frozen=True)
class DataKind:
    """Data by name: what it is, and how it is loaded.

    `load` takes the config, a folder for files that are mapped into memory, and the special tokens.
    """

    says: str
    load: Callable[[TrainConfig, Path, tuple[str, ...]], Data]


@dataclass(frozen=True)
class ObjectiveKind:
    """An objective by name: what it says, its special tokens, and how it is made."""

    says: str
    make: Callable[[ObjectiveConfig, Facts, Any], Objective]
    special: tuple[str, ...] = ()


def _text(config: TrainConfig, folder: Path, special: tuple[str, ...]) -> Data:
    return load_text(config.data, folder, config.loop.seed, special)


def _grammar(config: TrainConfig, folder: Path, special: tuple[str, ...]) -> Data:
    return load_grammar(config.data, config.loop.seed, special)


def _special(facts: Facts, name: str) -> int:
    assert facts.tokenizer is not None
    return facts.tokenizer.special[name]


OBJECTIVES: dict[str, ObjectiveKind] = {
    "causal": ObjectiveKind("the next token", lambda config, facts, model: NextToken()),
    "masked": ObjectiveKind(
        "hidden tokens, as BERT's masked words",
        lambda config, facts, model: HiddenTokens(
            config.share, _special(facts, "mask"), facts.vocabulary, facts.length
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

DATA: dict[str, DataKind] = {
    "stdlib": DataKind("the source of Python's own library", _text),
    "text": DataKind("any text: a file, or a folder of files", _text),
    "mnist": DataKind("MNIST in its idx files", lambda c, folder, special: load_mnist(c.data)),
    "digits": DataKind("scikit-learn's digits", lambda c, folder, special: load_digits()),
    "vectors": DataKind(
        "document 004's vectors of 100 features",
        lambda c, folder, special: load_vectors(c.data, c.loop.seed),
    ),
    "copy": DataKind(
        "a word, a mark, the word again",
        lambda c, folder, special: load_copy(c.data, c.loop.seed),
    ),
    "recall": DataKind(
        "pairs of keys and values, then a key whose value is asked",
        lambda c, folder, special: load_recall(c.data, c.loop.seed),
    ),
    "dates": DataKind(
        "dates in many formats, and in ISO 8601",
        lambda c, folder, special: load_dates(c.data, c.loop.seed, special),
    ),
    "adjacent": DataKind(
        "pairs of sentences that are adjacent in a text or not",
        lambda c, folder, special: load_adjacent(c.data, c.loop.seed, special),
    ),
    "inverted": DataKind("a sentence and its inversion, or another's", _grammar),
    "entailed": DataKind("a sentence and a claim that follows or does not", _grammar),
    "snippets": DataKind(
        "snippets of Python's own library, by package",
        lambda c, folder, special: load_snippets(c.data, c.loop.seed, special),
    ),
    "parallel": DataKind(
        "sentences in two languages, line by line",
        lambda c, folder, special: load_parallel(c.data, special),
    ),
}


def load_data(config: TrainConfig, folder: Path) -> Data:
    """Return the data that a config names."""
    kind = _known("data.name", config.data.name, DATA)
    return kind.load(config, folder, objective_kind(config).special)


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
