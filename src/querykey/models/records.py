"""Configs as JSON and back: every frozen value by the name of its class and its fields."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from querykey.attention import features, mechanisms, positions
from querykey.models import autoencoder, config, davit, patches, vision
from querykey.models.families import rope
from querykey.models.families.table import FolderError
from querykey.nn import config as blocks

KNOWN = {
    kind.__name__: kind
    for kind in (
        config.DecoderConfig, config.EncoderConfig, config.EncoderDecoderConfig,
        config.EmbeddingConfig, config.Special, config.TokenHead, config.ClassHead, config.Learned,
        config.Sinusoidal, config.Distances, positions.Rotary, positions.ALiBi,
        blocks.AttentionConfig, blocks.MLPConfig, blocks.NormConfig, blocks.BlockConfig,
        mechanisms.Softmax, mechanisms.Argmax, mechanisms.Kernel, features.Quadratic,
        features.Polynomial, features.EluPlusOne, features.Taylor, features.RandomFeatures,
        rope.Linear, rope.Llama3, rope.Yarn, vision.VisionTransformerConfig,
        davit.DaViTConfig, davit.Stage, autoencoder.AutoencoderConfig, autoencoder.Noise,
        autoencoder.Hide, patches.PatchAutoencoderConfig,
    )
}  # fmt: skip


def to_record(value: Any) -> Any:
    """Return JSON for a frozen value."""
    if isinstance(value, tuple):
        return [to_record(each) for each in value]
    if is_dataclass(value) and type(value).__name__ in KNOWN:
        own = {field.name: to_record(getattr(value, field.name)) for field in fields(value)}
        return {"is": type(value).__name__} | own
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise FolderError(f"config.json: {value!r} cannot be written down")


def from_record(record: Any) -> Any:
    """Return the frozen value that `to_record` has written."""
    if isinstance(record, list):
        return tuple(from_record(each) for each in record)
    if not isinstance(record, dict):
        return record
    kind = KNOWN.get(record.get("is", ""))
    if kind is None:
        raise FolderError(f"config.json: there is no {record.get('is')!r}")
    try:
        return kind(**{name: from_record(each) for name, each in record.items() if name != "is"})
    except (TypeError, ValueError) as error:
        raise FolderError(f"config.json: {kind.__name__}: {error}") from None
