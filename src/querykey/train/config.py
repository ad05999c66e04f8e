"""What a training run is, as frozen values; read from TOML and from flags of the command line.

    config = read_config("config.toml", {"steps": "500", "data-name": "text"})

A flag names a field (`steps`), with its section where several have one of that name (`data-name`).
"""

from __future__ import annotations

import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from querykey.errors import QuerykeyError
from querykey.words import check_fields, checked, last_line, share, suggest, whole

MOST_LAYERS = 10_000  # as many as targets have at most


class ConfigError(QuerykeyError):
    """Says which field of a training configuration is wrong, and what it should be."""


@dataclass(frozen=True)
class DataConfig:
    """Where samples come from, and how text becomes tokens."""

    name: Annotated[str, "the data set, one of those above"] = "stdlib"
    path: Annotated[str, "the file or folder to read; empty: generated, or below QUERYKEY_DATA"] = (
        ""
    )
    tokenizer: Annotated[Literal["bytes", "characters", "bpe"], "how text becomes tokens"] = "bytes"
    vocabulary: Annotated[int, "entries of the bpe tokenizer"] = 1024
    length: Annotated[int, "the most tokens of a sample"] = 64
    documents: Annotated[bool, "text: a token sees only tokens of its own file"] = False
    samples: Annotated[int, "number of samples of a generated task"] = 10000
    queries: Annotated[int, "recall: how many of the keys that were shown are asked"] = 1
    classes: Annotated[int, "vectors: number of classes"] = 2
    unlabelled: Annotated[bool, "snippets: add those of other packages, without a label"] = False
    shift: Annotated[int, "images: the most pixels by which a training image is moved"] = 0
    source: Annotated[str, "parallel text: how files of the source language end"] = "de"
    target: Annotated[str, "parallel text: how files of the target language end"] = "en"

    def __post_init__(self):
        check_fields(self)
        _check(self, whole, "vocabulary", "length", "samples", "queries")
        _check(self, lambda name, value: whole(name, value, least=2), "classes")
        _check(self, lambda name, value: whole(name, value, least=0), "shift")


@dataclass(frozen=True)
class ModelConfig:
    """A model by name, and its sizes where the name leaves them open."""

    name: Annotated[str, "a preset, or any target such as hf:gpt2"] = "gpt"
    layers: Annotated[int, "number of layers"] = 4
    heads: Annotated[int, "number of attention heads"] = 4
    width: Annotated[int, "features of a token"] = 128
    dropout: Annotated[float, "share of features that dropout sets to 0"] = 0.0
    latent: Annotated[int, "features of an autoencoder's code"] = 20
    patch: Annotated[int, "images: the side of a patch, in pixels"] = 4
    weights: Annotated[
        Literal["paper", "inputs"],
        "initial weights of a preset, as in papers (0.02) or of variance 1 / inputs",
    ] = "paper"

    def __post_init__(self):
        check_fields(self)
        _check(self, whole, "layers", "heads", "width", "latent", "patch")
        if self.layers > MOST_LAYERS:
            raise ConfigError(f"layers is at most {MOST_LAYERS}; got {self.layers}")
        _check(self, share, "dropout")


@dataclass(frozen=True)
class ObjectiveConfig:
    """What the model is trained to do."""

    name: Annotated[str, "what is predicted"] = "causal"
    share: Annotated[float, "share of the input that is hidden; 0: 0.15, or 0.75 of patches"] = 0.0
    noise: Annotated[float, "standard deviation of a denoising autoencoder's noise"] = 0.5

    def __post_init__(self):
        check_fields(self)
        _check(self, share, "share")
        _check(self, _not_negative, "noise")


@dataclass(frozen=True)
class OptimizerConfig:
    """How weights follow gradients."""

    name: Annotated[Literal["adamw", "sgd"], "the optimizer"] = "adamw"
    rate: Annotated[float, "the learning rate"] = 1e-3
    schedule: Annotated[Literal["cosine", "constant", "linear"], "how the rate falls"] = "cosine"
    warmup: Annotated[int, "steps over which the rate rises from 0"] = 0
    decay: Annotated[float, "weight decay, for matrices only"] = 0.1
    clip: Annotated[float, "the largest norm of the gradient; 0: no clipping"] = 1.0
    betas: Annotated[tuple[float, float], "AdamW: its two betas"] = (0.9, 0.99)
    momentum: Annotated[float, "SGD: its momentum"] = 0.0

    def __post_init__(self):
        check_fields(self)
        _check(self, lambda name, value: whole(name, value, least=0), "warmup")
        _check(self, _not_negative, "rate", "decay", "clip")
        _check(self, share, "momentum")
        for beta in self.betas:
            share("each of betas", beta)


@dataclass(frozen=True)
class LoopConfig:
    """How long, how much at once, and how often something is written."""

    steps: Annotated[int, "number of optimizer steps"] = 2000
    batch: Annotated[int, "samples per step, over all ranks and pieces"] = 12
    pieces: Annotated[int, "gradient accumulation: backward passes per step on each rank"] = 1
    precision: Annotated[
        Literal["float32", "bfloat16", "float64"],
        "precision of the computation",
    ] = "float32"
    compile: Annotated[bool, "run the model through torch.compile"] = False
    seed: Annotated[int, "seed of weights, data and dropout"] = 0
    evaluate_every: Annotated[int, "steps between evaluations; 0: only at the end"] = 250
    save_every: Annotated[int, "steps between checkpoints; 0: only at the end"] = 500
    keep: Annotated[int, "number of checkpoints to keep"] = 2
    device: Annotated[str, "where to compute: auto, cpu or cuda"] = "auto"
    shard: Annotated[bool, "on several ranks: FSDP2 instead of DDP"] = False

    def __post_init__(self):
        check_fields(self)
        _check(self, whole, "steps", "batch", "pieces", "keep")
        _check(
            self,
            lambda name, value: whole(name, value, least=0),
            "seed", "evaluate_every", "save_every",
        )  # fmt: skip


@dataclass(frozen=True)
class TrainConfig:
    """One training run: its folder, and one section for each part of it."""

    folder: Annotated[str, "the folder of the run"] = "runs/run"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)

    def __post_init__(self):
        check_fields(self)
        if not self.folder or "\0" in self.folder:
            raise ConfigError(f"folder names where the run is written; got {self.folder!r}")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, section by section."""
        return asdict(self)


SECTIONS = tuple(f.name for f in fields(TrainConfig) if f.name != "folder")


@checked
def read_config(
    source: str | Path | Mapping[str, Any] | None = None, flags: Mapping[str, str] | None = None
) -> TrainConfig:
    """Return the config of a TOML file (or of a dict of sections), with flags put on top."""
    values = read_toml(source) if isinstance(source, str | Path) else dict(source or {})
    where = f"`{source}`" if isinstance(source, str | Path) else "the configuration"
    values = {name: dict(v) if isinstance(v, Mapping) else v for name, v in values.items()}
    for flag, text in (flags or {}).items():
        section, name = _place(flag)
        target = values if section is None else values.setdefault(section, {})
        if not isinstance(target, dict):
            raise ConfigError(f"`{section}` in {where} is a section, written [{section}]")
        target[name] = text
    return _build(TrainConfig, values, where)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the values of a TOML file, or raise the ConfigError that says what is wrong."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError is a ValueError
        raise ConfigError(f"`{path}` is no TOML: {last_line(error)}") from error


def flag_names() -> dict[str, tuple[str | None, str]]:
    """Return each flag with the section and the field that it sets."""
    names: dict[str, tuple[str | None, str]] = {"folder": (None, "folder")}
    owners: dict[str, list[str]] = {}
    for section in SECTIONS:
        for f in fields(_section_type(section)):
            names[f"{section}-{f.name}".replace("_", "-")] = (section, f.name)
            owners.setdefault(f.name.replace("_", "-"), []).append(section)
    for name, sections in owners.items():
        if len(sections) == 1 and name not in names:
            names[name] = (sections[0], name.replace("-", "_"))
    return names


def meanings() -> dict[tuple[str | None, str], str]:
    """Return what each field means, with its choices, by its section and name."""
    hints = {None: typing.get_type_hints(TrainConfig, include_extras=True)}
    hints |= {s: typing.get_type_hints(_section_type(s), include_extras=True) for s in SECTIONS}
    return {
        (section, name): hint.__metadata__[0] + _choices(hint.__origin__)
        for section, kinds in hints.items()
        for name, hint in kinds.items()
        if typing.get_origin(hint) is Annotated
    }


def _choices(kind: Any) -> str:
    """Return the values that a field may have, where they can be listed."""
    listed = typing.get_origin(kind) is Literal
    return f": {', '.join(typing.get_args(kind))}" if listed else ""


def _section_type(section: str) -> type:
    return typing.get_type_hints(TrainConfig)[section]


def _place(flag: str) -> tuple[str | None, str]:
    names, flag = flag_names(), flag.replace("_", "-")
    if flag not in names:
        sections = [name for name in names if name.endswith(f"-{flag}")]
        if sections:
            several = " or ".join(f"--{name}" for name in sections)
            raise ConfigError(f"`--{flag}` is in several sections; write {several}")
        raise ConfigError(f"there is no field `{flag}`{suggest(flag, names)}")
    return names[flag]


def _build(kind: type, values: Mapping[str, Any], where: str) -> Any:
    """Return the dataclass with these values, each of its field's type."""
    hints = typing.get_type_hints(kind)
    for name in values:
        if name not in hints:
            raise ConfigError(f"{where} has no field `{name}`{_nearest(name, hints)}")
    arguments = {}
    for name, value in values.items():
        if is_dataclass(hints[name]):
            if not isinstance(value, Mapping):
                raise ConfigError(f"`{name}` in {where} is a section, written [{name}]")
            arguments[name] = _build(hints[name], value, f"[{name}] of {where}")
        else:
            arguments[name] = _converted(name, value, hints[name], where)
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _nearest(name: str, hints: Mapping[str, Any]) -> str:
    """Say which sections have a field of this very name; else which field here has the nearest."""
    owners = [s for s in SECTIONS if name in typing.get_type_hints(_section_type(s))]
    places = " or ".join(f"[{section}]" for section in owners)
    if owners:
        return f"; it belongs to {places}"
    names = (f"[{n}]" if is_dataclass(kind) else n for n, kind in hints.items())
    return suggest(name, hints) or f" (there is {', '.join(names)})"


def _converted(name: str, value: Any, hint: Any, where: str) -> Any:
    """Return a TOML value, or the text of a flag, as a value of the field's type."""
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value in choices:
            return value
        wanted = f"one of {', '.join(map(str, choices))}{suggest(str(value), map(str, choices))}"
    elif origin is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if isinstance(parts, list | tuple) and len(parts) == len(choices):
            pairs = zip(parts, choices, strict=True)
            return tuple(_converted(name, part, kind, where) for part, kind in pairs)
        wanted = f"{len(choices)} numbers"
    else:
        assert not isinstance(hint, types.UnionType)
        converted = _scalar(value, hint)
        if converted is not None:
            return converted
        wanted = {int: "a whole number", float: "a number", bool: "true or false"}.get(
            hint, "a text"
        )
    raise ConfigError(f"`{name}` in {where} is {wanted}; got {value!r}")


def _scalar(value: Any, kind: type) -> Any:
    """Return the value as an int, float, bool or str; None where it is none."""
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return value if isinstance(value, bool) else words.get(str(value).lower())
    if kind is str:
        return value if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = kind(value)
    except (ValueError, OverflowError):
        return None
    return None if kind is int and isinstance(value, float) else number


def _check(config: Any, rule: Any, *names: str) -> None:
    for name in names:
        rule(name, getattr(config, name))


def _not_negative(name: str, value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} is a finite number, at least 0; got {value}")
