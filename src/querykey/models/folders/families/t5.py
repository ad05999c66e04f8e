"""T5: distances as a bias per head, unscaled scores, RMS norms before, no other bias anywhere."""

from __future__ import annotations

from querykey.attention import Softmax
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
    read_special,
    write_special,
)
from querykey.models.text.config import (
    DecoderConfig,
    Distances,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    TokenHead,
)
from querykey.nn import AttentionConfig, BlockConfig, MLPConfig, NormConfig

# One table of tokens, under any of these names.
TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
PLAIN_MLP = (("wi", "up"), ("wo", "down"))
GATED_MLP = (("wi_0", "gate"), ("wi_1", "up"), ("wo", "down"))


def _side(theirs: str, ours: str, mlp: int, gated: bool) -> tuple[Row, ...]:
    """Return the rows of an encoder or a decoder, whose block has its MLP as part 1 or part 2."""
    layer, block = f"{theirs}.block.{{i}}.layer", f"{ours}stack.blocks.{{i}}"
    table = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias"
    return (
        *(
            Row(f"{layer}.0.SelfAttention.{part}", f"{block}.attention.{part}")
            for part in ("q", "k", "v", "o")
        ),
        Row(table, f"{ours}stack.distances"),
        Row(f"{layer}.0.layer_norm", f"{block}.attention_norm"),
        *(
            Row(f"{layer}.{mlp}.DenseReluDense.{name}", f"{block}.mlp.{part}")
            for name, part in (GATED_MLP if gated else PLAIN_MLP)
        ),
        Row(f"{layer}.{mlp}.layer_norm", f"{block}.mlp_norm"),
        Row(f"{theirs}.final_layer_norm", f"{ours}stack.norm"),
    )


CROSS = "decoder.block.{i}.layer.1"
CROSS_ROWS = (
    *(
        Row(f"{CROSS}.EncDecAttention.{part}", f"decoder.stack.blocks.{{i}}.cross.{part}")
        for part in ("q", "k", "v", "o")
    ),
    Row(f"{CROSS}.layer_norm", "decoder.stack.blocks.{i}.cross_norm"),
    Row("lm_head", "decoder.head.output"),
)


def rows(config: EncoderConfig | EncoderDecoderConfig) -> tuple[Row, ...]:
    """Return the table for an encoder with a decoder, or for an encoder alone."""
    if isinstance(config, EncoderConfig):
        return (Row("shared", "embed.tokens"), *_side("encoder", "", 1, config.block.mlp.gated))
    gated = config.encoder.block.mlp.gated
    return (
        Row("shared", "encoder.embed.tokens"),
        *_side("encoder", "encoder.", 1, gated),
        *_side("decoder", "decoder.", 2, gated),
        *CROSS_ROWS,
    )


DEFAULTS: Settings = {
    "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6,
    "num_decoder_layers": None, "num_heads": 8, "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu", "pad_token_id": 0, "eos_token_id": 1, "dropout_rate": 0.1,
}  # fmt: skip


def read(settings: Settings, names: frozenset[str]) -> EncoderConfig | EncoderDecoderConfig:
    """Return our config for the entries of config.json."""
    both_ways(settings)
    kinds = ("T5ForConditionalGeneration", "T5EncoderModel", "T5Model")
    kind = architecture(settings, kinds)
    gated, _, name = settings["feed_forward_proj"].rpartition("-")
    # The first gated T5 was written down as "gelu", and computes its approximation by tanh.
    act = "gelu_new" if settings["feed_forward_proj"] == "gated-gelu" else name
    for key, wanted in (("dense_act_fn", act), ("is_gated_act", bool(gated))):
        if settings.get(key, wanted) != wanted:
            raise FolderError(
                f"config.json: `{key}` is {settings[key]!r}, but {wanted!r} by `feed_forward_proj`"
            )
    embedding = EmbeddingConfig(settings["vocab_size"], special=read_special(settings))
    block = _block(settings, act, bool(gated))
    order = Distances(
        settings["relative_attention_num_buckets"], settings["relative_attention_max_distance"]
    )
    encoder = EncoderConfig(embedding, block, settings["num_layers"], order)
    if kind == "T5EncoderModel":
        return encoder
    if "is_causal" in settings:  # true, it would have been refused for the encoder
        raise FolderError(
            f"config.json: `is_causal` is {settings['is_causal']!r} for the decoder too; "
            "leave it out, and each side sees what it should"
        )
    scaled = settings.get("scale_decoder_outputs", settings.get("tie_word_embeddings") is not False)
    tied = "lm_head.weight" not in names or names.isdisjoint(TABLES)
    head = TokenHead(tied, scale=settings["d_model"] ** -0.5 if scaled else 1.0)
    layers = settings["num_decoder_layers"] or settings["num_layers"]
    start = settings.get("decoder_start_token_id")
    return EncoderDecoderConfig(
        encoder,
        DecoderConfig(embedding, block, layers, order, None if kind == "T5Model" else head),
        start=(settings["pad_token_id"] or 0) if start is None else start,
    )


def _block(settings: Settings, act: str, gated: bool) -> BlockConfig:
    """Return the block of both sides; `act` is the name that theirs gives to the activation."""
    size, dropout = settings["d_kv"], settings["dropout_rate"]
    return BlockConfig(
        settings["d_model"],
        AttentionConfig(
            settings["num_heads"], None, size, size, Softmax(scale=1.0), biases=(), dropout=dropout
        ),
        MLPConfig(
            settings["d_ff"], activation({"feed_forward_proj": act}, "feed_forward_proj"),
            gated=gated, bias=False,
        ),
        NormConfig("rms", "before", settings["layer_norm_epsilon"]),
        dropout=dropout,
    )  # fmt: skip


def write(config: object) -> Settings | None:
    """Return the entries of config.json for our config, or None where it is of no such model."""
    encoder = config.encoder if isinstance(config, EncoderDecoderConfig) else config
    if not (isinstance(encoder, EncoderConfig) and isinstance(encoder.positions, Distances)):
        return None
    block, pair = encoder.block, config if isinstance(config, EncoderDecoderConfig) else None
    act = THEIR_ACTIVATIONS[block.mlp.activation]
    gated = "gated-gelu" if act == "gelu_new" else f"gated-{act}"
    kind = "T5EncoderModel"
    if pair is not None:
        kind = "T5Model" if pair.decoder.head is None else "T5ForConditionalGeneration"
    head = None if pair is None else pair.decoder.head
    return {
        "architectures": [kind],
        "is_encoder_decoder": pair is not None,
        "vocab_size": encoder.embedding.vocabulary,
        "d_model": block.width,
        "d_kv": block.attention.sizes(block.width)[1],
        "d_ff": block.mlp.hidden,
        "num_layers": encoder.layers,
        "num_decoder_layers": encoder.layers if pair is None else pair.decoder.layers,
        "num_heads": block.attention.heads,
        "relative_attention_num_buckets": encoder.positions.buckets,
        "relative_attention_max_distance": encoder.positions.furthest,
        "layer_norm_epsilon": float(block.norm.epsilon),
        "feed_forward_proj": gated if block.mlp.gated else act,
        "scale_decoder_outputs": head is None or head.scale != 1,
        "decoder_start_token_id": 0 if pair is None else pair.start,
        "dropout_rate": block.dropout,
    } | write_special(encoder.embedding)


ENTRIES = Entries(
    DEFAULTS,
    aliases={
        "hidden_size": "d_model", "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers", "head_dim": "d_kv",
    },
)  # fmt: skip
NAMES = TensorNames(
    "",
    # The first T5's have a table that nothing reads.
    ignored=("EncDecAttention.relative_attention_bias.weight",),
    copies=dict.fromkeys(("lm_head.weight", *TABLES[1:]), "embed.tokens.weight"),
    aliases=tuple(("shared.weight", name) for name in (*TABLES[1:], "lm_head.weight")),
    tied_if_equal="lm_head.weight",
)
T5 = Family(("t5",), ENTRIES, NAMES, rows, read, write)
