"""Folders with config.json and safetensors, of Hugging Face's layout or of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from querykey.targets.errors import TargetError
from querykey.targets.guessing import find_inputs
from querykey.targets.huggingface import config_classes, inputs_of, transformers_library
from querykey.targets.inputs import Input
from querykey.targets.limits import refuse_numbers
from querykey.targets.trial import quiet
from querykey.words import a_type, checked, last_line, suggest

OURS = "querykey"  # the model_type of folders that only `querykey.models` reads


def build_folder(path: str) -> tuple[nn.Module, tuple[Input, ...], str]:
    """Return a folder's model, its inputs and a note; nothing is downloaded, no pickle is read.

    Every tensor of the model comes from the folder, and every tensor of the folder has a place.
    """
    folder = Path(path)
    file = folder / "config.json"
    if not file.is_file():
        raise TargetError(f"folder `{path}` has no config.json")
    entries = read_config(file)
    if entries["model_type"] == OURS:
        return _our_folder(folder)
    files = _weights(folder)
    model_class = model_class_of(file, entries)
    held = {name: dtype for file in files for name, dtype in _held(path, file).items()}
    # A layer has a tensor at least; models that share one among all layers are the exception.
    refuse_numbers(f"{file}", entries, max(1000, len(held)))
    try:
        with quiet(), _no_progress_bar():
            model, loading = model_class.from_pretrained(
                str(folder), local_files_only=True, use_safetensors=True, output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
            )  # fmt: skip
    except Exception as error:
        raise TargetError(f"folder `{path}` does not load: {last_line(error)[:300]}") from error
    _refuse_random(path, model, loading)
    if not entries.get("quantization_config"):
        _refuse_small_numbers(path, model, held)
    return model.eval(), inputs_of(model), "weights from the folder"


def _refuse_random(path: str, model: nn.Module, loading: dict[str, Any]) -> None:
    """Raise the error for tensors that the folder lacks, or that the model has no place for."""
    missing, unexpected = sorted(loading["missing_keys"]), sorted(loading["unexpected_keys"])
    mismatched = sorted(loading["mismatched_keys"])
    if mismatched:
        name, held, wanted = mismatched[0]
        raise TargetError(
            f"folder `{path}`: tensor `{name}` is {tuple(held)}, and by config.json it is "
            f"{tuple(wanted)}"
        )
    if missing:
        count = len(model.state_dict())
        raise TargetError(
            f"folder `{path}` lacks {len(missing)} of the {count} tensors of its "
            f"{type(model).__name__}, such as `{missing[0]}`, which would be random"
        )
    if unexpected:
        raise TargetError(
            f"folder `{path}` has tensors without a place in its {type(model).__name__}: "
            f"{len(unexpected)}, such as `{unexpected[0]}`"
        )


def _refuse_small_numbers(path: str, model: nn.Module, held: dict[str, str]) -> None:
    """Raise the error for weights that are whole numbers in the file, or floats of 8 bits."""
    floats = {n for n, tensor in model.state_dict().items() if tensor.is_floating_point()}
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    for name, dtype in sorted(held.items()):
        names = {name, f"{prefix}{name}", name.removeprefix(prefix)}
        if dtype not in ("F64", "F32", "F16", "BF16") and names & floats:
            raise TargetError(
                f"folder `{path}`: tensor `{name}` holds {dtype} in the file; weights are floats "
                "of 16 bits or more"
            )


def _held(path: str, file: Path) -> dict[str, str]:
    """Return the dtype of every tensor in a file, as the file names it."""
    try:
        with safe_open(file, "pt") as opened:
            return {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise TargetError(f"folder `{path}` does not load: {last_line(error)[:300]}") from error


@checked
def save_pretrained(model: Any, folder: Path) -> None:
    """Write a `transformers` model as that library does, without its progress bar."""
    if isinstance(model, type) or not hasattr(model, "save_pretrained"):
        raise TargetError(f"`transformers` saves models of its own, not {a_type(model)}")
    with quiet(), _no_progress_bar():
        model.save_pretrained(str(folder))


def _weights(folder: Path) -> list[Path]:
    """Return the files of a folder's weights; none of its shards is missing or elsewhere."""
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file() and not (folder / "model.safetensors").is_file():
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            beside = {shard for shard in shards if Path(shard).name != shard}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise TargetError(f"folder `{folder}`: {index.name} is no index of shards") from None
        if beside:
            raise TargetError(
                f"folder `{folder}`: shard {min(beside)!r} is outside the folder; a shard is named "
                "by its file alone"
            )
        missing = shards - {file.name for file in files}
        if missing:
            raise TargetError(f"folder `{folder}`: its shard `{min(missing)}` is missing")
    if not files:
        raise TargetError(
            f"folder `{folder}` has no *.safetensors file (pickled weights are not read)"
        )
    return files


def read_config(file: Path) -> dict[str, Any]:
    """Return the entries of a config.json, a model_type among them."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TargetError(f"`{file}` is no JSON: {last_line(error, 200)}") from error
    if not isinstance(config, dict):
        raise TargetError(f"`{file}` holds no JSON object")
    if not isinstance(config.get("model_type"), str):
        raise TargetError(f"`{file}` names no model_type")
    if not isinstance(config.get("architectures") or [], list):
        raise TargetError(f"`{file}`: `architectures` is a list of names")
    return config


def model_class_of(file: Path, entries: dict[str, Any]) -> Any:
    """Return the class that config.json names, which is one of its model_type."""
    library, types = transformers_library(), config_classes()
    model_type, architecture = entries["model_type"], (entries.get("architectures") or [None])[0]
    if model_type not in types:
        raise TargetError(
            f"`{file}`: transformers {library.__version__} has no architecture "
            f"`{model_type}`{suggest(model_type, types)}"
        )
    if architecture is None:
        return library.AutoModel
    model_class = getattr(library, architecture, None) if isinstance(architecture, str) else None
    if not (isinstance(model_class, type) and issubclass(model_class, library.PreTrainedModel)):
        names = [name for name in dir(library) if name.lower().startswith(model_type[:3].lower())]
        raise TargetError(
            f"`{file}`: transformers {library.__version__} has no model class "
            f"`{architecture}`{suggest(str(architecture), names)}"
        )
    theirs = getattr(model_class.config_class, "model_type", model_type)
    if theirs != model_type:
        raise TargetError(
            f"`{file}`: `{architecture}` is a model of the type `{theirs}`, not `{model_type}`"
        )
    return model_class


def _our_folder(folder: Path) -> tuple[nn.Module, tuple[Input, ...], str]:
    """Load what `qk.models.save` wrote of a model that fits no Hugging Face architecture."""
    from querykey.models import load  # only such a folder needs our models

    try:
        model = load(folder)
    except ValueError as error:
        raise TargetError(f"folder `{folder}` does not load: {last_line(error)[:300]}") from error
    inputs, note = find_inputs(model)
    return model, inputs, note or "weights from the folder"


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep `transformers` from drawing a progress bar while it loads or saves."""
    bars = import_module("transformers.utils.logging")
    before = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            bars.enable_progress_bar()
