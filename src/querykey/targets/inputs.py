"""The arguments of a model's forward, and examples of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from querykey.targets.errors import TargetError
from querykey.words import check_fields, checked

KINDS = {
    "tokens": "tokens", "array": "features", "images": "image", "mask": "mask",
    "positions": "positions",
}  # fmt: skip
LENGTHS = ("seq", "target_seq", "third_seq")  # the names of free lengths in an Input
WORDS = 10  # token ids are below this where no embedding says how many there are


@dataclass(frozen=True)
class Input:
    """One argument of forward, whose axes are names (free sizes) or fixed sizes."""

    name: str
    kind: str  # tokens, mask, lengths, start, positions, features, image or signal
    axes: tuple[str | int, ...]
    low: int = 0  # token ids are drawn from low to high - 1, clear of special tokens
    high: int = 0
    required: bool = True
    real: int | bool = 1  # what marks a real token in a mask: 1, True, 0 or False

    def __post_init__(self):
        check_fields(self)

    def __str__(self) -> str:
        axes = ", ".join(str(axis) for axis in self.axes)
        what = {
            "tokens": f"token ids {self.low} to {self.high - 1}",
            "mask": f"{self.real} for real tokens",
            "lengths": "the number of real tokens",
            "start": "the first token's position, a number",
            "positions": "the position of every token, the same in all rows",
        }
        return f"({axes}) {what.get(self.kind, f'floats, {self.kind}')}"

    @checked
    def make(self, sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor | int:
        """Return a random value with the free axes at these sizes."""
        if self.kind == "start":
            return 0
        for axis in self.axes:
            if isinstance(axis, str) and axis not in sizes:
                raise TargetError(f"`{self.name}` wants a size for `{axis}`")
        shape = [axis if isinstance(axis, int) else sizes[axis] for axis in self.axes]
        if self.kind == "tokens":
            return torch.randint(self.low, self.high, shape, generator=generator)
        if self.kind == "mask":
            return torch.full(shape, self.real)
        if self.kind == "lengths":
            return torch.full(shape, sizes["seq"])
        if self.kind == "positions":
            return torch.arange(shape[-1]).expand(shape)
        return torch.randn(shape, generator=generator)


def examples(inputs: tuple[Input, ...], batch: int, length: int, seed: int) -> dict[str, Any]:
    """Return a random value for every required input, by name.

    Target sequences are shorter than source sequences, so that a mix-up of the two shows.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = {"batch": batch, "seq": length, "target_seq": max(1, length - 2)}
    return {one.name: one.make(sizes, generator) for one in inputs if one.required}


@checked
def stated_inputs(texts: Sequence[str], names: Sequence[str], words: int = 0) -> dict[str, Input]:
    """Return the inputs that texts such as `ids=tokens(batch,seq)` state, by name.

    An input without a name takes that of its place among `names`. The first axis that is called
    batch is the batch, or else the first free axis; the other names are free lengths. Token ids are
    below `words`.
    """
    free: list[str] = []  # the user's names of lengths, in order
    inputs = {}
    for place, text in enumerate(texts):
        match = re.fullmatch(r"\s*(?:(\w+)\s*=\s*)?(\w+)\s*\(([^()]*)\)\s*", text)
        if not match or match[2] not in KINDS:
            raise TargetError(
                f"`{text}` is no input; write NAME=KIND(AXIS, ...) with KIND one of "
                f"{', '.join(KINDS)}, as in --input 'ids=tokens(batch,seq)'"
            )
        name = match[1] or (names[place] if place < len(names) else f"argument_{place}")
        axes = [axis.strip() for axis in match[3].split(",") if axis.strip()]
        kind = KINDS[match[2]]
        high = (words or WORDS) if kind == "tokens" else 0
        rows = kind != "positions"
        inputs[name] = Input(name, kind, tuple(_axes(axes, free, text, rows)), 0, high)
    return inputs


def _axes(axes: list[str], free: list[str], text: str, rows: bool) -> list[str | int]:
    """Return axes as an Input has them: sizes, `batch`, and the names of free lengths.

    One of several `rows` has a batch axis, under whatever name.
    """
    named = [axis for axis in axes if not axis.isdecimal()]
    batch = next((axis for axis in named if axis == "batch"), named[0] if named and rows else "")
    if rows and not batch:
        raise TargetError(f"`{text}` has no free axis; name the batch, as in tokens(batch,seq)")
    result: list[str | int] = []
    for axis in axes:
        if axis.isdecimal():
            result.append(int(axis))
        elif axis == batch:
            result.append("batch")
        else:
            if axis not in free:
                free.append(axis)
            result.append(LENGTHS[min(free.index(axis), 2)])
    return result
