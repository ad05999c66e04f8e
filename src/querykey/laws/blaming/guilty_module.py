"""The module that is blamed: its path in the model, its class, and where that is written."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch
from torch import nn

from querykey.laws.blaming.recorder import ModuleCall
from querykey.laws.understanding.reachable import submodule
from querykey.words import short_path

ROOT = "(model)"


@dataclass(frozen=True)
class GuiltyModule:
    """A module of the checked model: its path, and its class with file and line."""

    path: str
    source: str


def describe(call: ModuleCall) -> GuiltyModule:
    """Return the module of a recorded call, as a report names it."""
    return GuiltyModule(call.path or ROOT, source_of(call.module))


def guilty_part(model: nn.Module, path: str) -> GuiltyModule:
    """Return the submodule at this path, as a report names it; a list of parts computes nothing."""
    while path and type(submodule(model, path)).forward is nn.Module.forward:
        path = path.rpartition(".")[0]
    return GuiltyModule(path or ROOT, source_of(submodule(model, path)))


def source_of(module: nn.Module) -> str:
    """Return the class of a module, with the file and line of its forward."""
    kind = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        return f"{module.original_name} in TorchScript"
    for place in (inspect.unwrap(kind.forward), kind):
        try:
            file, line = inspect.getsourcefile(place), inspect.getsourcelines(place)[1]
        except (OSError, TypeError):
            continue
        return f"{kind.__name__}, {short_path(file or '')}:{line}"
    return kind.__name__
