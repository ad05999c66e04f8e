"""GPT-2: learned positions, norm before, a tied head; its matrices are stored transposed."""

from __future__ import annotations

from querykey.attention import Softmax
from querykey.models.folders.families.family import (
    THEIR_ACTIVATIONS,
    Entries,
    Family,
    Row,
    Settings,
    TensorNames,
    activation,
    architecture,
    only,
    read_special,
    write_special,
)
from querykey.models.text.config import DecoderConfig, EmbeddingConfig, Learned, TokenHead
from querykey.nn import AttentionConfig, BlockConfig, MLPConfig, NormConfig

BLOCK = "stack.blocks.{i}"
ROWS = (
    Row("transformer.wte", "embed.tokens"),
    Row("transformer.wpe", "embed.positions"),
    Row("transformer.h.{i}.ln_1", f"{BLOCK}.attention_norm"),
    Row(
        "transformer.h.{i}.attn.c_attn",
        (f"{BLOCK}.attention.q", f"{BLOCK}.attention.k", f"{BLOCK}.attention.v"),
        "transposed",
    ),
    Row("transformer.h.{i}.attn.c_proj", f"{BLOCK}.attention.o", "transposed"),
    Row("transformer.h.{i}.ln_2", f"{BLOCK}.mlp_norm"),
    Row("transformer.h.{i}.mlp.c_fc", f"{BLOCK}.mlp.up", "transposed"),
    Row("transformer.h.{i}.mlp.c_proj", f"{BLOCK}.mlp.down", "transposed"),
    Row("transformer.ln_f", "stack.norm"),
    Row("lm_head", "head.output"),
)
DEFAULTS: Settings = {
    "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
    "n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True, "tie_word_embeddings": True, "attn_pdrop": 0.1, "resid_pdrop": 0.1,
    "bos_token_id": 50256, "eos_token_id": 50256,
}  # fmt: skip


def read(settings: Settings, names: frozenset[str]) -> DecoderConfig:
    """Return our config for the entries of config.json."""
    only(settings, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False, is_causal=True)
    kind = architecture(settings, ("GPT2LMHeadModel", "GPT2Model"))
    scale = None if settings["scale_attn_weights"] else 1.0
    width = settings["n_embd"]
    hidden = settings["n_inner"] or 4 * width
    return DecoderConfig(
        EmbeddingConfig(settings["vocab_size"], special=read_special(settings)),
        BlockConfig(
            width,
            AttentionConfig(
                settings["n_head"], mechanism=Softmax(scale), dropout=settings["attn_pdrop"]
            ),
            MLPConfig(hidden, activation(settings, "activation_function")),
            NormConfig("layer", "before", settings["layer_norm_epsilon"]),
            dropout=settings["resid_pdrop"],
        ),
        settings["n_layer"],
        Learned(settings["n_positions"]),
        None if kind == "GPT2Model" else TokenHead(settings["tie_word_embeddings"]),
    )


def write(config: object) -> Settings | None:
    """Return the entries of config.json for our config, or None where it is of no such model."""
    if not (isinstance(config, DecoderConfig) and isinstance(config.positions, Learned)):
        return None
    block = config.block
    return {
        "architectures": ["GPT2Model" if config.head is None else "GPT2LMHeadModel"],
        "vocab_size": config.embedding.vocabulary,
        "n_positions": config.positions.count,
        "n_embd": block.width,
        "n_layer": config.layers,
        "n_head": block.attention.heads,
        "n_inner": block.mlp.hidden,
        "activation_function": THEIR_ACTIVATIONS[block.mlp.activation],
        "layer_norm_epsilon": float(block.norm.epsilon),
        "scale_attn_weights": getattr(block.attention.mechanism, "scale", None) is None,
        "tie_word_embeddings": config.head is None or config.head.tied,
        "attn_pdrop": block.attention.dropout,
        "embd_pdrop": 0.0,
        "resid_pdrop": block.dropout,
    } | write_special(config.embedding)


ENTRIES = Entries(
    DEFAULTS,
    aliases={
        "hidden_size": "n_embd", "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
    },
)  # fmt: skip
NAMES = TensorNames(
    "transformer.",
    ignored=(".attn.bias", ".attn.masked_bias"),
    copies={"lm_head.weight": "embed.tokens.weight"},
    aliases=(("wte.weight", "lm_head.weight"),),
)
GPT2 = Family(("gpt2",), ENTRIES, NAMES, lambda config: ROWS, read, write)
