"""What happens in a training loop, as values in the order in which it happened."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from querykey.laws.training.site import Site


@dataclass
class LoopEvent:
    """Something that happened: its place in the order of all events, and its line of code."""

    order: int
    site: Site

    @property
    def source(self) -> str | None:
        """The file and line, as a report names them."""
        return f"training, {self.site}" if str(self.site) else None


@dataclass
class Forward(LoopEvent):
    """A call of a module that no other module called."""

    module: nn.Module
    training: bool
    with_graph: bool  # whether gradients were enabled


@dataclass
class Backward(LoopEvent):
    """A call of backward()."""

    number: int
    loss: float
    forwards: list[Forward] = field(default_factory=list)  # since the backward pass before
    leaves: dict[int, torch.Tensor] = field(default_factory=dict)  # what gets a gradient, by id
    carried: dict[int, float] = field(default_factory=dict)  # sizes of applied gradients below it


@dataclass
class Step(LoopEvent):
    """An optimizer applied the gradients to its parameters."""

    number: int  # among the steps of this optimizer
    optimizer: torch.optim.Optimizer
    gradients: dict[int, float] = field(default_factory=dict)  # their sizes, by parameter
    sources: dict[int, list[int]] = field(default_factory=dict)  # backward passes, by parameter
    again: dict[int, list[int]] = field(default_factory=dict)  # of these, those applied before

    @property
    def name(self) -> str:
        """What the optimizer is called in a sentence."""
        return type(self.optimizer).__name__
