"""Ids that a model itself takes for padding: it compares its tokens with them in its forward."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from querykey.laws.private import without_vmap
from querykey.laws.run import PLAIN, Run
from querykey.laws.runner import Runner
from querykey.laws.understanding.mask_argument import MaskArgument
from querykey.laws.understanding.signature import length_of

COMPARISONS = {"eq", "ne", "gt", "ge", "lt", "le"}
NAMES = re.compile(r"^([a-z]+_)?pad(ding)?_?(id|idx|index|token|token_id)?$")


class ComparedIds(TorchFunctionMode):
    """Notes the numbers that these ids are compared with inside this context, and what replaces
    some of them before they are looked up: the ids of marks, as of a start that is put first."""

    def __init__(self, ids: torch.Tensor):
        super().__init__()
        self.ids = ids
        self.numbers: set[int] = set()
        self.written: set[int] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "").strip("_") in COMPARISONS and len(args) == 2:
            value, other = args
            if isinstance(other, torch.Tensor) and without_vmap(other).dim() == 0:
                other = other.item()
            if isinstance(other, int) and self._is_ids(value):
                self.numbers.add(other)
        if getattr(func, "__name__", "") == "embedding" and args:
            self._note_looked_up(args[0])
        return func(*args, **(kwargs or {}))

    def _note_looked_up(self, value: object) -> None:
        """Remember what a row of words holds that is not among the row's ids."""
        if not isinstance(value, torch.Tensor) or without_vmap(value).dim() != 2:
            return
        if value.is_floating_point() or len(value) != len(self.ids):
            return
        for given, row in zip(self.ids.tolist(), without_vmap(value).tolist(), strict=True):
            new = [number for number in row if number not in given]
            if len(new) < len(row) / 2:  # else it is no row of words, but of positions
                self.written |= set(new)

    def _is_ids(self, value: object) -> bool:
        if not isinstance(value, torch.Tensor) or value.is_floating_point():
            return False
        same = value.shape in (self.ids.shape, self.ids.mT.shape)
        return same and any(torch.equal(value.cpu(), ids) for ids in (self.ids, self.ids.mT)
                            if ids.shape == value.shape)  # fmt: skip


def find_padding_ids(runner: Runner, masks: Iterable[MaskArgument]) -> Iterator[tuple[str, int]]:
    """Yield (length, id) where a model makes a mask from ids and takes none as an argument."""
    axes = {mask.axis for mask in masks}
    declared = list(dict.fromkeys(_declared(runner.copies.model)))
    for entry in runner.signature.inputs:
        if entry.kind != "tokens" or not length_of(entry) or length_of(entry) in axes:
            continue
        axes.add(length_of(entry))  # what stands beside ids says something else of them
        inputs = runner.inputs()
        watch = ComparedIds(inputs[entry.name])
        try:
            with watch, torch.no_grad():
                runner.call(runner.complete(Run(inputs, PLAIN)))
        except Exception:
            continue
        known = [token for token in declared if token in watch.numbers] or declared
        known = known or [token for token in (0,) if token in watch.numbers]
        if watch.numbers and known and 0 <= known[0] < max(entry.high, 1):
            yield length_of(entry), known[0]


def _declared(model: nn.Module) -> Iterator[int]:
    """Yield the ids that tables of embeddings and attributes call padding."""
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            yield module.padding_idx
        for name, value in vars(module).items():
            if NAMES.match(name) and type(value) is int:
                yield value
