"""Transformers and autoencoders: build them, load real weights, generate with them, probe them.

model = Decoder(preset("gpt"))
model = load("folder")  # of Hugging Face's: config.json and safetensors
save(model, "copy")
"""

from querykey.models.autoencoder import Autoencoder, AutoencoderConfig, Hide, Noise
from querykey.models.build import build
from querykey.models.config import (
    ClassHead,
    DecoderConfig,
    Distances,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    Learned,
    Sinusoidal,
    Special,
    TokenHead,
)
from querykey.models.davit import DaViT, DaViTConfig, Stage
from querykey.models.families.table import FolderError
from querykey.models.generate import stream
from querykey.models.patches import PatchAutoencoder, PatchAutoencoderConfig
from querykey.models.presets import PRESETS, preset
from querykey.models.pretrained import load, save
from querykey.models.stack import ModelState
from querykey.models.text import Decoder, Encoder, EncoderDecoder
from querykey.models.vision import VisionTransformer, VisionTransformerConfig

__all__ = [
    "PRESETS",
    "Autoencoder",
    "AutoencoderConfig",
    "ClassHead",
    "DaViT",
    "DaViTConfig",
    "Decoder",
    "DecoderConfig",
    "Distances",
    "EmbeddingConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "FolderError",
    "Hide",
    "Learned",
    "ModelState",
    "Noise",
    "PatchAutoencoder",
    "PatchAutoencoderConfig",
    "Sinusoidal",
    "Special",
    "Stage",
    "TokenHead",
    "VisionTransformer",
    "VisionTransformerConfig",
    "build",
    "load",
    "preset",
    "save",
    "stream",
]
