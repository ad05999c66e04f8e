"""Transformers and autoencoders: build them, load real weights, generate with them, probe them.

model = Decoder(preset("gpt"))
model = load("folder")  # of Hugging Face's: config.json and safetensors
save(model, "copy")
"""

from querykey.models.autoencoders.patches import PatchAutoencoder, PatchAutoencoderConfig
from querykey.models.autoencoders.vectors import Autoencoder, AutoencoderConfig, Hide, Noise
from querykey.models.build import build, is_ours
from querykey.models.decoding.generate import generate, stream
from querykey.models.decoding.prompts import Speaker
from querykey.models.folders.families.family import FolderError
from querykey.models.folders.load import load
from querykey.models.folders.save import save
from querykey.models.presets import PRESETS, preset, preset_sizes
from querykey.models.probe import probe
from querykey.models.text.config import (
    ClassHead,
    DecoderConfig,
    Distances,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    Learned,
    PairHead,
    Sinusoidal,
    Special,
    TokenHead,
)
from querykey.models.text.decoder import Decoder
from querykey.models.text.encoder import Encoder
from querykey.models.text.encoder_decoder import EncoderDecoder
from querykey.models.text.heads import initialise
from querykey.models.text.stack import ModelState
from querykey.models.tokenizers import (
    ByteTokenizer,
    CharacterTokenizer,
    Codec,
    TokenizerError,
    plain_tokenizer,
    special_names,
    tokenizer_json,
)
from querykey.models.vision.davit import DaViT, DaViTConfig, Stage
from querykey.models.vision.transformer import VisionTransformer, VisionTransformerConfig

__all__ = [
    "PRESETS",
    "Autoencoder",
    "AutoencoderConfig",
    "ByteTokenizer",
    "CharacterTokenizer",
    "ClassHead",
    "Codec",
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
    "PairHead",
    "PatchAutoencoder",
    "PatchAutoencoderConfig",
    "Sinusoidal",
    "Speaker",
    "Special",
    "Stage",
    "TokenHead",
    "TokenizerError",
    "VisionTransformer",
    "VisionTransformerConfig",
    "build",
    "generate",
    "initialise",
    "is_ours",
    "load",
    "plain_tokenizer",
    "preset",
    "preset_sizes",
    "probe",
    "save",
    "special_names",
    "stream",
    "tokenizer_json",
]
