"""The graph of a loss: which tensors get a gradient from it, and of which operations it is made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch


def name_of(node: Any) -> str:
    """Return the operation of a node: `NllLoss` for NllLossBackward0."""
    return re.sub(r"Backward\d*$", "", node.name())


def nodes_of(roots: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Yield every node of the graphs of these tensors once, the nearest first."""
    return nodes_behind(root.grad_fn for root in roots if root.grad_fn is not None)


def leaves_of(roots: list[torch.Tensor], nodes: Iterable[Any]) -> dict[int, torch.Tensor]:
    """Return the tensors that get a gradient from a backward pass through these nodes, by id."""
    leaves = [root for root in roots if root.grad_fn is None and root.requires_grad]
    leaves += [v for node in nodes if (v := getattr(node, "variable", None)) is not None]
    return {id(leaf): leaf for leaf in leaves}


def nodes_behind(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield every node of the graphs that begin with these, once."""
    kept = list(nodes)
    seen = set(map(id, kept))
    for node in kept:  # which grows; nodes are kept, so that their ids stay taken
        yield node
        for below, _ in node.next_functions:
            if below is not None and id(below) not in seen:
                seen.add(id(below))
                kept.append(below)
