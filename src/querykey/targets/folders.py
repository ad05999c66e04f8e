"""Folders with config.json and safetensors, of Hugging Face's layout or of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from querykey.targets.errors import TargetError
from querykey.targets.guessing import find_inputs
from querykey.targets.huggingface import config_classes, inputs_of, transformers_library
from querykey.targets.inputs import Input
from querykey.targets.trial import quiet
from querykey.words import last_line, suggest

OURS = "querykey"  # the model_type of folders that only `querykey.models` reads


def build_folder(path: str) -> tuple[nn.Module, tuple[Input, ...], str]:
    """Return a folder's model, its inputs and a note; nothing is downloaded, no pickle is read."""
    folder = Path(path)
    model_type, architecture = _read_config(path)
    if not any(folder.glob("*.safetensors")):
        raise TargetError(
            f"folder `{path}` has no *.safetensors file (pickled weights are not read)"
        )
    if model_type == OURS:
        return _our_folder(folder)
    model_class = _model_class(folder / "config.json", model_type, architecture)
    try:
        with quiet(), _no_progress_bar():
            model = model_class.from_pretrained(
                str(folder), local_files_only=True, use_safetensors=True
            ).eval()
    except Exception as error:
        raise TargetError(f"folder `{path}` does not load: {last_line(error)[:300]}") from error
    return model, inputs_of(model), "weights from the folder"


def save_pretrained(model: Any, folder: Path) -> None:
    """Write a `transformers` model as that library does, without its progress bar."""
    with quiet(), _no_progress_bar():
        model.save_pretrained(str(folder))


def _read_config(path: str) -> tuple[str, str | None]:
    """Return the model_type and the first of the architectures that config.json names."""
    file = Path(path) / "config.json"
    if not file.is_file():
        raise TargetError(f"folder `{path}` has no config.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        return config["model_type"], (config.get("architectures") or [None])[0]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TargetError(f"`{file}` names no model_type: {last_line(error)}") from error


def _model_class(file: Path, model_type: str, architecture: str | None) -> Any:
    library = transformers_library()
    model_class = getattr(library, architecture, None) if architecture else None
    if model_class is None:
        types = config_classes()
        if model_type not in types:
            raise TargetError(
                f"`{file}`: transformers {library.__version__} has no architecture "
                f"`{model_type}`{suggest(model_type, types)}"
            )
        model_class = library.AutoModel
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
