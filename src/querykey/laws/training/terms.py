"""The terms of a loss: how many it averages, and with which weight each one enters the gradient.

The weights are measured, not read: the derivative that arrives at the operation which reduces the
terms holds every division and every scale, in whatever way these were written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from querykey.laws.private import saved
from querykey.laws.training.graph import name_of

LOSSES = {
    "NllLoss", "NllLoss2D", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy",
    "BinaryCrossEntropyWithLogits", "SoftMarginLoss", "MultiMarginLoss",
}  # fmt: skip
MEANS, SUMS = {"Mean"}, {"Sum"}
# Operations between a loss and the tensor that backward() is called on.
GLUE = {
    "Add", "Sub", "Mul", "Div", "Neg", "Mean", "Sum", "View", "UnsafeView", "ReshapeAlias",
    "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias", "Index", "MaskedSelect", "MaskedFill",
    "Stack", "Cat", "Select", "Slice", "Where", "Expand", "Permute", "Transpose", "T", "AsStrided",
}  # fmt: skip
NONE, MEAN, SUM = range(3)  # how torch numbers the reductions of its losses
AS_LARGE = 0.3  # beside the largest mass, from which a part of a loss counts as a main one


@dataclass
class Term:
    """One reduction in a loss: its terms, and their weights in the gradient once it is known."""

    kind: str
    count: float
    mass: float = math.nan  # the sum of the weights
    weight: float = math.nan  # of every single term
    even: bool = True  # whether all terms have the same weight

    def measure(self, gradient: torch.Tensor, how: int) -> None:
        """Take the weights from the gradient that arrives at a mean, a sum, or single terms."""
        values = gradient.detach().double()
        if how == NONE:
            values = values[values != 0]
            self.count = values.numel()
            self.mass = float(values.sum())
            self.even = bool(self.count) and bool((values - values.mean()).abs().max() < 1e-6)
            self.weight = self.mass / max(self.count, 1)
            return
        total = float(values.sum())
        self.mass = total if how == MEAN else total * self.count / max(values.numel(), 1)
        self.weight = self.mass / max(self.count, 1)


def watch_terms(roots: Iterable[torch.Tensor]) -> tuple[list[Term], list[Any]]:
    """Return the terms of a loss, which the coming backward pass measures, and handles of hooks."""
    losses, reductions = _found(roots)
    terms, handles = [], []
    for node in losses or reductions:
        how, count = _reduced(node)
        term = Term(name_of(node), count)
        terms.append(term)

        def measure(gradients: Any, term: Term = term, how: int = how) -> None:
            if gradients and isinstance(gradients[0], torch.Tensor):
                term.measure(gradients[0], how)

        handles.append(node.register_prehook(measure))
    return terms, handles


def _found(roots: Iterable[torch.Tensor]) -> tuple[list[Any], list[Any]]:
    """Return torch's losses below these tensors, and the outermost means and sums."""
    losses, reductions = [], []
    queue = [(root.grad_fn, False) for root in roots if root.grad_fn is not None]
    seen: set[int] = set()
    kept = []
    while queue and len(kept) < 400:
        node, inside = queue.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        kept.append(node)
        name = name_of(node)
        if name in LOSSES:
            losses.append(node)
            continue
        if name not in GLUE:
            continue
        if name in MEANS | SUMS and not inside:
            reductions.append(node)
            inside = True
        queue += [(below, inside) for below, _ in node.next_functions if below is not None]
    return losses, reductions


def _reduced(node: Any) -> tuple[int, float]:
    """Return how a node reduces its terms, and how many they are."""
    if name_of(node) in LOSSES:
        how = saved(node, "reduction")
        how = how if how in (NONE, MEAN, SUM) else NONE
        return how, _judged(node)
    numel = math.prod(int(size) for size in saved(node, "self_sym_sizes") or (1,))
    if name_of(node) in MEANS:
        return MEAN, numel
    below = node.next_functions[0][0] if node.next_functions else None
    return SUM, _masked(below) or numel


def _judged(node: Any) -> float:
    """Return how many terms one of torch's losses has: what it ignores is none."""
    target, ignored = saved(node, "target"), saved(node, "ignore_index")
    if target is None:
        own = saved(node, "self")
        return float(own.numel()) if own is not None else 1.0
    if ignored is not None and not target.is_floating_point():
        ignored = ignored - 2**64 if ignored >= 2**63 else ignored
        return float((target != ignored).sum())
    return float(target.numel())


def _masked(node: Any) -> float:
    """Return how many terms a mask leaves where a node multiplies by one of zeros and ones."""
    if node is None or name_of(node) != "Mul":
        return 0.0
    for side in ("other", "self"):
        mask = saved(node, side)
        if mask is not None and mask.numel() > 1 and not mask.requires_grad:
            values = mask.detach()
            if bool(((values == 0) | (values == 1)).all()):
                return float(values.sum())
    return 0.0


def main_terms(terms: Iterable[Term]) -> list[Term]:
    """Return the terms that carry a loss, without small ones beside them, such as penalties."""
    terms = [term for term in terms if math.isfinite(term.mass) and term.mass > 0]
    largest = max((term.mass for term in terms), default=0.0)
    return [term for term in terms if term.mass >= AS_LARGE * largest]
