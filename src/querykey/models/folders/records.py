"""Configs as JSON and back: a frozen value is an object with its class and its fields."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from querykey.attention import (
    ALiBi,
    Argmax,
    EluPlusOne,
    Kernel,
    Polynomial,
    Quadratic,
    RandomFeatures,
    Rotary,
    Softmax,
    Taylor,
)
from querykey.models.autoencoders import patches, vectors
from querykey.models.folders.families import rope
from querykey.models.folders.families.family import FolderError
from querykey.models.text import config
from querykey.models.vision import davit, transformer
from querykey.nn import AttentionConfig, BlockConfig, MLPConfig, NormConfig

# The values that a config is made of, by the name that config.json gives to each.
KNOWN: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        config.DecoderConfig, config.EncoderConfig, config.EncoderDecoderConfig,
        config.EmbeddingConfig, config.Special, config.TokenHead, config.ClassHead, config.PairHead,
        config.Learned,
        config.Sinusoidal, config.Distances, Rotary, ALiBi,
        AttentionConfig, MLPConfig, NormConfig, BlockConfig,
        Softmax, Argmax, Kernel, Quadratic, Polynomial, EluPlusOne, Taylor, RandomFeatures,
        rope.Llama3, rope.Yarn, transformer.VisionTransformerConfig,
        davit.DaViTConfig, davit.Stage, vectors.AutoencoderConfig, vectors.Noise,
        vectors.Hide, patches.PatchAutoencoderConfig,
    )
} | {"Linear": rope.LinearScaling}  # fmt: skip
NAMES: dict[type, str] = {kind: name for name, kind in KNOWN.items()}


def to_record(value: Any) -> Any:
    """Return a frozen value as objects, lists and numbers that JSON has."""
    if isinstance(value, tuple):
        return [to_record(part) for part in value]
    if is_dataclass(value) and type(value) in NAMES:
        own = {field.name: to_record(getattr(value, field.name)) for field in fields(value)}
        return {"is": NAMES[type(value)]} | own
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise FolderError(f"config.json: {value!r} cannot be written down")


def from_record(record: Any) -> Any:
    """Return the frozen value that `to_record` was called with."""
    if isinstance(record, list):
        return tuple(from_record(part) for part in record)
    if not isinstance(record, dict):
        return record
    kind = KNOWN.get(record.get("is", ""))
    if kind is None:
        raise FolderError(f"config.json: there is no {record.get('is')!r}")
    try:
        return kind(**{name: from_record(part) for name, part in record.items() if name != "is"})
    except (TypeError, ValueError) as error:
        raise FolderError(f"config.json: {kind.__name__}: {error}") from None


def same(one: Any, other: Any) -> bool:
    """Whether two configs describe one model: sizes that a config leaves out count as given."""
    return type(one) is type(other) and _filled(to_record(one)) == _filled(to_record(other))


def _filled(record: Any) -> Any:
    """Return a config's JSON with the sizes that it leaves out, and with sets in order."""
    if isinstance(record, list):
        return [_filled(part) for part in record]
    if not isinstance(record, dict):
        return record
    record = {name: _filled(part) for name, part in record.items()}
    if record["is"] == "BlockConfig":
        attention: AttentionConfig = from_record(record["attention"])
        kv_heads, key_dim, value_dim = attention.sizes(record["width"])
        record["attention"] |= {"kv_heads": kv_heads, "key_dim": key_dim, "value_dim": value_dim}
        record["attention"]["biases"] = sorted(attention.biases)
        # Not every family knows of every dropout; it is no part of what a model computes.
        record["attention"]["dropout"] = 0.0
        record |= {"residual": sorted(record["residual"]), "dropout": 0.0}
    if record["is"] == "EmbeddingConfig":
        record["untrained"] = None  # nor is which row is trained
    if record["is"] == "DecoderConfig":
        decoder: config.DecoderConfig = from_record(record)
        record["windows"] = list(decoder.window_of_each)
    if record["is"] == "EncoderConfig" and isinstance(record["positions"], dict):
        skipped = record["positions"].get("skip")  # RoBERTa has one id for both
        record["embedding"]["special"] |= {} if skipped is None else {"pad": skipped}
    return record
