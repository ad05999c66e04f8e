"""ViT: an encoder over patches, norm before, learned positions, one token for the whole image."""

from __future__ import annotations

from querykey.models.folders.families.family import (
    THEIR_ACTIVATIONS,
    Entries,
    Family,
    FolderError,
    Row,
    Settings,
    TensorNames,
    activation,
    architecture,
    both_ways,
)
from querykey.models.text.config import ClassHead
from querykey.models.vision.transformer import VisionTransformerConfig
from querykey.nn import AttentionConfig, BlockConfig, MLPConfig, NormConfig

LAYER, BLOCK = "vit.encoder.layer.{i}", "blocks.{i}"
ROWS = (
    Row("vit.embeddings.cls_token", "whole"),
    Row("vit.embeddings.position_embeddings", "positions"),
    Row("vit.embeddings.patch_embeddings.projection", "patches"),
    Row(f"{LAYER}.layernorm_before", f"{BLOCK}.attention_norm"),
    Row(f"{LAYER}.attention.attention.query", f"{BLOCK}.attention.q"),
    Row(f"{LAYER}.attention.attention.key", f"{BLOCK}.attention.k"),
    Row(f"{LAYER}.attention.attention.value", f"{BLOCK}.attention.v"),
    Row(f"{LAYER}.attention.output.dense", f"{BLOCK}.attention.o"),
    Row(f"{LAYER}.layernorm_after", f"{BLOCK}.mlp_norm"),
    Row(f"{LAYER}.intermediate.dense", f"{BLOCK}.mlp.up"),
    Row(f"{LAYER}.output.dense", f"{BLOCK}.mlp.down"),
    Row("vit.layernorm", "norm"),
    Row("vit.pooler.dense", "pooler"),
    Row("classifier", "head.output"),
)
DEFAULTS: Settings = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224,
    "intermediate_size": 3072, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "patch_size": 16,
    "num_channels": 3, "qkv_bias": True, "pooler_act": "tanh", "pooler_output_size": None,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def read(settings: Settings, names: frozenset[str]) -> VisionTransformerConfig:
    """Return our config for the entries of config.json."""
    both_ways(settings)
    kind = architecture(settings, ("ViTModel", "ViTForImageClassification"))
    pools = kind == "ViTModel" and any(name.endswith("pooler.dense.weight") for name in names)
    width = settings["hidden_size"]
    if pools and settings["pooler_output_size"] not in (None, width):
        raise FolderError(
            f"config.json: `pooler_output_size` is {settings['pooler_output_size']}; "
            f"we have only the width of the model, {width}"
        )
    classes = len(settings.get("id2label") or ()) or settings.get("num_labels") or 2
    qkv = ("qkv",) if settings["qkv_bias"] else ()
    try:
        return VisionTransformerConfig(
            _pair(settings["image_size"]),
            _pair(settings["patch_size"]),
            BlockConfig(
                width,
                AttentionConfig(
                    settings["num_attention_heads"],
                    biases=(*qkv, "output"),
                    dropout=settings["attention_probs_dropout_prob"],
                ),
                MLPConfig(settings["intermediate_size"], activation(settings, "hidden_act")),
                NormConfig("layer", "before", settings["layer_norm_eps"]),
                dropout=settings["hidden_dropout_prob"],
            ),
            settings["num_hidden_layers"],
            settings["num_channels"],
            None if kind == "ViTModel" else ClassHead(classes),
            activation(settings, "pooler_act") if pools else None,
        )
    except FolderError:
        raise
    except ValueError as error:
        raise FolderError(f"config.json: {error}") from None


def _pair(size: int | list[int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def write(config: object) -> Settings | None:
    """Return the entries of config.json for our config, or None where it is of no such model."""
    if not isinstance(config, VisionTransformerConfig):
        return None
    block, sizes = config.block, (config.image, config.patch)
    image, patch = (side[0] if side[0] == side[1] else list(side) for side in sizes)
    settings: Settings = {
        "architectures": ["ViTModel" if config.head is None else "ViTForImageClassification"],
        "hidden_size": block.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": block.attention.heads,
        "intermediate_size": block.mlp.hidden,
        "hidden_act": THEIR_ACTIVATIONS[block.mlp.activation],
        "layer_norm_eps": float(block.norm.epsilon),
        "image_size": image,
        "patch_size": patch,
        "num_channels": config.channels,
        "qkv_bias": "qkv" in block.attention.biases,
        "pooler_act": THEIR_ACTIVATIONS[config.pooler or "tanh"],
        "pooler_output_size": block.width,
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.attention.dropout,
    }
    if config.head is not None:
        settings["id2label"] = {str(i): f"LABEL_{i}" for i in range(config.head.classes)}
        settings["label2id"] = {f"LABEL_{i}": i for i in range(config.head.classes)}
    return settings


NAMES = TensorNames(
    "vit.", dropped=("pooler.dense.weight", "pooler.dense.bias", "embeddings.mask_token")
)
ENTRIES = Entries(DEFAULTS, kept=("id2label", "label2id"))
VIT = Family(("vit",), ENTRIES, NAMES, lambda config: ROWS, read, write)
