"""BERT and RoBERTa: encoders with the norm after each part, and a layer before their head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
    only,
    read_special,
    untrained,
    write_special,
)
from querykey.models.text.config import (
    ClassHead,
    EmbeddingConfig,
    EncoderConfig,
    Learned,
    PairHead,
    TokenHead,
)
from querykey.nn import AttentionConfig, BlockConfig, MLPConfig, NormConfig

BLOCK = "stack.blocks.{i}"


def _rows(base: str) -> tuple[Row, ...]:
    layer = f"{base}.encoder.layer.{{i}}"
    return (
        Row(f"{base}.embeddings.word_embeddings", "embed.tokens"),
        Row(f"{base}.embeddings.position_embeddings", "embed.positions"),
        Row(f"{base}.embeddings.token_type_embeddings", "embed.types"),
        Row(f"{base}.embeddings.LayerNorm", "embed.norm"),
        Row(f"{layer}.attention.self.query", f"{BLOCK}.attention.q"),
        Row(f"{layer}.attention.self.key", f"{BLOCK}.attention.k"),
        Row(f"{layer}.attention.self.value", f"{BLOCK}.attention.v"),
        Row(f"{layer}.attention.output.dense", f"{BLOCK}.attention.o"),
        Row(f"{layer}.attention.output.LayerNorm", f"{BLOCK}.attention_norm"),
        Row(f"{layer}.intermediate.dense", f"{BLOCK}.mlp.up"),
        Row(f"{layer}.output.dense", f"{BLOCK}.mlp.down"),
        Row(f"{layer}.output.LayerNorm", f"{BLOCK}.mlp_norm"),
    )


BERT_ROWS = (*_rows("bert"), Row("bert.pooler.dense", "pooler"))
BERT_TOKENS = (
    Row("cls.predictions.transform.dense", "head.transform"),
    Row("cls.predictions.transform.LayerNorm", "head.norm"),
)
BERT_TIED = (Row("cls.predictions.bias", "head.output.bias"),)
BERT_UNTIED = (Row("cls.predictions.decoder", "head.output"),)
BERT_PAIRS = (
    Row("bert.pooler.dense", "head.classes.transform"),
    Row("cls.seq_relationship", "head.classes.output"),
)
BERT_CLASSES = (
    Row("bert.pooler.dense", "head.transform"),
    Row("classifier", "head.output"),
)
ROBERTA_ROWS = (*_rows("roberta"), Row("roberta.pooler.dense", "pooler"))
ROBERTA_TOKENS = (
    Row("lm_head.dense", "head.transform"),
    Row("lm_head.layer_norm", "head.norm"),
)
ROBERTA_TIED = (Row("lm_head.bias", "head.output.bias"),)
ROBERTA_UNTIED = (Row("lm_head.decoder", "head.output"),)
ROBERTA_CLASSES = (
    Row("classifier.dense", "head.transform"),
    Row("classifier.out_proj", "head.output"),
)


def bert_rows(config: EncoderConfig) -> tuple[Row, ...]:
    """Return the table for a BERT with this head."""
    if isinstance(config.head, ClassHead):
        return BERT_ROWS + BERT_CLASSES
    both = isinstance(config.head, PairHead)
    head = config.head.tokens if isinstance(config.head, PairHead) else config.head
    untied = isinstance(head, TokenHead) and not head.tied
    rows = BERT_TOKENS + (BERT_UNTIED if untied else BERT_TIED)
    if both:
        rows = tuple(replace(row, ours=_within_tokens(row.ours)) for row in rows) + BERT_PAIRS
    return BERT_ROWS + rows


def _within_tokens(ours: str | tuple[str, ...]) -> str:
    """Return our name of a part of the head over tokens where it is one of two heads."""
    assert isinstance(ours, str)
    return ours.replace("head.", "head.tokens.", 1)


def roberta_rows(config: EncoderConfig) -> tuple[Row, ...]:
    """Return the table for a RoBERTa with this head."""
    if isinstance(config.head, ClassHead):
        return ROBERTA_ROWS + ROBERTA_CLASSES
    untied = isinstance(config.head, TokenHead) and not config.head.tied
    return ROBERTA_ROWS + ROBERTA_TOKENS + (ROBERTA_UNTIED if untied else ROBERTA_TIED)


DEFAULTS: Settings = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "max_position_embeddings": 512,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0, "tie_word_embeddings": True,
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
}  # fmt: skip
ROBERTA_DEFAULTS = DEFAULTS | {
    "vocab_size": 50265, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def _read(settings: Settings, names: frozenset[str], name: str, positions: Learned):
    both_ways(settings)
    only(settings, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    kind = architecture(
        settings,
        tuple(f"{name}{kind}" for kind in ("Model", "ForMaskedLM", "ForSequenceClassification"))
        + (("BertForPreTraining",) if name == "Bert" else ()),
    )
    act = activation(settings, "hidden_act")
    head: Any = None
    if kind.endswith(("MaskedLM", "PreTraining")):
        head = TokenHead(settings["tie_word_embeddings"], bias=True, transform=act)
    elif kind.endswith("SequenceClassification"):
        head = ClassHead(_classes(settings), transform="tanh")
    has_pooler = any(tensor.endswith("pooler.dense.weight") for tensor in names)
    if kind.endswith("PreTraining"):
        head = PairHead(head, ClassHead(2, transform="tanh"))
    pools = has_pooler and kind.endswith("Model")
    return EncoderConfig(
        EmbeddingConfig(
            settings["vocab_size"],
            settings["type_vocab_size"],
            norm=True,
            special=read_special(settings),
            untrained=untrained(settings),
        ),
        BlockConfig(
            settings["hidden_size"],
            AttentionConfig(
                settings["num_attention_heads"], dropout=settings["attention_probs_dropout_prob"]
            ),
            MLPConfig(settings["intermediate_size"], act),
            NormConfig("layer", "after", settings["layer_norm_eps"]),
            dropout=settings["hidden_dropout_prob"],
        ),
        settings["num_hidden_layers"],
        positions,
        head,
        "tanh" if pools else None,
    )


def _classes(settings: Settings) -> int:
    return len(settings.get("id2label") or ()) or settings.get("num_labels") or 2


def read_bert(settings: Settings, names: frozenset[str]) -> EncoderConfig:
    """Return our config for a BERT's config.json."""
    return _read(settings, names, "Bert", Learned(settings["max_position_embeddings"]))


def read_roberta(settings: Settings, names: frozenset[str]) -> EncoderConfig:
    """Return our config; positions are counted past the padding id, and leave out padding."""
    pad = settings["pad_token_id"]
    if pad is None:
        raise FolderError(
            "config.json: `pad_token_id` is null, and RoBERTa's positions are counted from that "
            "id; set it, to 1 as a rule"
        )
    positions = Learned(settings["max_position_embeddings"] - pad - 1, pad + 1, pad)
    if (settings.get("architectures") or [""])[0].startswith(("XLMRoberta", "Camembert")):
        named = settings["architectures"][0].replace("XLMRoberta", "Roberta")
        settings = settings | {"architectures": [named.replace("Camembert", "Roberta")]}
    return _read(settings, names, "Roberta", positions)


def _write(config: object, name: str) -> Settings | None:
    if not (isinstance(config, EncoderConfig) and isinstance(config.positions, Learned)):
        return None
    if not config.embedding.types:  # theirs always adds one of them
        return None
    head, block = config.head, config.block
    kind = "Model"
    if isinstance(head, PairHead):
        head, kind = head.tokens, "ForPreTraining"
    elif isinstance(head, TokenHead):
        kind = "ForMaskedLM"
    elif isinstance(head, ClassHead):
        kind = "ForSequenceClassification"
    settings: Settings = {
        "architectures": [f"{name}{kind}"],
        "vocab_size": config.embedding.vocabulary,
        "type_vocab_size": config.embedding.types,
        "hidden_size": block.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": block.attention.heads,
        "intermediate_size": block.mlp.hidden,
        "hidden_act": THEIR_ACTIVATIONS[block.mlp.activation],
        "max_position_embeddings": config.positions.count + config.positions.offset,
        "layer_norm_eps": float(block.norm.epsilon),
        "tie_word_embeddings": not isinstance(head, TokenHead) or head.tied,
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.attention.dropout,
    } | write_special(config.embedding)
    if config.positions.skip is not None:
        settings["pad_token_id"] = config.positions.skip
    if isinstance(head, ClassHead):
        settings["id2label"] = {str(i): f"LABEL_{i}" for i in range(head.classes)}
        settings["label2id"] = {f"LABEL_{i}": i for i in range(head.classes)}
    return settings


def write_bert(config: object) -> Settings | None:
    """Return a BERT's config.json for our config."""
    return _write(config, "Bert")


def write_roberta(config: object) -> Settings | None:
    """Return a RoBERTa's config.json for our config."""
    return _write(config, "Roberta")


BERT_NAMES = TensorNames(
    "bert.",
    ignored=(
        "position_ids",
        "cls.predictions.bias",  # not the one that is added, where the head is untied
        "embeddings.token_type_ids",
    ),
    copies={
        "cls.predictions.decoder.weight": "embed.tokens.weight",
        "cls.predictions.decoder.bias": "head.output.bias",
        "predictions.decoder.bias": "head.tokens.output.bias",  # where it is one of two heads
    },
    aliases=(
        ("embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
        ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    ),
    repeats={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    dropped=(
        "cls.seq_relationship.weight", "cls.seq_relationship.bias",
        "pooler.dense.weight", "pooler.dense.bias",
    ),
)  # fmt: skip
BERT = Family(
    ("bert",), Entries(DEFAULTS, kept=("id2label", "label2id")), BERT_NAMES,
    bert_rows, read_bert, write_bert,
)  # fmt: skip
ROBERTA_ENTRIES = Entries(
    ROBERTA_DEFAULTS,
    variants={"xlm-roberta": {"vocab_size": 30522}, "camembert": {"vocab_size": 30522}},
    kept=("id2label", "label2id"),
)
ROBERTA_NAMES = TensorNames(
    "roberta.",
    ignored=("position_ids", "lm_head.bias", "embeddings.token_type_ids"),
    dropped=("pooler.dense.weight", "pooler.dense.bias"),
    copies={
        "lm_head.decoder.weight": "embed.tokens.weight",
        "lm_head.decoder.bias": "head.output.bias",
    },
    aliases=(
        ("embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
        ("lm_head.bias", "lm_head.decoder.bias"),
    ),
    repeats={"lm_head.bias": "lm_head.decoder.bias"},
)
ROBERTA = Family(
    ("roberta", "xlm-roberta", "camembert"), ROBERTA_ENTRIES, ROBERTA_NAMES,
    roberta_rows, read_roberta, write_roberta,
)  # fmt: skip
