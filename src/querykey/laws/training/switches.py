"""Modules that act differently in training and in evaluation."""

from __future__ import annotations

from torch import nn

from querykey.laws.private import BATCH_NORMS, DROPOUTS


def acts(module: nn.Module) -> bool:
    """Return whether a module of torch computes something else in training than in evaluation."""
    if isinstance(module, DROPOUTS):
        return module.p > 0
    if isinstance(module, nn.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, (*BATCH_NORMS, nn.RReLU)) and (
        getattr(module, "track_running_stats", True) is not False
    )


def of_model(model: nn.Module) -> tuple[list[str], list[str]]:
    """Return the paths of modules that depend on the mode: in training, and in evaluation mode."""
    named = [(path, module) for path, module in model.named_modules() if acts(module)]
    on = [path for path, module in named if module.training]
    return on, [path for path, module in named if not module.training]
