"""Llama, Mistral, Qwen2: rotary positions, shared key heads, a gated MLP, RMS norms, windows."""

from __future__ import annotations

import math
from typing import Any

from querykey.attention import Rotary, Softmax
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
    only,
    read_special,
    untrained,
    write_special,
)
from querykey.models.folders.families.rope import read_rope, write_rope
from querykey.models.text.config import DecoderConfig, EmbeddingConfig, TokenHead
from querykey.nn import AttentionConfig, BlockConfig, MLPConfig, NormConfig

BLOCK = "stack.blocks.{i}"
ROWS = (
    Row("model.embed_tokens", "embed.tokens"),
    Row("model.layers.{i}.input_layernorm", f"{BLOCK}.attention_norm"),
    Row("model.layers.{i}.self_attn.q_proj", f"{BLOCK}.attention.q"),
    Row("model.layers.{i}.self_attn.k_proj", f"{BLOCK}.attention.k"),
    Row("model.layers.{i}.self_attn.v_proj", f"{BLOCK}.attention.v"),
    Row("model.layers.{i}.self_attn.o_proj", f"{BLOCK}.attention.o"),
    Row("model.layers.{i}.post_attention_layernorm", f"{BLOCK}.mlp_norm"),
    Row("model.layers.{i}.mlp.gate_proj", f"{BLOCK}.mlp.gate"),
    Row("model.layers.{i}.mlp.up_proj", f"{BLOCK}.mlp.up"),
    Row("model.layers.{i}.mlp.down_proj", f"{BLOCK}.mlp.down"),
    Row("model.norm", "stack.norm"),
    Row("lm_head", "head.output"),
)
DEFAULTS: Settings = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": None, "head_dim": None, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "max_position_embeddings": 2048,
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MISTRAL_DEFAULTS = DEFAULTS | {
    "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096,
    "max_position_embeddings": 131072,
}  # fmt: skip
QWEN2_DEFAULTS = DEFAULTS | {
    "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
    "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
    "layer_types": None, "max_position_embeddings": 32768, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip


def _read(settings: Settings, name: str, qkv: bool, output: bool, mlp: bool, windows: Any):
    only(settings, is_causal=True)
    kind = architecture(settings, (f"{name}ForCausalLM", f"{name}Model"))
    width, heads = settings["hidden_size"], settings["num_attention_heads"]
    key_dim = width // heads if settings["head_dim"] is None else settings["head_dim"]
    rotary, sharper = read_rope(settings)
    scale = None if sharper == 1 else sharper / math.sqrt(key_dim)
    biases: list[Any] = ["qkv"] if qkv else []
    biases += ["output"] if output else []
    return DecoderConfig(
        EmbeddingConfig(
            settings["vocab_size"], special=read_special(settings), untrained=untrained(settings),
        ),
        BlockConfig(
            width,
            AttentionConfig(
                heads, settings["num_key_value_heads"] or heads, key_dim, key_dim,
                Softmax(scale), biases=tuple(biases), dropout=settings["attention_dropout"] or 0.0,
            ),
            MLPConfig(settings["intermediate_size"], activation(settings, "hidden_act"), True, mlp),
            NormConfig("rms", "before", settings["rms_norm_eps"]),
        ),
        settings["num_hidden_layers"],
        rotary,
        None if kind.endswith("Model") else TokenHead(settings["tie_word_embeddings"]),
        windows,
    )  # fmt: skip


def read_llama(settings: Settings, names: frozenset[str]) -> DecoderConfig:
    """Return our config for a Llama's config.json."""
    biases, mlp = bool(settings.get("attention_bias")), bool(settings.get("mlp_bias"))
    return _read(settings, "Llama", biases, biases, mlp, None)


def read_mistral(settings: Settings, names: frozenset[str]) -> DecoderConfig:
    """Return our config for a Mistral's config.json."""
    return _read(settings, "Mistral", False, False, False, settings["sliding_window"])


def read_qwen2(settings: Settings, names: frozenset[str]) -> DecoderConfig:
    """Return our config for a Qwen2's config.json; its later layers may have a window."""
    layers, size = settings["num_hidden_layers"], settings["sliding_window"]
    kinds, slides = settings["layer_types"], bool(settings["use_sliding_window"])
    slides = slides and size is not None
    for kind in kinds or ():
        if kind not in ("full_attention", "sliding_attention"):
            raise FolderError(f"config.json: `layer_types` has {kind!r}, which we do not have")
        if kind == "sliding_attention" and not slides:
            raise FolderError(
                "config.json: `layer_types` has sliding layers, but `use_sliding_window` is false "
                "or `sliding_window` missing"
            )
    if kinds is None:
        kinds = ["sliding_attention" if slides and i >= settings["max_window_layers"] else ""
                 for i in range(layers)]  # fmt: skip
    windows = tuple(size if kind == "sliding_attention" else None for kind in kinds)
    return _read(settings, "Qwen2", True, False, False, windows if any(windows) else None)


def _write(config: object, name: str, **more: Any) -> Settings | None:
    if not (isinstance(config, DecoderConfig) and isinstance(config.positions, Rotary)):
        return None
    block = config.block
    kv_heads, key_dim, _ = block.attention.sizes(block.width)
    rope = write_rope(config.positions)
    scale = getattr(block.attention.mechanism, "scale", None)
    if scale is not None and scale > 0:
        rope["attention_factor"] = math.sqrt(scale * math.sqrt(key_dim))
    return {
        "architectures": [f"{name}{'Model' if config.head is None else 'ForCausalLM'}"],
        "vocab_size": config.embedding.vocabulary,
        "hidden_size": block.width,
        "intermediate_size": block.mlp.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": block.attention.heads,
        "num_key_value_heads": kv_heads,
        "head_dim": key_dim,
        "hidden_act": THEIR_ACTIVATIONS[block.mlp.activation],
        "rms_norm_eps": float(block.norm.epsilon),
        "tie_word_embeddings": config.head is not None and config.head.tied,
        "rope_parameters": rope,
        "attention_dropout": block.attention.dropout,
        **write_special(config.embedding),
        **more,
    }


def write_llama(config: object) -> Settings | None:
    """Return a Llama's config.json for our config."""
    if not isinstance(config, DecoderConfig):
        return None
    biases, mlp = "output" in config.block.attention.biases, config.block.mlp.bias
    return _write(config, "Llama", attention_bias=biases, mlp_bias=mlp)


def write_mistral(config: object) -> Settings | None:
    """Return a Mistral's config.json for our config."""
    windows = getattr(config, "windows", None)
    return None if isinstance(windows, tuple) else _write(config, "Mistral", sliding_window=windows)


def write_qwen2(config: object) -> Settings | None:
    """Return a Qwen2's config.json for our config."""
    if not isinstance(config, DecoderConfig):
        return None
    windows = config.window_of_each
    sizes = {size for size in windows if size is not None}
    kinds = ["full_attention" if size is None else "sliding_attention" for size in windows]
    return _write(
        config, "Qwen2", layer_types=kinds, use_sliding_window=bool(sizes),
        sliding_window=max(sizes, default=None), max_window_layers=config.layers,
    )  # fmt: skip


NAMES = TensorNames(
    "model.",
    ignored=("rotary_emb.inv_freq",),
    copies={"lm_head.weight": "embed.tokens.weight"},
    aliases=(("embed_tokens.weight", "lm_head.weight"),),
)


def _family(name: str, defaults: Settings, read: Any, write: Any) -> Family:
    entries = Entries(defaults, kept=("max_position_embeddings",))
    return Family((name,), entries, NAMES, lambda config: ROWS, read, write)


LLAMA = _family("llama", DEFAULTS, read_llama, write_llama)
MISTRAL = _family("mistral", MISTRAL_DEFAULTS, read_mistral, write_mistral)
QWEN2 = _family("qwen2", QWEN2_DEFAULTS, read_qwen2, write_qwen2)
