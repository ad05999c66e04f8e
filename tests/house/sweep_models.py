"""Good calls of every public name of `models` and `nn`, which the sweep spoils."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from tests.house import sweep
from tests.house.sweep import Good, array, ids, linear

import querykey as qk
from querykey import models, nn

REAL = torch.ones(2, 5) > 0
GPT, BERT = models.preset("gpt"), models.preset("bert")
BLOCK = nn.BlockConfig.preset("pre-norm", 8, 2)
EMBEDDING = models.EmbeddingConfig(11)


@cache
def made(name: str) -> Any:
    """Return one model of a preset, which no call changes."""
    torch.manual_seed(0)
    return models.build(models.preset(name)).eval()


@cache
def pooling() -> Any:
    torch.manual_seed(0)
    return models.build(models.EncoderConfig(EMBEDDING, BLOCK, 1, pooler="tanh")).eval()


@cache
def block() -> Any:
    torch.manual_seed(0)
    return nn.Block(BLOCK, mask=qk.Causal(), source_width=6).eval()


def blocked(source: torch.Tensor, **rest: Any) -> torch.Tensor:
    """Return the output of a block that looks at another sequence."""
    return block()(memory=block().remember(source), **rest)


@cache
def attention() -> Any:
    torch.manual_seed(0)
    return nn.MultiHeadAttention(8, nn.AttentionConfig(heads=2), mask=qk.Causal()).eval()


@cache
def mlp() -> Any:
    torch.manual_seed(0)
    return nn.MLP(8, nn.MLPConfig(16))


def images() -> torch.Tensor:
    return array(2, 3, 32, 32)


def said(prompt: str, tokens: int, temperature: float, top_k: int, top_p: float, seed: int) -> Any:
    speaker = models.Speaker(made("gpt"), models.CharacterTokenizer("abcdefgh"))
    return list(speaker.say(prompt, tokens, temperature, top_k, top_p, seed))


def streamed(**options: Any) -> list[torch.Tensor]:
    return list(models.stream(made("gpt"), **options))


DRAWN = {"temperature": 1.0, "top_k": 3, "top_p": 0.5, "seed": 0}
TINY = {"width": 8, "layers": 1, "heads": 2}

# A good call of every public name. A name with a dot is a method of the object that is made.
GOOD: dict[str, Callable[[], Good]] = {
    "models.Autoencoder": lambda: (
        models.Autoencoder, {"config": models.AutoencoderConfig(5, 2)}
    ),
    "models.Autoencoder.forward": lambda: (made("autoencoder"), {"x": array(3, 64)}),
    "models.Autoencoder.encode": lambda: (made("autoencoder").encode, {"x": array(3, 64)}),
    "models.Autoencoder.decode": lambda: (made("autoencoder").decode, {"latent": array(3, 8)}),
    "models.Autoencoder.loss": lambda: (
        made("denoising-autoencoder").loss,
        {"x": array(3, 64), "generator": torch.Generator().manual_seed(0)},
    ),
    "models.AutoencoderConfig": lambda: (
        models.AutoencoderConfig,
        {"inputs": 5, "latent": 2, "hidden": (4, 3), "activation": "relu", "bias": True,
         "corruption": models.Noise(0.5)},
    ),
    "models.ByteTokenizer": lambda: (models.ByteTokenizer, {"names": ("end", "pad")}),
    "models.ByteTokenizer.encode": lambda: (models.ByteTokenizer().encode, {"text": "a text"}),
    "models.ByteTokenizer.decode": lambda: (models.ByteTokenizer().decode, {"ids": [97, 98]}),
    "models.CharacterTokenizer": lambda: (
        models.CharacterTokenizer, {"letters": "abc", "names": ("end",)}
    ),
    "models.CharacterTokenizer.encode": lambda: (
        models.CharacterTokenizer("abc").encode, {"text": "cab"}
    ),
    "models.CharacterTokenizer.decode": lambda: (
        models.CharacterTokenizer("abc").decode, {"ids": [0, 2]}
    ),
    "models.ClassHead": lambda: (models.ClassHead, {"classes": 3, "transform": "tanh"}),
    "models.DaViT": lambda: (models.DaViT, {"config": models.preset("davit")}),
    "models.DaViT.forward": lambda: (made("davit"), {"images": images()}),
    "models.DaViTConfig": lambda: (
        models.DaViTConfig,
        {"image": (16, 16), "stages": (models.Stage(8, 2, stride=4),), "window": (2, 2),
         "channels": 3, "head": models.ClassHead(3)},
    ),
    "models.Decoder": lambda: (
        models.Decoder, {"config": models.preset("gpt", TINY), "source_width": 6}
    ),
    "models.Decoder.forward": lambda: (
        made("gpt"), {"ids": ids(), "real": REAL, "documents": torch.tensor([[1, 1, 2, 2, 2]] * 2)}
    ),
    "models.Decoder.extend": lambda: (
        made("gpt").extend, {"ids": ids(), "state": made("gpt").empty_state(2), "real": REAL}
    ),
    "models.DecoderConfig": lambda: (
        models.DecoderConfig,
        {"embedding": EMBEDDING, "block": BLOCK, "layers": 2, "positions": models.Learned(9),
         "head": models.TokenHead(), "windows": (2, 3)},
    ),
    "models.Distances": lambda: (models.Distances, {"buckets": 8, "furthest": 32}),
    "models.EmbeddingConfig": lambda: (
        models.EmbeddingConfig,
        {"vocabulary": 11, "types": 2, "norm": True, "scale": 0.5, "special": models.Special(),
         "untrained": 1},
    ),
    "models.Encoder": lambda: (models.Encoder, {"config": models.preset("bert", TINY)}),
    "models.Encoder.forward": lambda: (
        made("bert"), {"ids": ids(), "real": REAL, "types": torch.zeros(2, 5, dtype=torch.int64)}
    ),
    "models.Encoder.pooled": lambda: (
        pooling().pooled,
        {"hidden": array(2, 5, 8), "real": REAL},
    ),
    "models.EncoderConfig": lambda: (
        models.EncoderConfig,
        {"embedding": EMBEDDING, "block": BLOCK, "layers": 2, "positions": models.Sinusoidal(),
         "head": models.ClassHead(3), "pooler": "tanh"},
    ),
    "models.EncoderDecoder": lambda: (
        models.EncoderDecoder, {"config": models.preset("transformer", TINY)}
    ),
    "models.EncoderDecoder.forward": lambda: (
        made("transformer"),
        {"source": ids(), "target": ids(7), "source_real": REAL, "real": REAL},
    ),
    "models.EncoderDecoderConfig": lambda: (
        models.EncoderDecoderConfig,
        {"encoder": models.EncoderConfig(EMBEDDING, BLOCK, 1),
         "decoder": models.DecoderConfig(EMBEDDING, BLOCK, 1), "shared": True, "start": 0},
    ),
    "models.Hide": lambda: (models.Hide, {"share": 0.5}),
    "models.Learned": lambda: (models.Learned, {"count": 9, "offset": 2, "skip": 1}),
    "models.ModelState.select": lambda: (made("gpt").empty_state(2).select, {"rows": [1, 0]}),
    "models.Noise": lambda: (models.Noise, {"std": 0.5}),
    "models.PairHead": lambda: (
        models.PairHead, {"tokens": models.TokenHead(), "classes": models.ClassHead(2)}
    ),
    "models.PatchAutoencoder": lambda: (
        models.PatchAutoencoder, {"config": models.preset("masked-patches")}
    ),
    "models.PatchAutoencoder.forward": lambda: (
        made("masked-patches"), {"images": array(2, 1, 32, 32)}
    ),
    "models.PatchAutoencoder.loss": lambda: (
        made("masked-patches").loss,
        {"images": array(2, 1, 32, 32), "generator": torch.Generator().manual_seed(0)},
    ),
    "models.PatchAutoencoderConfig": lambda: (
        models.PatchAutoencoderConfig,
        {"image": (8, 8), "patch": (4, 4), "encoder": BLOCK, "decoder": BLOCK, "layers": (2, 1),
         "share": 0.5, "channels": 1},
    ),
    "models.Sinusoidal": lambda: (models.Sinusoidal, {"base": 100.0}),
    "models.Speaker": lambda: (
        models.Speaker, {"model": made("gpt"), "codec": models.ByteTokenizer()}
    ),
    "models.Speaker.say": lambda: (said, {"prompt": "abc", "tokens": 3} | DRAWN),
    "models.Special": lambda: (models.Special, {"bos": 1, "eos": (2, 3), "pad": 0}),
    "models.Stage": lambda: (models.Stage, {"width": 8, "heads": 2, "depth": 1, "stride": 2}),
    "models.TokenHead": lambda: (
        models.TokenHead, {"tied": True, "bias": False, "transform": "gelu", "scale": 0.5}
    ),
    "models.VisionTransformer": lambda: (
        models.VisionTransformer, {"config": models.preset("vit", TINY)}
    ),
    "models.VisionTransformer.forward": lambda: (made("vit"), {"images": images()}),
    "models.VisionTransformerConfig": lambda: (
        models.VisionTransformerConfig,
        {"image": (8, 8), "patch": (4, 4), "block": BLOCK, "layers": 1, "channels": 3,
         "head": models.ClassHead(2), "pooler": "tanh"},
    ),
    "models.build": lambda: (models.build, {"config": models.preset("gpt", TINY)}),
    "models.initialise": lambda: (models.initialise, {"model": linear(), "std": 0.02}),
    "models.is_ours": lambda: (models.is_ours, {"model": linear()}),
    "models.plain_tokenizer": lambda: (
        models.plain_tokenizer, {"settings": {"model": {"type": "BPE", "vocab": {}}}}
    ),
    "models.preset sizes": lambda: (models.preset, {"name": "gpt", "sizes": dict(TINY)}),
    "models.preset_sizes": lambda: (models.preset_sizes, {"name": "gpt"}),
    "models.stream": lambda: (
        streamed, {"ids": ids(), "max_new_tokens": 2, "real": REAL, "stop": 1} | DRAWN
    ),
    "nn.AttentionConfig": lambda: (
        nn.AttentionConfig,
        {"heads": 4, "kv_heads": 2, "key_dim": 3, "value_dim": 3, "mechanism": qk.Softmax(),
         "output": True, "biases": ("qkv", "output"), "dropout": 0.1, "decay": False},
    ),
    "nn.AttentionConfig.sizes": lambda: (nn.AttentionConfig(4).sizes, {"width": 8}),
    "nn.Block": lambda: (
        nn.Block,
        {"config": BLOCK, "mask": qk.Causal(), "rotary": qk.attention.Rotary(),
         "bias": qk.ALiBi(2), "source_width": 6, "backend": "auto"},
    ),
    "nn.Block.forward": lambda: (
        blocked,
        {"x": array(2, 5, 8), "source": array(2, 4, 6), "real": REAL,
         "bias": qk.ALiBi(2), "documents": torch.tensor([[1, 1, 2, 2, 2]] * 2)},
    ),
    "nn.Block.remember": lambda: (
        block().remember, {"source": array(2, 4, 6), "real": torch.ones(2, 4) > 0}
    ),
    "nn.BlockConfig": lambda: (
        nn.BlockConfig,
        {"width": 8, "attention": nn.AttentionConfig(2), "mlp": nn.MLPConfig(16),
         "norm": nn.NormConfig(), "residual": ("attention", "mlp"), "dropout": 0.1},
    ),
    "nn.BlockConfig.preset": lambda: (
        nn.BlockConfig.preset, {"name": "pre-norm", "width": 8, "heads": 2, "hidden": 16}
    ),
    "nn.MLP": lambda: (nn.MLP, {"width": 8, "config": nn.MLPConfig(16)}),
    "nn.MLP.forward": lambda: (mlp(), {"x": array(2, 5, 8)}),
    "nn.MLPConfig": lambda: (
        nn.MLPConfig, {"hidden": 16, "activation": "gelu", "gated": True, "bias": True}
    ),
    "nn.MultiHeadAttention": lambda: (
        nn.MultiHeadAttention,
        {"width": 8, "config": nn.AttentionConfig(2), "mask": qk.Causal(), "bias": qk.ALiBi(2),
         "rotary": qk.attention.Rotary(), "source_width": 6, "backend": "auto"},
    ),
    "nn.MultiHeadAttention.forward": lambda: (
        attention(),
        {"x": array(2, 5, 8), "real": REAL, "bias": qk.ALiBi(2),
         "documents": torch.tensor([[1, 1, 2, 2, 2]] * 2)},
    ),
    "nn.MultiHeadAttention.extend": lambda: (
        attention().extend,
        {"x": array(2, 5, 8), "state": attention().empty_state(2), "real": REAL},
    ),
    "nn.MultiHeadAttention.empty_state": lambda: (
        attention().empty_state, {"batch": 2, "capacity": 9, "like": array(3)}
    ),
    "nn.NormConfig": lambda: (
        nn.NormConfig, {"kind": "layer", "place": "before", "epsilon": 1e-5}
    ),
}  # fmt: skip
# What may be anything, or is one thing of several.
TAKES: dict[tuple[str, str], Any] = {
    ("models.is_ours", "model"): sweep.MUST_FAIL,
    ("models.stream", "stop"): {"a dict", "bytes"},
    ("models.plain_tokenizer", "settings"): sweep.MUST_FAIL,  # None for what describes neither
}
APART = {
    "models": {
        "PRESETS", "FolderError", "TokenizerError",
        "Codec",  # a protocol
        "ModelState",  # made by empty_state
        "generate", "preset", "probe", "load", "save",  # swept as names of querykey
        "special_names", "tokenizer_json",  # parts of a file's content, tried as files
    },
    "nn": {
        "ACTIVATIONS",
        "SourceMemory", "Turns",  # made by remember, and by a rotary
        # Parts of layers, whose arguments these have looked at.
        "activate", "among", "document_positions", "make_norm", "token_positions",
        "check_floats", "check_generator", "check_meets", "check_whole", "is_watched",
    },
}  # fmt: skip
ROOMS = {"models": models, "nn": nn}
