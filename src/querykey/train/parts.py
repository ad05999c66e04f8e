"""From the names in a config to the data, the objective and the model that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from querykey.models import (
    PRESETS,
    ClassHead,
    EncoderConfig,
    PatchAutoencoder,
    build,
    preset,
    preset_sizes,
)
from querykey.targets import build as build_target
from querykey.targets import quiet
from querykey.train.config import ConfigError, ModelConfig, ObjectiveConfig, TrainConfig
from querykey.train.data.images import load_digits, load_mnist, load_vectors
from querykey.train.data.parallel import load_parallel
from querykey.train.data.sentences import load_adjacent, load_grammar, load_snippets
from querykey.train.data.source import Data, DataError, Facts
from querykey.train.data.tasks import load_copy, load_dates, load_recall
from querykey.train.data.text import load_text
from querykey.train.data.tokenizers import SPECIAL
from querykey.train.objectives.images import HiddenPatches, ImageClass, Reconstruction
from querykey.train.objectives.objective import Objective
from querykey.train.objectives.text import HiddenTokens, NextToken, TextClass, Translation
from querykey.words import suggest


@dataclass(frozen=True)
class DataKind:
    """Data by name: what it is, how it is loaded, and what its samples have.

    `load` takes the config, a folder for files that are mapped into memory, and the special tokens.
    """

    says: str
    load: Callable[[TrainConfig, Path, tuple[str, ...]], Data]
    has: tuple[str, ...]
    special: tuple[str, ...] = ()  # tokens that its samples have, whatever the objective


@dataclass(frozen=True)
class ObjectiveKind:
    """An objective by name: what it predicts, how it is made, and what it needs of the data."""

    says: str
    make: Callable[[ObjectiveConfig, Facts, Any], Objective]
    needs: tuple[str, ...]
    special: tuple[str, ...] = ()  # tokens that it adds to those of the data


def _text(config: TrainConfig, folder: Path, special: tuple[str, ...]) -> Data:
    return load_text(config.data, folder, config.loop.seed, special)


def _grammar(config: TrainConfig, folder: Path, special: tuple[str, ...]) -> Data:
    return load_grammar(config.data, config.loop.seed, special)


def _special(facts: Facts, name: str) -> int:
    assert facts.tokenizer is not None  # an objective with special tokens needs one
    return facts.tokenizer.special[name]


def _patches(config: ObjectiveConfig, facts: Facts, model: Any) -> HiddenPatches:
    if not isinstance(model, PatchAutoencoder):
        raise ConfigError(
            "the objective `hidden-patches` trains a patch autoencoder; model.name is "
            "`masked-patches`, or a target that builds a querykey.models.PatchAutoencoder"
        )
    return HiddenPatches(model.config.tokens, model.config.visible)


OBJECTIVES: dict[str, ObjectiveKind] = {
    "causal": ObjectiveKind(
        "the next token", lambda config, facts, model: NextToken(), needs=("tokens",)
    ),
    "masked": ObjectiveKind(
        "hidden tokens, as BERT's masked words",
        lambda config, facts, model: HiddenTokens(
            config.share, _special(facts, "mask"), facts.vocabulary, facts.length
        ),
        needs=("tokens", "tokenizer"), special=("mask",),
    ),
    "classes": ObjectiveKind(
        "the class of a text, or of a pair of sentences",
        lambda config, facts, model: TextClass(), needs=("tokens", "label"),
    ),
    "translation": ObjectiveKind(
        "a target sequence from a source sequence, with teacher forcing",
        lambda config, facts, model: Translation(_special(facts, "begin"), _special(facts, "end")),
        needs=("source", "target", "tokenizer"), special=("begin", "end"),
    ),
    "images": ObjectiveKind(
        "the class of an image", lambda config, facts, model: ImageClass(),
        needs=("image", "label"),
    ),
    "autoencoding": ObjectiveKind(
        "vectors again, from themselves", lambda config, facts, model: Reconstruction(),
        needs=("vector",),
    ),
    "denoising": ObjectiveKind(
        "vectors again, from noisy ones",
        lambda config, facts, model: Reconstruction(noise=config.noise), needs=("vector",),
    ),
    "hidden-features": ObjectiveKind(
        "hidden features of vectors, from the others",
        lambda config, facts, model: Reconstruction(share=config.share), needs=("vector",),
    ),
    "hidden-patches": ObjectiveKind(
        "hidden patches of images, from the others", _patches, needs=("image",)
    ),
}  # fmt: skip

TEXT, PARALLEL = ("tokens", "tokenizer"), ("source", "target", "tokenizer")
LABELLED = {"has": ("tokens", "tokenizer", "label"), "special": ("begin", "separate")}
IMAGE = ("image", "vector", "label")  # an image is read as a vector too

DATA: dict[str, DataKind] = {
    "stdlib": DataKind("the source of Python's own library", _text, TEXT),
    "text": DataKind("any text: a file, or a folder of files", _text, TEXT),
    "mnist": DataKind(
        "MNIST in its idx files", lambda c, folder, special: load_mnist(c.data), IMAGE
    ),
    "digits": DataKind("scikit-learn's digits", lambda c, folder, special: load_digits(), IMAGE),
    "vectors": DataKind(
        "document 004's vectors of 100 features",
        lambda c, folder, special: load_vectors(c.data, c.loop.seed),
        ("vector", "label"),
    ),
    "copy": DataKind(
        "a word, a mark, the word again",
        lambda c, folder, special: load_copy(c.data, c.loop.seed),
        ("tokens",),
    ),
    "recall": DataKind(
        "pairs of keys and values, then a key whose value is asked",
        lambda c, folder, special: load_recall(c.data, c.loop.seed),
        ("tokens",),
    ),
    "dates": DataKind(
        "dates in many formats, and in ISO 8601",
        lambda c, folder, special: load_dates(c.data, c.loop.seed, special),
        PARALLEL,
    ),
    "adjacent": DataKind(
        "pairs of sentences that are adjacent in a text or not",
        lambda c, folder, special: load_adjacent(c.data, folder, c.loop.seed, special),
        **LABELLED,
    ),
    "inverted": DataKind("a sentence and its inversion, or another's", _grammar, **LABELLED),
    "entailed": DataKind("a sentence and a claim that follows or does not", _grammar, **LABELLED),
    "snippets": DataKind(
        "snippets of Python's own library, by package",
        lambda c, folder, special: load_snippets(c.data, c.loop.seed, special),
        **LABELLED,
    ),
    "parallel": DataKind(
        "sentences in two languages, line by line",
        lambda c, folder, special: load_parallel(c.data, special),
        PARALLEL,
    ),
}


def load_data(config: TrainConfig, folder: Path) -> Data:
    """Return the data that a config names; a ConfigError where its objective needs others."""
    kind, objective = _known("data.name", config.data.name, DATA), objective_kind(config)
    if not set(objective.needs) <= set(kind.has):
        fitting = [name for name, data in DATA.items() if set(objective.needs) <= set(data.has)]
        raise ConfigError(
            f"the objective `{config.objective.name}` needs samples with "
            f"{', '.join(objective.needs)}, and those of the data `{config.data.name}` have "
            f"{', '.join(kind.has)}; data.name for it is {' or '.join(fitting)}"
        )
    wanted = {*kind.special, *objective.special}
    data = kind.load(config, folder, tuple(name for name in SPECIAL if name in wanted))
    for split, source in (("to train on", data.train), ("to evaluate on", data.valid)):
        if not len(source):
            raise DataError(f"the data `{config.data.name}` have no sample {split}")
    return data


def objective_kind(config: TrainConfig) -> ObjectiveKind:
    """Return the kind of objective that a config names."""
    return _known("objective.name", config.objective.name, OBJECTIVES)


def make_model(config: ModelConfig, objective: str, facts: Facts) -> nn.Module:
    """Return the model that a config names, of sizes that fit the data; any target will do too."""
    if ":" in config.name or "/" in config.name:
        return _target(config.name, facts)
    _known("model.name", config.name, PRESETS)
    open_sizes, sizes = preset_sizes(config.name), _sizes(config, facts)
    fitting = {name: size for name, size in sizes.items() if name in open_sizes}
    try:
        model_config = _with_dropout(preset(config.name, fitting), config.dropout)
        if objective == "classes":
            if not isinstance(model_config, EncoderConfig):
                raise ConfigError("the objective `classes` trains an encoder, such as `bert`")
            model_config = replace(model_config, head=ClassHead(facts.classes))
        return build(model_config)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the model `{config.name}` cannot be built: {error}") from error


def _target(name: str, facts: Facts) -> nn.Module:
    """Return the model of a target; an architecture of Hugging Face gets the data's vocabulary."""
    target = build_target(name)
    model: Any = target.model
    if target.kind == "hf" and facts.vocabulary > model.get_input_embeddings().num_embeddings:
        with quiet():
            model.resize_token_embeddings(facts.vocabulary)
    return model


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
