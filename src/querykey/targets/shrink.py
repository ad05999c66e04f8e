"""Shrink the configuration of any `transformers` architecture.

A configuration is a dataclass, so one function shrinks them all: every size whose name matches a
rule of `SMALL` becomes small, lists with one entry per layer keep one layer of each kind, and the
configuration derives the rest again by itself.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

VOCABULARY = 128

# (pattern, size): the first rule whose pattern matches the whole name applies; it never enlarges.
SMALL = [
    (re.compile(pattern), size)
    for pattern, size in (
        (r".*vocab_size.*|.*byte_group_vocab|vocab_offset|split_ngram_parts", VOCABULARY),
        (r".*max_position_embeddings|n_positions|n_ctx|max_seq_len|max_sequence_length", 64),
        (r"max_(source|target)_positions|model_max_length", 64),
        (r"num_kv_shared_layers", 0),
        (r".*_layer_period", 2),
        (r".*_layer_offset", 1),
        (r"num_self_attends_per_block|num_blocks|num_layers_per_stack|depth", 2),
        (r"(num_|n_)?(.*hidden_|.*encoder_|.*decoder_)?layers?", 2),
        (r"rotary_dim|num_latents", 8),
        (r"d_latents|n_filters|num_filters|.*_rank|hc_lowrank|.*_channels", 16),
        (r".*heads?", 4),
        (r".*(head_dim|d_head|dim_head|d_kv|kv_channels|head_size)", 16),
        (r".*hidden_size.*|d_model|n_embd|.*emb_dim|.*embedding_(size|dim)|.*embed_dim", 64),
        (r"dim|hidden_dim|word_embed_proj_dim|projector_(input|output)_dim|vision_output_dim", 64),
        (r".*(intermediate_size.*|ffn_dim|d_ff|dff|dim_ff|d_inner|ffn_hidden_size)|mlp_dim", 128),
        (r"(moe_)?(n|num)_(routed_|local_)?experts|zero_expert_num", 4),
        (r"num_experts_per_tok(en)?|moe_(topk|k|top_k)|top_k|(n|num_expert)_groups?", 2),
        (r"topk_group", 1),
        (
            r"sliding_window|local_attention|attention_window|.*window_size|(?!.*(audio|tokenizer)).*chunk_size",
            8,
        ),
        (r".*image_size", 32),
    )
]
KEY_HEADS = re.compile(r".*(key_value|kv)_heads|kv_n_heads")
LAYER_COUNTS = (
    "num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "encoder_layers",
    "num_decoder_layers",
)  # fmt: skip
PER_STAGE = {"num_heads": 4, "depths": 1}  # lists of a pyramid, whose stages all stay
KINDS_OF_LAYER = 4  # at most so many kinds of layer are kept

# Sizes that some configurations leave to a checkpoint; tried where a model does not build without.
MISSING = {
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": VOCABULARY,
    "n_routed_experts": 4, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "pad_token_id": 1, "mask_token_id": 3,
}  # fmt: skip

# Sizes that depend on each other in ways that no name tells, and defaults that cannot run.
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"num_hidden_layers": 2},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE},
    },
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "pegasus_x": {"block_size": 8},
    "qwen4_exp_text": {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "reformer": {"axial_pos_embds_dim": [16, 48], "axial_pos_shape": [8, 8]},
    "swin": {"image_size": 64, "window_size": 2},
    "donut-swin": {"image_size": 64, "window_size": 2},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
    },
}  # fmt: skip


def shrink(config: Any, head: str | None = None, fill: bool = False) -> Any:
    """Return a small configuration of the same kind; `fill` also gives sizes that were left out."""
    sizes = dict(_small_sizes(config, fill))
    names = {f.name for f in dataclasses.fields(config)}
    if head == "causal" and "is_decoder" in names:
        sizes["is_decoder"] = True  # without it an encoder's causal head sees the future
    sizes |= SPECIAL.get(config.model_type, {})
    return type(config)(**sizes)


def _small_sizes(config: Any, fill: bool) -> Iterator[tuple[str, Any]]:
    """Yield the fields that change, as (name, value)."""
    count, kept = _kept_layers(config)
    for field in dataclasses.fields(config):
        if not field.init:
            continue
        declared = _declared(field)
        value = vars(config).get(field.name, declared)
        if dataclasses.is_dataclass(value):
            yield field.name, shrink(value, fill=fill)
        elif fill and value is None and field.name in MISSING:
            yield field.name, MISSING[field.name]
        elif re.fullmatch(r".*(token_id|token_index|_index)", field.name):
            yield field.name, _small_ids(declared)
        elif isinstance(value, list | tuple) and field.name in PER_STAGE:
            yield field.name, [PER_STAGE[field.name] for _ in value]
        elif isinstance(value, list | tuple) and len(value) == count:
            yield field.name, [_small_entry(field.name, value[i]) for i in kept]
        elif field.name in LAYER_COUNTS and is_int(declared):
            yield field.name, min(declared, len(kept))
        elif KEY_HEADS.fullmatch(field.name) and is_int(declared):
            yield field.name, _small_key_heads(config, field.name, declared)
        elif is_int(declared) and declared > 0:
            yield field.name, _small_size(field.name, declared)


def _small_size(name: str, size: int) -> int:
    return next((min(size, small) for rule, small in SMALL if rule.fullmatch(name)), size)


def _small_entry(name: str, entry: Any) -> Any:
    return _small_size(name, entry) if is_int(entry) and entry > 0 else entry


def _small_key_heads(config: Any, name: str, size: int) -> int:
    """Return a number of key heads of the same kind: one per head, one for all, or in between."""
    heads = vars(config).get(re.sub("key_value|kv", "attention", name))
    return 1 if size == 1 else 4 if size == heads else 2


def _small_ids(ids: Any) -> Any:
    """Return token ids below the small vocabulary's end, mostly different from each other."""
    if isinstance(ids, list | tuple):
        return [_small_ids(one) for one in ids]
    return VOCABULARY - 1 - ids % 16 if is_int(ids) and ids >= VOCABULARY else ids


def _kept_layers(config: Any) -> tuple[int | None, list[int]]:
    """Return the number of layers, and which to keep: the first of each kind, at least two."""
    values = vars(config)
    count = next((values[n] for n in LAYER_COUNTS if is_int(values.get(n))), None)
    if count is None:
        return None, [0, 1]
    lists = [v for v in values.values() if isinstance(v, list | tuple) and len(v) == count]
    kinds: dict[str, int] = {}
    for index in range(count):
        kinds.setdefault(repr([entries[index] for entries in lists]), index)
    kept = sorted(kinds.values())[:KINDS_OF_LAYER]
    kept += [index for index in range(count) if index not in kept][: max(0, 2 - len(kept))]
    return count, sorted(kept)


def _declared(field: dataclasses.Field[Any]) -> Any:
    """Return a field's default as the class declares it, before anything was derived from it."""
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None


def is_int(value: Any) -> bool:
    """Return whether a value is a size and not a switch: Python counts True as an int."""
    return isinstance(value, int) and not isinstance(value, bool)
