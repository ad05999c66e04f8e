"""Models by name: their configs, small unless sizes are given, and a factory for each.

Decoder(gpt(width=768, layers=12, heads=12, vocabulary=50257))  # GPT-2's sizes
build(preset("llama", {"width": 256, "layers": 4}))             # small where no size is given
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from querykey.attention import (
    ALiBi,
    Argmax,
    EluPlusOne,
    Kernel,
    Mechanism,
    Quadratic,
    Rotary,
    Softmax,
)
from querykey.errors import QuerykeyError, WrongTypeError
from querykey.models.autoencoders.patches import PatchAutoencoderConfig
from querykey.models.autoencoders.vectors import AutoencoderConfig, Hide, Noise
from querykey.models.build import build
from querykey.models.text.config import (
    ClassHead,
    DecoderConfig,
    Distances,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    Learned,
    Sinusoidal,
    TokenHead,
)
from querykey.models.vision.davit import DaViTConfig, Stage
from querykey.models.vision.transformer import VisionTransformerConfig
from querykey.nn import AttentionConfig, BlockConfig, MLPConfig, NormConfig


def bert(width=64, layers=2, heads=4, vocabulary=128, length=128) -> EncoderConfig:
    """Encoder, norm after, learned positions, masked words (Devlin et al., 2019)."""
    block = BlockConfig.preset("post-norm", width, heads)
    block = replace(block, mlp=MLPConfig(4 * width), norm=NormConfig("layer", "after", 1e-12))
    head = TokenHead(bias=True, transform="gelu")
    embedding = EmbeddingConfig(vocabulary, types=2, norm=True)
    return EncoderConfig(embedding, block, layers, Learned(length), head)


def gpt(width=64, layers=2, heads=4, vocabulary=128, length=128) -> DecoderConfig:
    """Decoder, norm before, learned positions (Radford et al., 2019)."""
    mlp = MLPConfig(4 * width, "gelu-tanh")
    block = replace(BlockConfig.preset("pre-norm", width, heads), mlp=mlp)
    return DecoderConfig(EmbeddingConfig(vocabulary), block, layers, Learned(length))


def llama(width=64, layers=2, heads=4, vocabulary=128, kv_heads=2, window=None) -> DecoderConfig:
    """Decoder, RMS norms, rotary positions, shared key heads, gated MLP (Touvron et al., 2023)."""
    block = BlockConfig(
        width,
        AttentionConfig(heads, kv_heads, biases=()),
        MLPConfig(8 * width // 3, "silu", gated=True, bias=False),
        NormConfig("rms", "before", 1e-6),
    )
    head = TokenHead(tied=False)
    return DecoderConfig(EmbeddingConfig(vocabulary), block, layers, Rotary(), head, window)


def mechanism(kind: Mechanism, width=64, layers=2, heads=4, vocabulary=128) -> DecoderConfig:
    """Return a decoder with any mechanism, and rotary positions."""
    block = BlockConfig.preset("pre-norm", width, heads)
    block = replace(block, attention=AttentionConfig(heads, mechanism=kind))
    return DecoderConfig(EmbeddingConfig(vocabulary), block, layers, Rotary())


def decaying(kind: Mechanism, width=64, layers=2, heads=4, vocabulary=128) -> DecoderConfig:
    """Return a decoder whose key heads learn how fast the past fades (Yang et al., 2024)."""
    config = mechanism(kind, width, layers, heads, vocabulary)
    attention = replace(config.block.attention, decay=True)
    return replace(config, block=replace(config.block, attention=attention))


def alibi(width=64, layers=2, heads=4, vocabulary=128) -> DecoderConfig:
    """Decoder whose order enters as a bias that falls with distance (Press et al., 2022)."""
    block = BlockConfig.preset("pre-norm", width, heads)
    return DecoderConfig(EmbeddingConfig(vocabulary), block, layers, ALiBi(heads))


def original(width=64, layers=2, heads=4, vocabulary=128) -> EncoderDecoderConfig:
    """Return the original diagram: norm after, sinusoids, relu (Vaswani et al., 2017)."""
    block = BlockConfig.preset("post-norm", width, heads)
    embedding = EmbeddingConfig(vocabulary, scale=math.sqrt(width))
    encoder = EncoderConfig(embedding, block, layers, Sinusoidal())
    return EncoderDecoderConfig(encoder, DecoderConfig(embedding, block, layers, Sinusoidal()))


def t5(width=64, layers=2, heads=4, vocabulary=128) -> EncoderDecoderConfig:
    """Encoder and decoder with distances as biases, unscaled scores (Raffel et al., 2020)."""
    attention = AttentionConfig(heads, mechanism=Softmax(scale=1.0), biases=())
    mlp, norm = MLPConfig(4 * width, "relu", bias=False), NormConfig("rms", "before", 1e-6)
    block, embedding = BlockConfig(width, attention, mlp, norm), EmbeddingConfig(vocabulary)
    encoder = EncoderConfig(embedding, block, layers, Distances())
    head = TokenHead(scale=width**-0.5)
    return EncoderDecoderConfig(encoder, DecoderConfig(embedding, block, layers, Distances(), head))


def vit(
    width=64, layers=2, heads=4, image=32, patch=8, channels=3, classes=10
) -> VisionTransformerConfig:
    """Encoder over the patches of an image (Dosovitskiy et al., 2021)."""
    block = replace(BlockConfig.preset("pre-norm", width, heads), norm=NormConfig(epsilon=1e-12))
    head = ClassHead(classes)
    return VisionTransformerConfig((image, image), (patch, patch), block, layers, channels, head)


def davit(width=32, heads=2, image=32, window=4, classes=10) -> DaViTConfig:
    """Windows, then channels, in two stages (Ding et al., 2022)."""
    stages = (Stage(width, heads, stride=4), Stage(2 * width, 2 * heads, stride=2))
    return DaViTConfig((image, image), stages, (window, window), 3, ClassHead(classes))


def masked_patches(
    width=64, heads=4, image=32, patch=8, channels=1, share=0.75
) -> PatchAutoencoderConfig:
    """An autoencoder whose encoder reads a quarter of the patches (He et al., 2022)."""
    wide, narrow = (BlockConfig.preset("pre-norm", size, heads) for size in (width, width // 2))
    sides = (image, image), (patch, patch)
    return PatchAutoencoderConfig(*sides, wide, narrow, share=share, channels=channels)


def autoencoder(inputs=64, latent=8, hidden=32) -> AutoencoderConfig:
    """Return an autoencoder of vectors with one hidden layer each way."""
    return AutoencoderConfig(inputs, latent, (hidden,))


def linear_autoencoder(inputs=64, latent=8) -> AutoencoderConfig:
    """Return two matrices and nothing else: what principal components solve."""
    return AutoencoderConfig(inputs, latent, bias=False)


def denoising_autoencoder(inputs=64, latent=8, hidden=32) -> AutoencoderConfig:
    """Return an autoencoder that is shown vectors with noise."""
    return replace(autoencoder(inputs, latent, hidden), corruption=Noise(0.5))


def masked_autoencoder(inputs=64, latent=8, hidden=32) -> AutoencoderConfig:
    """Return an autoencoder that is shown vectors with half of their features at 0."""
    return replace(autoencoder(inputs, latent, hidden), corruption=Hide(0.5))


PRESETS: dict[str, Callable[..., Any]] = {
    "bert": bert,
    "gpt": gpt,
    "llama": llama,
    "mistral": partial(llama, window=8),
    "alibi": alibi,
    "argmax": partial(mechanism, Argmax()),
    "softmax": partial(mechanism, Softmax()),
    "elu": partial(mechanism, Kernel(EluPlusOne())),
    "quadratic": partial(mechanism, Kernel(Quadratic(), scale=1 / 4)),
    "quadratic-decay": partial(decaying, Kernel(Quadratic(), scale=1 / 4)),
    "transformer": original,
    "t5": t5,
    "vit": vit,
    "davit": davit,
    "autoencoder": autoencoder,
    "linear-autoencoder": linear_autoencoder,
    "denoising-autoencoder": denoising_autoencoder,
    "masked-autoencoder": masked_autoencoder,
    "masked-patches": masked_patches,
}


def preset(name: str, sizes: Mapping[str, Any] | None = None) -> Any:
    """Return the config of a name in PRESETS, small unless sizes are given."""
    names, sizes = preset_sizes(name), sizes or {}
    if not isinstance(sizes, Mapping):
        raise WrongTypeError(f"sizes are names with numbers; got {sizes!r}")
    for size in sizes:
        if size not in names:
            raise QuerykeyError(
                f"the preset {name!r} has no size {size!r} (it has {', '.join(names)})"
            )
    return PRESETS[name](**sizes)


def preset_sizes(name: str) -> tuple[str, ...]:
    """Return the names of the sizes that a preset leaves open."""
    if not isinstance(name, str) or name not in PRESETS:
        raise QuerykeyError(f"there is no preset {name!r} (there is {', '.join(PRESETS)})")
    return tuple(inspect.signature(PRESETS[name]).parameters)


def factory(name: str) -> Callable[[], nn.Module]:
    """Return a callable without arguments that builds the preset's model."""
    return lambda: build(preset(name))


def __getattr__(name: str) -> Callable[[], nn.Module]:
    """Give every preset a factory by name: `make_gpt`, `make_linear_autoencoder`, ..."""
    wanted = name.removeprefix("make_").replace("_", "-")
    if name.startswith("make_") and wanted in PRESETS:
        return factory(wanted)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
