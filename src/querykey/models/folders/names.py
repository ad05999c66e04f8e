"""Which tensor of a folder is which of ours: a family's table, written out for one model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from querykey.models.folders.families.family import Family, Row

OURS = "querykey"  # the model_type of folders that only we can read
Match = tuple[Row, tuple[str, ...]]  # a row with their full name, and our full names


def stored_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every parameter once, however many names it has, and every buffer that is saved."""
    yield from model.named_parameters()
    saved = model.state_dict(keep_vars=True)
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in saved)


def matches(family: Family, config: Any, ours: set[str]) -> Iterator[Match]:
    """Yield every row that names tensors of ours, with .weight or .bias where a module is meant."""
    pair = getattr(config, "encoder", None)
    layers = config.layers if pair is None else max(pair.layers, config.decoder.layers)
    for row in family.table(config, layers):
        for end in ("", ".weight", ".bias"):
            names = tuple(name + end for name in row.ours)
            if ours.issuperset(names):
                yield Row(row.theirs + end, names, row.layout), names
