"""The model of a run as a folder of weights: for `qk generate`, `querykey.models.load`, and others.

A model of ours is written as `querykey.models.save` does it, one of `transformers` as that library
does it. Of any other model there are the weights alone, in model.safetensors.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from querykey.models import build, is_ours, save
from querykey.show import WriteError
from querykey.targets import is_hugging_face, save_pretrained
from querykey.train.checkpoints import unique_tensors
from querykey.train.ranks import Ranks, whole
from querykey.words import last_line


def export(model: nn.Module, folder: Path, ranks: Ranks) -> None:
    """Write the model into a folder; every rank calls this, for each may hold a part of it."""
    sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    tensors = {name: whole(tensor).cpu() for name, tensor in unique_tensors(model).items()}
    if ranks.first:
        aside = folder / "model.partial"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            aside.mkdir()
            _write(_assembled(model, tensors) if sharded else model, tensors, aside)
            for file in aside.iterdir():
                os.replace(file, folder / file.name)
            aside.rmdir()
        except (OSError, SafetensorError) as error:
            shutil.rmtree(aside, ignore_errors=True)
            reason = getattr(error, "strerror", None) or last_line(error)
            raise WriteError(f"the model could not be written to `{folder}`: {reason}") from error
    ranks.wait()


def _assembled(model: Any, tensors: dict[str, Tensor]) -> nn.Module:
    """Return a model that is all here, with the tensors of one that lies in shards."""
    if is_ours(model):
        fresh = build(model.config)
    elif is_hugging_face(model):
        fresh = type(model)(model.config)
    else:
        return model  # of which the tensors are written alone
    fresh.to(next(iter(tensors.values())).dtype)
    fresh.load_state_dict(tensors, strict=False)  # names of tied tensors are there once
    return fresh


def _write(model: Any, tensors: dict[str, Tensor], folder: Path) -> None:
    if is_ours(model):
        save(model, folder)
    elif is_hugging_face(model):
        save_pretrained(model, folder)
    else:
        # Parts of one tensor may be parameters, and safetensors takes no memory twice.
        apart = {n: t.clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}
        save_file(apart, folder / "model.safetensors")
