"""Build any architecture of the installed `transformers`, shrunk, with random weights.

What is special about building Hugging Face models lives here, in shrink.py and in folders.py.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import nn

from querykey.targets.errors import TargetError
from querykey.targets.inputs import Input
from querykey.targets.shrink import is_int, shrink
from querykey.targets.trial import quiet, trial
from querykey.words import last_line, suggest

HEADS = ("causal", "masked", "seq2seq")


def build_architecture(name: str, seed: int = 0) -> tuple[nn.Module, tuple[Input, ...], str]:
    """Return the model of `hf:NAME[:head]`, its inputs and a note; the seed decides its weights."""
    model_type, head = parse_architecture(name)
    attempts = []
    for fill in (False, True):
        try:
            with quiet(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = _model(model_type, head, fill).eval()
                inputs = inputs_of(model)
                trial(model, inputs)
        except Exception as error:
            attempts.append(error)
        else:
            return model, inputs, "shrunk, random weights"
    # The first error is the architecture's own; the second may come from the sizes filled in.
    reason = last_line(attempts[0])
    raise TargetError(f"`{name}` does not run when shrunk: {reason[:300]}") from attempts[0]


def preload() -> None:
    """Import what building needs once, before worker processes are forked that all need it."""
    try:
        import_module("transformers.modeling_utils")
    except ImportError:
        return  # every target will say that it is missing
    config_classes()
    for head in HEADS:
        _classes(head)


def pairs() -> list[tuple[str, str]]:
    """Return every (model_type, head) that the installed `transformers` has, in its order."""
    return [(model_type, head) for head in HEADS for model_type in _classes(head)]


def inputs_of(model: Any) -> tuple[Input, ...]:
    """Return what a `transformers` model's forward takes: text, images, or else features."""
    config: Any = model.config
    arguments = inspect.signature(model.forward).parameters
    main = model.main_input_name
    if main == "pixel_values" or "input_ids" not in arguments:
        return (_non_text(main, config),)
    low, high = _plain_ids(model)
    # Music decoders read one row of ids per codebook.
    rows = getattr(config, "num_codebooks", 1) if "Musicgen" in type(model).__name__ else 1
    if rows > 1:
        return (Input("input_ids", "tokens", (2 * rows, "seq"), low, high),)
    inputs = [Input("input_ids", "tokens", ("batch", "seq"), low, high)]
    if "attention_mask" in arguments:
        inputs.append(Input("attention_mask", "mask", ("batch", "seq"), required=False))
    if config.is_encoder_decoder and "decoder_input_ids" in arguments:
        inputs.append(Input("decoder_input_ids", "tokens", ("batch", "target_seq"), low, high))
    return tuple(inputs)


def parse_architecture(name: str) -> tuple[str, str | None]:
    """Return the model_type and the head of `hf:NAME[:head]`, if the installed library has them."""
    model_type, _, head = name.removeprefix("hf:").partition(":")
    if "/" in model_type:
        raise TargetError(
            f"`{name}`: no weights are downloaded; name the architecture by its model_type "
            "(hf:llama), or give a local folder with config.json and safetensors"
        )
    types, version = config_classes(), transformers_library().__version__
    if model_type not in types:
        hint = suggest(model_type, types)
        raise TargetError(
            f"`{name}`: transformers {version} has no architecture `{model_type}`{hint}"
        )
    if head and head not in HEADS:
        raise TargetError(
            f"`{name}`: a head is one of {', '.join(HEADS)}, not `{head}`{suggest(head, HEADS)}"
        )
    has = [h for h in HEADS if model_type in _classes(h)]
    if head and head not in has:
        others = f"it has {', '.join(has)}" if has else f"write `hf:{model_type}`"
        raise TargetError(
            f"`{name}`: `{model_type}` has no {head} head in transformers {version}; {others}"
        )
    return model_type, head or None


def _model(model_type: str, head: str | None, fill: bool) -> nn.Module:
    config = config_classes()[model_type]()
    head = head or _usual_head(model_type, config)
    config, model_class = class_with_head(model_type, head, config)
    return model_class(shrink(config, head, fill))


def class_with_head(model_type: str, head: str | None, config: Any) -> tuple[Any, Any]:
    """Return the configuration of the model with this head, or the usual one, and its class."""
    head = head or _usual_head(model_type, config)
    if head in HEADS:
        model_class = getattr(transformers_library(), _classes(head)[model_type])
    else:
        model_class = _other_class(config)
    wanted = model_class.config_class
    if wanted and not isinstance(config, wanted):  # the head belongs to a part, such as the decoder
        config = next(part for part in vars(config).values() if isinstance(part, wanted))
    return config, model_class


def _usual_head(model_type: str, config: Any) -> str | None:
    """Return the head that the architecture is usually used with, or None for other models."""
    if config.is_encoder_decoder and model_type in _classes("seq2seq"):
        return "seq2seq"
    return next((h for h in ("masked", "causal", "seq2seq") if model_type in _classes(h)), None)


def _plain_ids(model: Any) -> tuple[int, int]:
    """Return a range (low, high) of token ids without special tokens."""
    text = model.config.get_text_config()
    try:
        size = int(model.get_input_embeddings().num_embeddings)
    except (NotImplementedError, AttributeError):  # several towers, or hashed embeddings
        size = int(text.vocab_size)
    special = [
        value
        for config in (model.config, text)
        for name, value in vars(config).items()
        if name.endswith(("token_id", "token_index")) and is_int(value) and 0 <= value < size
    ]
    low = max([value + 1 for value in special if value < size // 2], default=0)
    high = min([value for value in special if value >= size // 2], default=size)
    return low, high


def _non_text(main: str, config: Any) -> Input:
    vision = getattr(config, "vision_config", config)
    if main == "pixel_values":
        size: Any = getattr(vision, "image_size", 32)
        height, width = (size, size) if is_int(size) else size
        return Input(main, "image", ("batch", getattr(vision, "num_channels", 3), height, width))
    bins = getattr(config, "num_mel_bins", None)
    axes = ("batch", bins, 2 * config.max_source_positions) if bins else ("batch", 4000)
    return Input(main, "signal", axes)


@cache
def transformers_library() -> ModuleType:
    """Return the `transformers` package, or raise a TargetError that says how to install it."""
    try:
        import transformers
    except ImportError as error:
        raise TargetError(
            "`hf:` targets and folders need transformers: `pip install querykey[hf]`"
        ) from error
    return transformers


@cache
def config_classes() -> Any:
    """Return the configuration class of each model_type."""
    transformers_library()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING


@cache
def _classes(head: str) -> dict[str, str]:
    """Return the name of the model class of each model_type that has this head."""
    from transformers.models.auto import modeling_auto as auto

    table = {
        "causal": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "masked": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "seq2seq": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    }[head]
    return {k: v if isinstance(v, str) else v[0] for k, v in table.items()}


def _other_class(config: Any) -> Any:
    """Return the class of an architecture without a text head: image classifier, or bare model."""
    from transformers.models.auto import modeling_auto as auto

    for table in (auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, auto.MODEL_MAPPING):
        if type(config) in table:
            classes = table[type(config)]
            return classes[0] if isinstance(classes, tuple) else classes
    raise TargetError(f"`{config.model_type}` has no model class in transformers")
