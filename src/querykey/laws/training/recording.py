"""What was seen of a training loop: the events in their order, and what laws ask of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from querykey.laws.training import switches
from querykey.laws.training.depths import LayerDerivatives
from querykey.laws.training.events import (
    Backward,
    Clip,
    Forward,
    LoopEvent,
    Schedule,
    Step,
    Unscale,
)
from querykey.laws.training.graph import leaves_of, name_of, nodes_of
from querykey.laws.training.ledger import Ledger, mark_of
from querykey.laws.training.objects import alive
from querykey.laws.training.site import here
from querykey.laws.training.states import memory_of, random_state, values_of
from querykey.laws.training.terms import watch_terms
from querykey.laws.training.uses import ModuleUses
from querykey.laws.understanding.outputs import tensors
from querykey.targets import uncompiled


class Recording:
    """Notes what a training loop does; `watch` calls it, and the laws read it."""

    def __init__(
        self,
        models: Iterable[nn.Module] = (),
        optimizers: Iterable[torch.optim.Optimizer] = (),
        compared: bool = False,
    ):
        self.events: list[LoopEvent] = []
        self.ledger = Ledger()
        self.models = list(models)  # that the user named
        self.named = list(optimizers)  # the optimizers that the user named
        self.optimizers = list(self.named)  # and those that took a step
        self.compared = compared  # with another run, so that states are noted as well
        self.resumed: Recording | None = None  # what was seen of that run
        self.reloaded = False  # whether it has loaded what it saved
        self.uses = ModuleUses()
        self.depths = LayerDerivatives()
        self.spreads: list[tuple[float, str]] = []  # entropies of attention, and where
        self.scaled: dict[int, tuple[Any, float]] = {}  # losses that a GradScaler has scaled
        self.scales: dict[int, float] = {}  # of gradients, by parameter
        self.values: dict[int, tuple[float, float]] = {}  # of parameters, when first seen
        self.made: list[Any] = []  # optimizers and schedulers that were made
        self.modules: list[nn.Module] = []  # all there were when something seemed to be missing
        self.uncovered: dict[int, torch.Tensor] | None = None  # what no optimizer has, once found
        self.detached: list[tuple[Any, str]] = []  # nodes that detach() cut off, and the line
        self.calls: list[Forward | None] = []  # the modules that run now, the outermost first
        self.running: list[nn.Module] = []  # these modules themselves
        self.differentiating: Backward | None = None
        self.handles: list[Any] = []

    def of(self, kind: type) -> list[Any]:
        """Return the events of a kind."""
        return [event for event in self.events if type(event) is kind]

    @property
    def backwards(self) -> list[Backward]:
        """Return the backward passes that were watched, in their order."""
        return self.of(Backward)

    @property
    def leaves(self) -> dict[int, torch.Tensor]:
        """Return all that got a gradient in some backward pass, by id."""
        return {k: leaf for backward in self.backwards for k, leaf in backward.leaves.items()}

    @property
    def forwards(self) -> list[Forward]:
        """All calls of modules from outside of modules."""
        return self.of(Forward)

    @property
    def steps(self) -> list[Step]:
        """The steps of the optimizers that the user named, and of all where none is named."""
        named = {id(optimizer) for optimizer in self.named}
        return [s for s in self.of(Step) if not named or id(s.optimizer) in named]

    @property
    def schedules(self) -> list[Schedule]:
        """All steps of schedulers."""
        return self.of(Schedule)

    def add(self, event: LoopEvent) -> None:
        """Note an event as the latest."""
        self.events.append(event)

    # What is watched calls these.

    def enter_module(self, module: nn.Module) -> None:
        """Note that a module is called."""
        graph = torch.is_grad_enabled()
        root = self.calls[0] if self.calls else None
        module = uncompiled(module)
        if not self.calls and any(True for _ in module.parameters()):
            on, off = switches.of_model(module)
            again = self.differentiating is not None
            root = Forward(
                len(self.events), here(), module, module.training, graph, on, off, again=again
            )
            if self.compared:
                root.random, root.weights = random_state(), values_of(module)
            self.add(root)
        self.uses.enter(module, root.module if root else None, graph)
        self.calls.append(root)
        self.running.append(module)

    def drop(self, function: str, asked: bool) -> None:
        """Note that a function drops; `asked`: its caller says that it is in training."""
        root = self.calls[0] if self.calls else None
        if root is not None and not (root.training or self.running[-1].training):
            kind = type(self.running[-1]).__name__
            root.dropped.setdefault(f"{function}() in {kind} ({here()})", asked)

    def leave_module(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Note that a module has returned, or raised an exception."""
        module = uncompiled(module)
        root = self.calls.pop() if self.calls else None
        del self.running[-1:]
        if root is not None and not self.calls:
            inputs = [tensor for _, tensor in tensors((args, kwargs))]
            root.batch, root.rows = tuple(map(_content, inputs)), _rows(inputs)
            root.inputs = None if self.of(Step) else (args, kwargs)
        if root is None or not torch.is_grad_enabled():
            return
        results = [tensor for _, tensor in tensors(output) if tensor.requires_grad]
        if root.module is module and not self.calls:
            root.outputs = [tensor.grad_fn for tensor in results]
            root.answer = float(sum(tensor.detach().double().sum() for tensor in results))
        if results and not self.backwards:
            self.depths.follow(root.module, module, results[0])

    def begin_backward(self, roots: list[torch.Tensor], inputs: list[torch.Tensor]) -> bool:
        """Note that a backward pass begins; return False for one inside of another.

        Where `inputs` are given, these alone get gradients.
        """
        nodes = list(nodes_of(roots))
        leaves = leaves_of(roots, nodes)
        if inputs:
            leaves = {id(leaf): leaf for leaf in inputs if id(leaf) in leaves}
        for key, leaf in leaves.items():
            self.values.setdefault(key, mark_of(leaf))
        if self.differentiating is not None:  # of a checkpoint, which differentiates its part
            self.differentiating.leaves |= leaves
            return False
        terms, self.handles = watch_terms(roots)
        scale = math.prod(self.scaled[id(root)][1] for root in roots if id(root) in self.scaled)
        event = Backward(
            len(self.events), here(), len(self.backwards), _total(roots), scale, terms, leaves,
            self.ledger.before_backward({**self.ledger.parameters, **leaves}.values()),
            {name_of(node) for node in nodes},
        )  # fmt: skip
        reached = set(map(id, nodes))
        for forward in self.forwards:
            if any(id(node) in reached for node in forward.outputs):
                event.forwards.append(forward)
                forward.used = True
        self.differentiating = event
        return True

    def end_backward(self) -> None:
        """Note that the backward pass is over."""
        event, self.differentiating = self.differentiating, None
        for handle in self.handles:
            handle.remove()
        if event is None:
            return
        for forward in event.forwards:
            forward.outputs = []  # so that the graph can go
        self.ledger.after_backward(event.number, event.leaves.values())
        for key in event.leaves:
            self.scales[key] = event.scale
        self.add(event)

    def apply(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer is about to apply its gradients."""
        if not self.backwards:
            return  # there is nothing yet: this prepares the optimizer's state
        steps = [step for step in self.of(Step) if step.optimizer is optimizer]
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.values.setdefault(id(parameter), mark_of(parameter))
        changed = self.ledger.changed_by_loop(optimizer)
        sizes, sources, again = self.ledger.apply(optimizer)
        scales = {key: s for key in sizes if (s := self.scales.get(key, 1.0)) != 1.0}
        rates = [float(group.get("lr", math.nan)) for group in optimizer.param_groups]
        state = memory_of(optimizer) if self.compared else 0.0
        self.add(
            Step(
                len(self.events), here(), len(steps), optimizer, sizes, sources, again, changed,
                scales, rates, state,
            )
        )  # fmt: skip
        if not any(known is optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)
        if len(self.of(Step)) == 1 and self._misses(optimizer):
            self.modules = alive(nn.Module)  # what holds them may be gone when laws are judged

    def _misses(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether something gets a gradient and is not in this optimizer."""
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return any(backward.leaves.keys() - own for backward in self.backwards)

    def unscale(self, optimizer: torch.optim.Optimizer, scale: float) -> None:
        """Note that a GradScaler has taken its scale out of an optimizer's gradients."""
        pending = [
            self.scales.get(key, 1.0)
            for key in map(id, (p for group in optimizer.param_groups for p in group["params"]))
            if self.ledger.is_pending(key)
        ]
        if pending and scale != 1.0 and all(known == 1.0 for known in pending):
            self.add(Unscale(len(self.events), here(), scale))
        self.ledger.look_again()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.scales[id(parameter)] = 1.0

    def clip(self, parameters: list[torch.Tensor]) -> None:
        """Note that the gradients of some parameters are about to be clipped."""
        keys = [id(p) for p in parameters if p.grad is not None]
        scale = max((self.scales.get(key, 1.0) for key in keys), default=1.0)
        pending = any(self.ledger.is_pending(key) for key in keys)
        self.add(Clip(len(self.events), here(), scale, pending, set(keys)))

    # What laws ask.

    def roots(self) -> list[nn.Module]:
        """Return the models: those that were named, else all that were called from outside."""
        if self.models:
            return self.models
        called = {id(event.module): event.module for event in self.forwards}
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

    def made_of(self, kind: type) -> list[Any]:
        """Return the optimizers or the schedulers that the loop has made."""
        return [value for value in self.made if isinstance(value, kind)]

    def trained(self) -> set[int]:
        """Return the ids of all parameters that some optimizer has applied a gradient to."""
        return {key for step in self.of(Step) for key in step.gradients}


def _total(roots: list[torch.Tensor]) -> float:
    return float(sum(float(root.detach().sum()) for root in roots))


def _rows(inputs: list[torch.Tensor]) -> int:
    return next((tensor.shape[0] for tensor in inputs if tensor.dim()), 0)


def _content(tensor: torch.Tensor) -> Any:
    """Return what tells a tensor from others: its shape, and two numbers made of its values."""
    if tensor.is_meta or tensor.is_sparse:
        return tuple(tensor.shape)
    values = (
        tensor.detach().double().flatten() if not tensor.is_complex() else tensor.real.flatten()
    )
    ramp = torch.linspace(1, 2, values.numel(), dtype=values.dtype, device=values.device)
    return tuple(tensor.shape), float(values.sum()), float(values @ ramp)
