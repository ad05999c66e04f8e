"""An argument that hides padding: what to pass for a table of real tokens, and back."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

ADDED = -1e9  # to the score of a key that is hidden, by masks that are added
REAL = re.compile(r"attention_mask|real|valid")  # names by which a 1 marks a real token


@dataclass(frozen=True)
class MaskArgument:
    """An argument that tells a model which tokens are real and which are padding."""

    name: str
    axis: str  # the length that it covers
    hides: bool = False  # True: a 1 marks padding, as in torch.nn
    dtype: torch.dtype = torch.long  # a float is added to scores: 0 for what is real
    counts: str = ""  # "any order" or "longest first": it takes the number of real tokens instead
    form: str = ""  # "keys": (batch, 1, 1, keys); "pairs": (batch, 1, queries, keys)

    def __str__(self) -> str:
        if self.counts:
            return f"{self.name} (how many tokens are real)"
        if self.dtype.is_floating_point:
            return f"{self.name} (added to scores, 0 for a real token)"
        mark = True if self.dtype is torch.bool else 1
        return f"{self.name} ({mark} marks {'padding' if self.hides else 'a real token'})"

    def value(self, real: torch.Tensor) -> torch.Tensor:
        """Return what to pass for this (batch, positions) table of real tokens."""
        real = real.bool()
        if self.counts:
            return real.sum(1)
        if self.dtype.is_floating_point:
            told = torch.zeros(real.shape, dtype=self.dtype).masked_fill(~real, ADDED)
        else:
            told = (~real if self.hides else real).to(self.dtype)
        if not self.form:
            return told
        queries = real.shape[1] if self.form == "pairs" else 1
        return told[:, None, None].expand(-1, 1, queries, -1).contiguous()

    def real(self, value: torch.Tensor, length: int) -> torch.Tensor:
        """Return the (batch, positions) table of real tokens that a value speaks of."""
        if self.counts:
            return torch.arange(length) < value[:, None]
        if self.form:
            value = value[:, 0, 0]
        return value == 0 if self.dtype.is_floating_point else value.bool() ^ self.hides

    def cut(self, value: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return what to pass for the tokens from `start` on, which look at all before `stop`."""
        return value[:, :, start:stop, :stop] if self.form == "pairs" else value[..., :stop]

    @property
    def names_real(self) -> bool:
        """Return whether its name settles that a 1 marks a real token."""
        return bool(REAL.search(self.name))
