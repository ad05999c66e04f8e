"""The arguments of a model's forward, and examples of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Input:
    """One argument of forward, whose axes are names (free sizes) or fixed sizes."""

    name: str
    kind: str  # tokens, mask, start, features, image or signal
    axes: tuple[str | int, ...]
    low: int = 0  # token ids are drawn from low to high - 1, clear of special tokens
    high: int = 0
    required: bool = True

    def __str__(self) -> str:
        axes = ", ".join(str(axis) for axis in self.axes)
        what = {
            "tokens": f"token ids {self.low} to {self.high - 1}",
            "mask": "1 for real tokens",
            "start": "the first token's position, a number",
        }
        return f"({axes}) {what.get(self.kind, f'floats, {self.kind}')}"

    def make(self, sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor | int:
        """Return a random value with the free axes at these sizes."""
        if self.kind == "start":
            return 0
        shape = [axis if isinstance(axis, int) else sizes[axis] for axis in self.axes]
        if self.kind == "tokens":
            return torch.randint(self.low, self.high, shape, generator=generator)
        if self.kind == "mask":
            return torch.ones(shape, dtype=torch.long)
        return torch.randn(shape, generator=generator)


def examples(inputs: tuple[Input, ...], batch: int, length: int, seed: int) -> dict[str, Any]:
    """Return a random value for every required input, by name.

    Target sequences are shorter than source sequences, so that a mix-up of the two shows.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = {"batch": batch, "seq": length, "target_seq": max(1, length - 2)}
    return {one.name: one.make(sizes, generator) for one in inputs if one.required}
