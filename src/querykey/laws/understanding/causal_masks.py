"""Causal masks in what a forward pass computes, whoever made them and whatever becomes of them.

Source code can be read only where it is found; every operation of a call can be watched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from querykey.laws.private import without_vmap
from querykey.laws.understanding.outputs import tensors
from querykey.laws.understanding.reachable import walk

LOW = -1e3  # a score below hides a key
NORMALISERS = {"softmax", "exp", "logsumexp", "sigmoid"}
QUESTIONS = {"__get__", "is_inference"}  # about a tensor, by which nothing is made of it
IS_CAUSAL = {"scaled_dot_product_attention": 5, "multi_head_attention_forward": 25}  # its place


@dataclass(frozen=True)
class CausalSigns:
    """What speaks for a causal mask: one that hides scores, or only one that exists."""

    hides: str = ""  # a mask is applied to scores, or torch was asked for a causal one
    exists: str = ""  # a triangle of zeros and ones is made or kept
    both_ways: bool = False  # later keys are hidden from some scores, and earlier keys from others
    pairs: bool = False  # attention weighs every pair of positions


class MaskWatch(TorchFunctionMode):
    """Notes the causal masks among the arguments and results of operations inside this context."""

    def __init__(self, length: int):
        super().__init__()
        self.length = length
        self.hides = ""
        self.sides: set[str] = set()  # which keys are hidden from scores: later, earlier, or both
        self.exists = ""
        self.asked = ""
        self.pairs = False

    @property
    def signs(self) -> CausalSigns:
        """What was seen so far."""
        return CausalSigns(self.hides or self.asked, self.exists, len(self.sides) > 1, self.pairs)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        result = func(*args, **kwargs)
        if name in QUESTIONS:
            return result
        place = IS_CAUSAL.get(name)
        if place and (kwargs.get("is_causal") or (len(args) > place and args[place] is True)):
            self.asked = self.asked or f"{name} is called with is_causal=True"
        before = [t for t in plain_tensors((args, kwargs)) if self._is_table(t)]
        after = [t for t in plain_tensors(result) if self._is_table(t)]
        if name in IS_CAUSAL:
            lengths = [t.shape for t in args[:2] if isinstance(t, torch.Tensor)]
            self.pairs |= len(set(lengths)) == 1
        self.pairs |= name in NORMALISERS and bool(before)
        masks = [table for table in before if hidden_side(table)]
        if masks and after and _is_arithmetic_of_positions(after[0]):
            self.exists = ""  # a relative position that says before or after, as T5 counts it
            return result
        for table in (*before, *after):
            self._note(table, name)
        return result

    def _is_table(self, tensor: torch.Tensor) -> bool:
        return tensor.dim() >= 2 and tuple(tensor.shape[-2:]) == (self.length, self.length)

    def _note(self, table: torch.Tensor, name: str) -> None:
        """Remember a table over pairs of positions, if it is a causal mask or has one applied."""
        side = hidden_side(table)
        if not side:
            return
        corner = table.detach().reshape(-1, self.length, self.length)[0]
        hidden = corner[0, -1] if side == "later" else corner[-1, 0]
        if table.is_floating_point() and float(hidden) < LOW:
            words = f"scores of {side} keys are set to {float(hidden):.3g} in {name}"
            self.hides = self.hides or words
            if corner.unique().numel() > 4:  # scores, and not a mask alone
                self.sides.add(side)
        else:
            self.exists = self.exists or f"a causal mask is made or used in {name}"


def plain_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value; those of a vmap with the axes that it hides."""
    for _, tensor in tensors(value):
        yield without_vmap(tensor)


def _is_arithmetic_of_positions(table: torch.Tensor) -> bool:
    """Return whether a table holds whole numbers of more than two kinds: relative positions."""
    return not table.is_floating_point() and table.unique().numel() > 2


def hidden_side(value: torch.Tensor) -> str:
    """Return which keys a square table treats all alike: later ones, earlier ones, or neither.

    One diagonal more or less is a slip, not another kind of table. A table of one value, and one
    that treats both sides alike, is no causal mask.
    """
    if value.is_meta or value.is_complex() or value.shape[-1] < 4:
        return ""
    table = value.detach().reshape(-1, *value.shape[-2:])[0].cpu()
    if _is_arithmetic_of_positions(table):
        return ""
    for side, turned in (("later", table), ("earlier", table.mT)):
        differs = turned != turned[0, -1]
        if not differs.triu(2).any() and bool(differs.tril(-1).any()) and _reaches(differs):
            return side
    return ""


def _reaches(differs: torch.Tensor) -> bool:
    """Return whether nearly every position but the first sees one before it."""
    seen = differs.tril(-1).any(-1)
    return bool(seen[2:].all())


def masks_kept(model: nn.Module) -> str:
    """Return where a model keeps a causal mask: in a buffer, an attribute, a list or a closure."""
    for path, value in walk(model):
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            square = value.dim() >= 2 and value.shape[-1] == value.shape[-2]
            if square and value.shape[-1] <= 4096 and hidden_side(value):
                return f"`{path}` is a causal mask"
    return ""


def signs_in(run: Any, length: int) -> CausalSigns:
    """Return what one call shows; `run` makes the call."""
    watch = MaskWatch(length)
    try:
        with watch, torch.no_grad():
            run()
    except Exception:  # what was seen until then counts
        pass
    return watch.signs
