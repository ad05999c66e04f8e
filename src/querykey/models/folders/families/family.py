"""Family: how models of one Hugging Face family are read and written, and the FolderError."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from querykey.errors import QuerykeyError
from querykey.models.text.config import EmbeddingConfig, Special

Settings = dict[str, Any]  # config.json


class FolderError(QuerykeyError):
    """An error about a folder of weights; it names the file, and the tensor where there is one."""


@dataclass(frozen=True)
class Origin:
    """What a model's own config does not hold of the config.json that it was loaded from."""

    model_type: str = ""
    kept: Settings = field(default_factory=dict)  # entries that a round trip writes again


@dataclass(frozen=True)
class Row:
    """One line of a family's table: the name of a module or parameter there, and our name for it.

    {i} stands for the number of the layer. Where several of ours are named, their tensor is ours
    joined along the first axis.
    """

    theirs: str
    ours: str | tuple[str, ...]
    layout: Literal["same", "transposed"] = "same"


@dataclass(frozen=True)
class Entries:
    """The entries of config.json that a family reads, and what a missing one means."""

    defaults: Settings
    # Defaults of one model type that differ from those of the family.
    variants: Mapping[str, Settings] = field(default_factory=dict)
    # Other names of entries, which count before ours, as in `transformers`.
    aliases: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()  # entries that mean nothing to our config; see Origin

    def defaults_of(self, model_type: Any) -> Settings:
        """Return what a missing entry means in a config.json of this type."""
        return self.defaults | self.variants.get(model_type, {})


@dataclass(frozen=True)
class TensorNames:
    """What the names of tensors in a folder may be, beside those in the family's table."""

    prefix: str  # of the names in folders with a head; those without have no prefix
    ignored: tuple[str, ...] = ()  # names, or their ends, that hold nothing we need
    dropped: tuple[str, ...] = ()  # ends of what was learned, but has no place in some models
    # Names of a tied head, or their ends, and the end of our name of what they repeat.
    copies: Mapping[str, str] = field(default_factory=dict)
    # The end of a name, and the other name that a tied tensor may have been stored under instead.
    aliases: tuple[tuple[str, str], ...] = ()
    # Names that `transformers` misses though nothing reads them, and those that they then repeat.
    repeats: Mapping[str, str] = field(default_factory=dict)
    # A head that is tied where it equals the embedding, whatever config.json says.
    tied_if_equal: str | None = None


@dataclass(frozen=True)
class Family:
    """How a folder with one of these model types is read, and how one of our configs is written.

    `read` gets config.json with the defaults filled in and the names of all tensors. `write`
    returns config.json, or None for a config that the family cannot express.
    """

    types: tuple[str, ...]  # model_type in config.json; we write the first, or the origin's
    entries: Entries
    names: TensorNames
    rows: Callable[[Any], tuple[Row, ...]]  # the table, for one of our configs
    read: Callable[[Settings, frozenset[str]], Any]
    write: Callable[[Any], Settings | None]

    def table(self, config: Any, layers: int) -> Iterator[Row]:
        """Yield the rows for a config, those of a layer once for every layer."""
        for row in self.rows(config):
            names = (row.ours,) if isinstance(row.ours, str) else row.ours
            for i in range(layers) if "{i}" in row.theirs else (0,):
                ours = tuple(name.replace("{i}", str(i)) for name in names)
                yield Row(row.theirs.replace("{i}", str(i)), ours, row.layout)


def read_special(settings: Settings) -> Special:
    """Return the special tokens that the entries of config.json name."""
    ends = settings.get("eos_token_id")
    return Special(
        settings.get("bos_token_id"),
        () if ends is None else tuple(ends) if isinstance(ends, list) else (ends,),
        settings.get("pad_token_id"),
    )


def untrained(settings: Settings) -> int | None:
    """Return the token whose row gets no gradient: padding, where it is a row of the table."""
    pad = settings.get("pad_token_id")
    return None if pad is None or pad < 0 else pad


def write_special(embedding: EmbeddingConfig) -> Settings:
    """Return the entries of config.json for a model's special tokens."""
    special = embedding.special
    ends = list(special.eos) if len(special.eos) > 1 else next(iter(special.eos), None)
    return {"bos_token_id": special.bos, "eos_token_id": ends, "pad_token_id": special.pad}


ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick-gelu",
    "tanh": "tanh",
    "linear": "identity",
}
THEIR_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu-tanh": "gelu_new",
    "silu": "silu",
    "quick-gelu": "quick_gelu",
    "tanh": "tanh",
    "identity": "linear",
}


def activation(settings: Settings, key: str) -> str:
    """Return our name of an activation that config.json names."""
    name = settings[key]
    if name not in ACTIVATIONS:
        raise FolderError(f"config.json: `{key}` is {name!r}, an activation that we do not have")
    return ACTIVATIONS[name]


def only(settings: Settings, **wanted: Any) -> None:
    """Raise a FolderError for the first setting that is not the value wanted."""
    for key, value in wanted.items():
        if settings.get(key, value) != value:
            raise FolderError(f"config.json: `{key}` is {settings[key]!r}; we have only {value!r}")


def both_ways(settings: Settings) -> None:
    """Refuse an encoder whose tokens are not to see what comes after them."""
    if settings.get("is_causal"):
        raise FolderError(
            f"config.json: `is_causal` is {settings['is_causal']!r}; "
            "the tokens of our encoders see each other both ways"
        )


def architecture(settings: Settings, names: tuple[str, ...]) -> str:
    """Return the class that the folder was saved from; the first of `names` where none is named."""
    named = settings.get("architectures") or names[:1]
    if named[0] not in names:
        raise FolderError(
            f"config.json: the architecture {named[0]!r} is not one that we have "
            f"({', '.join(names)})"
        )
    return named[0]
