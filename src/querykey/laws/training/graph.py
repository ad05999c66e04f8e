"""The graph of a loss: which tensors get a gradient from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch


def nodes_of(roots: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Yield every node of the graphs of these tensors once, the nearest first."""
    queue = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(map(id, queue))
    kept = list(queue)  # nodes are made when they are asked for: kept, so that ids stay taken
    for node in kept:
        yield node
        for below, _ in node.next_functions:
            if below is not None and id(below) not in seen:
                seen.add(id(below))
                kept.append(below)


def leaves_of(roots: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the tensors that get a gradient from a backward pass, by id."""
    roots = list(roots)
    leaves = [root for root in roots if root.grad_fn is None and root.requires_grad]
    leaves += [
        variable
        for node in nodes_of(roots)
        if (variable := getattr(node, "variable", None)) is not None
    ]
    return {id(leaf): leaf for leaf in leaves}
