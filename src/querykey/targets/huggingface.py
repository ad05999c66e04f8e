"""Any architecture of the installed `transformers`, by its model_type, with random weights.

All Hugging Face specifics of the package live here and in shrink.py.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from querykey.targets.inputs import Input, find_inputs, quiet, trial
from querykey.targets.shrink import is_int, shrink
from querykey.targets.target import TargetError
from querykey.words import last_line, suggest

HEADS = ("causal", "masked", "seq2seq")
OURS = "querykey"  # the model_type of folders that only `querykey.models` reads


def build(name: str) -> tuple[nn.Module, tuple[Input, ...], str]:
    """Build `hf:NAME[:head]`, shrunk, with random weights that are the same every time."""
    model_type, head = _parse(name)
    attempts = []
    for fill in (False, True):
        try:
            with quiet(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = _model(model_type, head, fill).eval()
                inputs = inputs_of(model)
                trial(model, inputs)
        except Exception as error:
            attempts.append(error)
        else:
            return model, inputs, "shrunk, random weights"
    # The first failure is the architecture's own; the second may come from what was filled in.
    reason = last_line(attempts[0])
    raise TargetError(f"`{name}` does not run when shrunk: {reason[:300]}") from attempts[0]


def preload() -> None:
    """Import what building needs, before processes are forked that all would."""
    try:
        import_module("transformers.modeling_utils")
    except ImportError:
        return  # each target will say that it is missing
    _config_classes()
    for head in HEADS:
        _classes(head)


def pairs() -> list[tuple[str, str]]:
    """Every (model_type, head) that the installed `transformers` has, in its order."""
    return [(model_type, head) for head in HEADS for model_type in _classes(head)]


def inputs_of(model: Any) -> tuple[Input, ...]:
    """What a `transformers` model's forward takes, for the first of text, images and features."""
    config: Any = model.config
    arguments = inspect.signature(model.forward).parameters
    main = model.main_input_name
    if main == "pixel_values" or "input_ids" not in arguments:
        return (_non_text(main, config),)
    low, high = _plain_ids(model)
    # Musical decoders read one row of ids per codebook.
    rows = getattr(config, "num_codebooks", 1) if "Musicgen" in type(model).__name__ else 1
    if rows > 1:
        return (Input("input_ids", "tokens", (2 * rows, "seq"), low, high),)
    inputs = [Input("input_ids", "tokens", ("batch", "seq"), low, high)]
    if "attention_mask" in arguments:
        inputs.append(Input("attention_mask", "mask", ("batch", "seq"), required=False))
    if config.is_encoder_decoder and "decoder_input_ids" in arguments:
        inputs.append(Input("decoder_input_ids", "tokens", ("batch", "target_seq"), low, high))
    return tuple(inputs)


def build_folder(path: str) -> tuple[nn.Module, tuple[Input, ...], str]:
    """Load a folder with config.json and safetensors; no download, no pickle."""
    folder = Path(path)
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise TargetError(f"folder `{path}` has no config.json")
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
        model_type, wanted = config["model_type"], (config.get("architectures") or [None])[0]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TargetError(f"`{config_file}` names no model_type: {last_line(error)}") from error
    if not any(folder.glob("*.safetensors")):
        raise TargetError(
            f"folder `{path}` has no *.safetensors file (pickled weights are not read)"
        )
    if model_type == OURS:
        return _our_folder(folder)
    library = _transformers()
    model_class = getattr(library, wanted, None) if wanted else None
    if model_class is None:
        known = _config_classes()
        if model_type not in known:
            raise TargetError(
                f"`{config_file}`: transformers {library.__version__} has no architecture "
                f"`{model_type}`{suggest(model_type, known)}"
            )
        model_class = library.AutoModel
    try:
        with quiet(), _no_progress_bar():
            model = model_class.from_pretrained(
                str(folder), local_files_only=True, use_safetensors=True
            ).eval()
    except Exception as error:
        raise TargetError(f"folder `{path}` does not load: {last_line(error)[:300]}") from error
    return model, inputs_of(model), "weights from the folder"


def _our_folder(folder: Path) -> tuple[nn.Module, tuple[Input, ...], str]:
    """Load what `qk.models.save` wrote of a model that no family of Hugging Face's has."""
    try:
        # By its name, as presets are: this room does not know the models.
        model = import_module("querykey.models").load(folder)
    except ValueError as error:
        raise TargetError(f"folder `{folder}` does not load: {last_line(error)[:300]}") from error
    inputs, note = find_inputs(model)
    return model, inputs, note or "weights from the folder"


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep `transformers` from drawing how far it has loaded."""
    bars = import_module("transformers.utils.logging")
    before = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            bars.enable_progress_bar()


def _parse(name: str) -> tuple[str, str | None]:
    """Split `hf:NAME[:head]` and check both against what is installed."""
    model_type, _, head = name.removeprefix("hf:").partition(":")
    if "/" in model_type:
        raise TargetError(
            f"`{name}`: no weights are downloaded; name the architecture by its model_type "
            "(hf:llama), or give a local folder with config.json and safetensors"
        )
    known, version = _config_classes(), _transformers().__version__
    if model_type not in known:
        hint = suggest(model_type, known)
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
    library = _transformers()
    config = _config_classes()[model_type]()
    head = head or _usual_head(model_type, config)
    if head in HEADS:
        model_class = getattr(library, _classes(head)[model_type])
    else:
        model_class = _other_class(config)
    wanted = model_class.config_class
    if wanted and not isinstance(config, wanted):  # the head of a part, as a decoder within a model
        config = next(part for part in vars(config).values() if isinstance(part, wanted))
    return model_class(shrink(config, head, fill))


def _usual_head(model_type: str, config: Any) -> str | None:
    """What people use the architecture for: a pair of sequences, an encoder, or a decoder."""
    if config.is_encoder_decoder and model_type in _classes("seq2seq"):
        return "seq2seq"
    return next((h for h in ("masked", "causal", "seq2seq") if model_type in _classes(h)), None)


def _plain_ids(model: Any) -> tuple[int, int]:
    """A range of token ids that no special token is in."""
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
def _transformers() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        raise TargetError(
            "`hf:` targets and folders need transformers: `pip install querykey[hf]`"
        ) from error
    return transformers


@cache
def _config_classes() -> Any:
    _transformers()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING


@cache
def _classes(head: str) -> dict[str, str]:
    """The name of the model class for each model_type that has this head."""
    from transformers.models.auto import modeling_auto as auto

    table = {
        "causal": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "masked": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "seq2seq": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    }[head]
    return {k: v if isinstance(v, str) else v[0] for k, v in table.items()}


def _other_class(config: Any) -> Any:
    """The class for an architecture without a text head: an image classifier, or the bare model."""
    from transformers.models.auto import modeling_auto as auto

    for table in (auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, auto.MODEL_MAPPING):
        if type(config) in table:
            found = table[type(config)]
            return found[0] if isinstance(found, tuple) else found
    raise TargetError(f"`{config.model_type}` has no model class in transformers")
