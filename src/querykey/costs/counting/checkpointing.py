"""Run a model with activation checkpointing: every numbered layer once more in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from querykey.costs.inputs import CostError


@contextmanager
def layers_checkpointed(model: nn.Module) -> Iterator[None]:
    """Checkpoint the layers of every list, those within another layer's own lists left out."""
    layers = _layers(model)
    if not layers:
        raise CostError("the model has no list of layers, so nothing of it is checkpointed")
    for layer in layers:
        layer.forward = _checkpointed(layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _layers(model: nn.Module) -> list[nn.Module]:
    members: list[nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and id(module) not in inside:
            layers = [layer for layer in module if any(True for _ in layer.parameters())]
            if len(layers) > 1 and "forward" not in vars(layers[0]):
                members += layers
                inside |= {id(inner) for layer in layers for inner in layer.modules()}
    return members


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run
