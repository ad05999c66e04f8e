"""Rows and columns of a weight that the answer depends on and that no derivative reaches.

A fused projection is one weight with several purposes: where one of them is cut off, the others
still give the weight a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from querykey.laws.catalogue.derivatives import trained
from querykey.laws.run import Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import deviation
from querykey.laws.understanding.facts import FLOORS

NUDGE = 1e-5  # relative: too small to turn on a unit of relu that is off
NOTICED = 1e-4  # of the nudge; its square, which a lawful zero derivative allows, is far below
FEW = 2  # a single row may be that of a padding token, which is kept from learning


@dataclass
class UnreachedLines:
    """By weight and axis, the rows and columns whose derivative was zero in every run so far."""

    lines: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)

    def note(self, model: nn.Module) -> None:
        """Read the gradients that a backward pass has left."""
        for name, weight in trained(model):
            if weight.dim() != 2 or weight.grad is None:
                continue
            for axis in (0, 1):
                zero = (weight.grad == 0).all(1 - axis)
                self.lines[name, axis] = zero & self.lines.get((name, axis), zero)

    def that_matter(self, runner: Runner, setting: Setting) -> Iterator[tuple[str, str]]:
        """Yield weights, some unreached lines of which matter to the answer, and say which."""
        model = runner.copies.of(setting)
        tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        for (name, axis), zero in self.lines.items():
            weight = dict(model.named_parameters())[name]
            count = int(zero.sum())
            if not FEW <= count < len(zero) or id(weight) in tables:
                continue
            if _matters(runner, setting, weight, axis, zero):
                what = ("rows", "columns")[axis]
                first = int(zero.nonzero()[0])
                yield name, f"{count} of the {len(zero)} {what} of {name}, from {first} on,"


def _matters(
    runner: Runner, setting: Setting, weight: torch.Tensor, axis: int, lines: torch.Tensor
) -> bool:
    """Return whether the answer follows a small change of these lines."""
    run = Run(runner.inputs(setting), setting)
    with torch.no_grad():
        before = runner.answer(run)
        with runner.copies.settling(), _nudged(weight, axis, lines):
            after = runner.answer(run)
    return deviation(before, after)[0] > max(NOTICED * NUDGE, FLOORS * runner.facts.floor)


@contextmanager
def _nudged(weight: torch.Tensor, axis: int, lines: torch.Tensor) -> Iterator[None]:
    """Change these lines a little inside this context."""
    kept = weight.detach().clone()
    noise = torch.randn(kept.shape, generator=torch.Generator().manual_seed(3)).to(kept)
    chosen = lines.unsqueeze(1 - axis)
    weight.add_(torch.where(chosen, NUDGE * kept.pow(2).mean().sqrt() * noise, 0.0))
    try:
        yield
    finally:
        weight.copy_(kept)
