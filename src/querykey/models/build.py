"""The model that every kind of config describes, and `build`, which makes it."""

from __future__ import annotations

from typing import Any

from torch import nn

from querykey.errors import WrongTypeError
from querykey.models.autoencoders.patches import PatchAutoencoder, PatchAutoencoderConfig
from querykey.models.autoencoders.vectors import Autoencoder, AutoencoderConfig
from querykey.models.text.config import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from querykey.models.text.decoder import Decoder
from querykey.models.text.encoder import Encoder
from querykey.models.text.encoder_decoder import EncoderDecoder
from querykey.models.vision.davit import DaViT, DaViTConfig
from querykey.models.vision.transformer import VisionTransformer, VisionTransformerConfig

MODELS: dict[type, type[nn.Module]] = {
    EncoderConfig: Encoder,
    DecoderConfig: Decoder,
    EncoderDecoderConfig: EncoderDecoder,
    VisionTransformerConfig: VisionTransformer,
    DaViTConfig: DaViT,
    AutoencoderConfig: Autoencoder,
    PatchAutoencoderConfig: PatchAutoencoder,
}


def build(config: Any) -> nn.Module:
    """Return the model that a config describes, with weights drawn at random."""
    kind = MODELS.get(type(config))
    if kind is None:
        names = ", ".join(config_kind.__name__ for config_kind in MODELS)
        raise WrongTypeError(f"a model wants one of {names}; got {config!r}")
    return kind(config)


def is_ours(model: nn.Module) -> bool:
    """Return whether `build` can make this model from its config, and `save` can write it."""
    kind = MODELS.get(type(getattr(model, "config", None)))
    return kind is not None and isinstance(model, kind)
