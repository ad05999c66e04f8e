"""From the names in a config to the data and the objective that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from querykey.models import PatchAutoencoder
from querykey.train.config import ConfigError, DataConfig, ObjectiveConfig, TrainConfig
from querykey.train.data.images import load_digits, load_mnist, load_vectors
from querykey.train.data.parallel import load_parallel
from querykey.train.data.sentences import load_adjacent, load_grammar, load_snippets
from querykey.train.data.source import Data, DataError, Facts
from querykey.train.data.tasks import load_copy, load_dates, load_recall
from querykey.train.data.text import load_text
from querykey.train.data.tokenizers import SPECIAL, Tokenizer, TokenizerMaker, make_tokenizer
from querykey.train.objectives.images import HiddenPatches, ImageClass, Reconstruction
from querykey.train.objectives.objective import Objective
from querykey.train.objectives.text import (
    HiddenTokens,
    NextToken,
    TextClass,
    Translation,
    WordsAndPairs,
)
from querykey.words import checked, suggest

SHARE = 0.15  # of tokens or features, unless a config says how many are hidden


@dataclass(frozen=True)
class DataKind:
    """Data by name: what it is, how it is loaded, and what its samples have.

    `load` takes the config, a folder for files that are mapped into memory, and what makes the
    tokenizer.
    """

    says: str
    load: Callable[[TrainConfig, Path, TokenizerMaker], Data]
    has: tuple[str, ...]
    special: tuple[str, ...] = ()  # tokens that its samples have, whatever the objective
    path: bool = False  # whether it reads what data.path names


@dataclass(frozen=True)
class ObjectiveKind:
    """An objective by name: what it predicts, how it is made, and what it needs of the data."""

    says: str
    make: Callable[[ObjectiveConfig, Facts, Any], Objective]
    needs: tuple[str, ...]
    special: tuple[str, ...] = ()  # tokens that it adds to those of the data


def _text(config: TrainConfig, folder: Path, make: TokenizerMaker) -> Data:
    return load_text(config.data, folder, config.loop.seed, make)


def _grammar(config: TrainConfig, folder: Path, make: TokenizerMaker) -> Data:
    return load_grammar(config.data, config.loop.seed, make)


def _special(facts: Facts, name: str) -> int:
    assert facts.tokenizer is not None  # an objective with special tokens needs one
    return facts.tokenizer.special[name]


def _patches(config: ObjectiveConfig, facts: Facts, model: Any) -> HiddenPatches:
    if not isinstance(model, PatchAutoencoder):
        raise ConfigError(
            "the objective `hidden-patches` trains a patch autoencoder; model.name is "
            "`masked-patches`, or a target that builds a querykey.models.PatchAutoencoder"
        )
    tokens, visible = model.config.tokens, model.config.visible
    if config.share:
        visible = tokens - round(config.share * tokens)
        if not 0 < visible < tokens:
            raise ConfigError(
                f"objective.share: a share of {config.share:g} of {tokens} patches leaves "
                f"{visible} visible, and some are hidden and some are not"
            )
    return HiddenPatches(tokens, visible)


def _hidden_tokens(config: ObjectiveConfig, facts: Facts) -> HiddenTokens:
    assert facts.tokenizer is not None  # the objective needs one
    special = facts.tokenizer.special
    return HiddenTokens(
        config.share or SHARE, special["mask"], facts.vocabulary - len(special), facts.length,
        kept=tuple(special.values()),
    )  # fmt: skip


OBJECTIVES: dict[str, ObjectiveKind] = {
    "causal": ObjectiveKind(
        "the next token", lambda config, facts, model: NextToken(), needs=("tokens",)
    ),
    "masked": ObjectiveKind(
        "hidden tokens, as BERT's masked words",
        lambda config, facts, model: _hidden_tokens(config, facts),
        needs=("tokens", "tokenizer"), special=("mask",),
    ),
    "words-and-pairs": ObjectiveKind(
        "hidden tokens and the class of a pair at once, as BERT's pretraining",
        lambda config, facts, model: WordsAndPairs(_hidden_tokens(config, facts), TextClass()),
        needs=("tokens", "tokenizer", "label"), special=("mask",),
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
        lambda config, facts, model: Reconstruction(share=config.share or SHARE), needs=("vector",),
    ),
    "hidden-patches": ObjectiveKind(
        "hidden patches of images, from the others", _patches, needs=("image",)
    ),
}  # fmt: skip

TEXT, PARALLEL = ("tokens", "tokenizer"), ("source", "target", "tokenizer")
LABELLED = {"has": ("tokens", "tokenizer", "label"), "special": ("begin", "separate")}
IMAGE = ("image", "vector", "label")  # an image is read as a vector too

DATA: dict[str, DataKind] = {
    "stdlib": DataKind("the source of Python's own library", _text, TEXT, path=True),
    "text": DataKind("any text: a file, or a folder of files", _text, TEXT, path=True),
    "mnist": DataKind(
        "MNIST in its idx files",
        lambda c, folder, make: load_mnist(c.data, c.loop.seed),
        IMAGE,
        path=True,
    ),
    "digits": DataKind(
        "scikit-learn's digits", lambda c, folder, make: load_digits(c.data, c.loop.seed), IMAGE
    ),
    "vectors": DataKind(
        "generated vectors: 100 features, of which 20 directions decide the class",
        lambda c, folder, make: load_vectors(c.data, c.loop.seed),
        ("vector", "label"),
    ),
    "copy": DataKind(
        "a word, a mark, the word again",
        lambda c, folder, make: load_copy(c.data, c.loop.seed),
        ("tokens",),
    ),
    "recall": DataKind(
        "pairs of keys and values, then a key whose value is asked",
        lambda c, folder, make: load_recall(c.data, c.loop.seed),
        ("tokens",),
    ),
    "dates": DataKind(
        "dates in many formats, and in ISO 8601",
        lambda c, folder, make: load_dates(c.data, c.loop.seed, make),
        PARALLEL,
    ),
    "adjacent": DataKind(
        "pairs of sentences that are adjacent in a text or not",
        lambda c, folder, make: load_adjacent(c.data, folder, c.loop.seed, make),
        **LABELLED,
        path=True,
    ),
    "inverted": DataKind("a sentence and its inversion, or another's", _grammar, **LABELLED),
    "entailed": DataKind("a sentence and a claim that follows or does not", _grammar, **LABELLED),
    "snippets": DataKind(
        "snippets of Python's own library, by package",
        lambda c, folder, make: load_snippets(c.data, c.loop.seed, make),
        **LABELLED,
    ),
    "parallel": DataKind(
        "sentences in two languages, line by line",
        lambda c, folder, make: load_parallel(c.data, make),
        PARALLEL,
        path=True,
    ),
}

# Fields that one kind of data has alone: whose, and what they say.
OWN_FIELDS = {
    "classes": ("vectors", "how many classes `vectors` have"),
    "queries": ("recall", "how many keys of `recall` are asked"),
    "unlabelled": ("snippets", "whether `snippets` of other packages are read too"),
}


@checked
def load_data(
    config: TrainConfig, folder: Path | None = None, tokenizer: Tokenizer | None = None
) -> Data:
    """Return the data that a config names; a ConfigError where its objective needs others.

    Files that are mapped into memory lie in `folder`, by default that of the config's run.
    `tokenizer` is the one that this run has made before; without it one is made from the data.
    """
    folder = folder or Path(config.folder, "data")
    kind, objective = known("data.name", config.data.name, DATA), objective_kind(config)
    _check_samples(config, kind, objective)
    _check_fields_of_data(config, kind)
    wanted = {*kind.special, *objective.special}
    special = tuple(name for name in SPECIAL if name in wanted)

    def make(name: str, texts: Iterable[str], vocabulary: int) -> Tokenizer:
        return tokenizer or make_tokenizer(name, texts, vocabulary, special)

    data = kind.load(config, folder, make)
    for split, source in (("to train on", data.train), ("to evaluate on", data.valid)):
        if not len(source):
            raise DataError(f"the data `{config.data.name}` have no sample {split}")
    return data


def _check_samples(config: TrainConfig, kind: DataKind, objective: ObjectiveKind) -> None:
    """Refuse data whose samples lack what the objective needs."""
    if not set(objective.needs) <= set(kind.has):
        fitting = [name for name, data in DATA.items() if set(objective.needs) <= set(data.has)]
        raise ConfigError(
            f"the objective `{config.objective.name}` needs samples with "
            f"{', '.join(objective.needs)}, and those of the data `{config.data.name}` have "
            f"{', '.join(kind.has)}; data.name for it is {' or '.join(fitting)}"
        )


def _check_fields_of_data(config: TrainConfig, kind: DataKind) -> None:
    """Refuse fields that these data have no use for."""
    if config.data.path and not kind.path:
        raise ConfigError(
            f"data.path names what is read, and the data `{config.data.name}` read nothing; "
            f"leave it out"
        )
    if config.data.documents and kind.load is not _text:
        raise ConfigError(
            f"data.documents tells the files of a text apart, and the data "
            f"`{config.data.name}` are none; leave it out"
        )
    if config.data.shift and "image" not in kind.has:
        raise ConfigError(
            f"data.shift moves images, and the data `{config.data.name}` are none; leave it out"
        )
    for field, (owner, says) in OWN_FIELDS.items():
        default = getattr(DataConfig, field)
        if getattr(config.data, field) != default and config.data.name != owner:
            raise ConfigError(
                f"data.{field} is {says}, and the data `{config.data.name}` are none; leave it out"
            )
    if config.data.unlabelled and config.objective.name != "words-and-pairs":
        raise ConfigError(
            f"data.unlabelled adds snippets without a label, of which the objective "
            f"`{config.objective.name}` learns nothing; objective.name for it is words-and-pairs"
        )


def objective_kind(config: TrainConfig) -> ObjectiveKind:
    """Return the kind of objective that a config names."""
    return known("objective.name", config.objective.name, OBJECTIVES)


def known(field: str, name: str, table: dict[str, Any]) -> Any:
    """Return the entry of a table, or raise the ConfigError that names the nearest one."""
    if name not in table:
        raise ConfigError(
            f"{field}: there is no `{name}`{suggest(name, table)} (there is {', '.join(table)})"
        )
    return table[name]
