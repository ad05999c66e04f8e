"""What happens in a training loop, as values in the order in which it happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from querykey.laws.training.site import Site
from querykey.laws.training.terms import Term

Batch = tuple[Any, ...]  # what tells the tensors of one call from those of another


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
    switches: list[str]  # the modules in it that act in one mode alone, and are in training mode
    asleep: list[str]  # those that are in evaluation mode
    batch: Batch = ()  # its inputs
    rows: int = 0  # the first size of its first input
    outputs: list[Any] = field(default_factory=list)  # the nodes of its outputs
    inputs: tuple[Any, Any] | None = None  # its arguments, of the first step alone
    used: bool = False  # by a backward pass
    random: int = 0  # a number for the states of the random generators when it began
    weights: float = 0.0  # a number for all values of the module then; where runs are compared
    answer: float = 0.0  # the sum of its output
    dropped: dict[str, bool] = field(default_factory=dict)  # by modules in evaluation mode: asked?
    again: bool = False  # during a backward pass, as a checkpoint does


@dataclass
class Backward(LoopEvent):
    """A backward pass: the loss it began with, and the parameters that it gave gradients to."""

    number: int
    loss: float
    scale: float  # by which a GradScaler multiplied the loss
    terms: list[Term]
    leaves: dict[int, torch.Tensor]  # what gets a gradient, by id
    carried: dict[int, float]  # norms of gradients that were applied before and are still there
    operations: set[str]  # in the graph
    forwards: list[Forward] = field(default_factory=list)  # whose outputs are in the graph


@dataclass
class Step(LoopEvent):
    """An optimizer applied the gradients to its parameters."""

    number: int  # among the steps of this optimizer
    optimizer: torch.optim.Optimizer
    gradients: dict[int, float]  # their norms, by parameter
    sources: dict[int, list[int]]  # backward passes, by parameter
    again: dict[int, list[int]]  # of these, those applied before
    changed: float  # by how much the loop itself has scaled the gradients since backward(), or NaN
    scales: dict[int, float]  # of gradients that are still scaled by a GradScaler
    rates: list[float]  # by group
    state: float = 0.0  # a number for what the optimizer remembers; where runs are compared

    @property
    def name(self) -> str:
        """What the optimizer is called in a sentence."""
        return type(self.optimizer).__name__


@dataclass
class Clip(LoopEvent):
    """Gradients were clipped."""

    scale: float  # by which a GradScaler has multiplied them
    pending: bool  # whether some of them were not applied yet
    parameters: set[int]  # whose gradients they are


@dataclass
class Unscale(LoopEvent):
    """A GradScaler divided gradients by its scale that no scaled loss has made."""

    scale: float


@dataclass
class Rescale(LoopEvent):
    """A GradScaler took its step: with the optimizer's, or without because of an overflow."""

    optimizer: torch.optim.Optimizer
    skipped: bool


@dataclass
class Schedule(LoopEvent):
    """A scheduler took a step."""

    scheduler: Any
    epoch: int | None = None  # that the scheduler has come to


@dataclass
class Epoch(LoopEvent):
    """A loader began to hand out its batches."""

    loader: Any
    length: int  # in batches; 0 where it has none
