"""What was seen of a training loop: the events in their order, and what laws ask of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from querykey.laws.training.events import Backward, Forward, LoopEvent, Step
from querykey.laws.training.graph import leaves_of
from querykey.laws.training.ledger import Ledger
from querykey.laws.training.site import here


class Recording:
    """Notes what a training loop does; `watch` calls it, and the laws read it."""

    def __init__(self, models: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer]):
        self.events: list[LoopEvent] = []
        self.ledger = Ledger()
        self.models = list(models)  # that the user named
        self.named = list(optimizers)  # the optimizers that the user named
        self.optimizers = list(self.named)  # and those that took a step
        self.depth = 0  # of calls of modules
        self.differentiating: Backward | None = None

    def of(self, kind: type) -> list[Any]:
        """Return the events of a kind."""
        return [event for event in self.events if type(event) is kind]

    @property
    def backwards(self) -> list[Backward]:
        """All backward passes."""
        return self.of(Backward)

    @property
    def steps(self) -> list[Step]:
        """All steps of optimizers."""
        return self.of(Step)

    @property
    def judged_steps(self) -> list[Step]:
        """The steps of the optimizers that the user named, and of all where none is named."""
        return [s for s in self.steps if not self.named or s.optimizer in self.named]

    def add(self, event: LoopEvent) -> None:
        """Note an event as the latest."""
        self.events.append(event)

    # What is watched calls these.

    def enter_module(self, module: nn.Module) -> None:
        """Note that a module is called."""
        if self.depth == 0 and any(True for _ in module.parameters()):
            graph = torch.is_grad_enabled()
            self.add(Forward(len(self.events), here(), module, module.training, graph))
        self.depth += 1

    def leave_module(self) -> None:
        """Note that a module has returned, or raised an exception."""
        self.depth -= 1

    def begin_backward(self, roots: list[torch.Tensor], inputs: list[torch.Tensor]) -> bool:
        """Note that a backward pass begins; return False for one inside of another.

        Where `inputs` are given, these alone get gradients.
        """
        leaves = leaves_of(roots)
        if inputs:
            leaves = {id(leaf): leaf for leaf in inputs if id(leaf) in leaves}
        if self.differentiating is not None:  # of a checkpoint, which differentiates its part
            self.differentiating.leaves |= leaves
            return False
        known = {**self.ledger.parameters, **leaves}
        loss = float(sum(float(root.detach().sum()) for root in roots))
        before = self.backwards[-1].order if self.backwards else -1
        event = Backward(len(self.events), here(), len(self.backwards), loss)
        event.forwards = [f for f in self.of(Forward) if f.order > before]
        event.leaves = leaves
        event.carried = self.ledger.before_backward(known.values())
        self.differentiating = event
        return True

    def end_backward(self) -> None:
        """Note that the backward pass is over."""
        event, self.differentiating = self.differentiating, None
        if event is not None:
            self.ledger.after_backward(event.number, event.leaves.values())
            self.add(event)

    def apply(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer is about to apply its gradients."""
        number = sum(step.optimizer is optimizer for step in self.steps)
        event = Step(len(self.events), here(), number, optimizer)
        event.gradients, event.sources, event.again = self.ledger.apply(optimizer)
        if not any(known is optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)
        self.add(event)

    # What laws ask.

    def roots(self) -> list[nn.Module]:
        """Return the models: those that were named, else all that were called from outside."""
        if self.models:
            return self.models
        called = {id(event.module): event.module for event in self.of(Forward)}
        parts = {id(part) for m in called.values() for part in m.modules() if part is not m}
        return [module for key, module in called.items() if key not in parts]

    def name_of(self, key: int) -> str:
        """Return the name of the parameter with this id."""
        roots = self.roots()
        for root in roots:
            for name, parameter in root.named_parameters():
                if id(parameter) == key:
                    return name if len(roots) == 1 else f"{type(root).__name__}.{name}"
        parameter = self.ledger.parameters.get(key)
        shape = "" if parameter is None else f" of shape {tuple(parameter.shape)}"
        return f"a tensor{shape} that belongs to no module"
