"""Copies of one model to experiment on, and the one way to call them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import nn

from querykey.laws.private import attention_implementation
from querykey.laws.run import PLAIN, Inputs, Setting
from querykey.laws.subject import Subject
from querykey.laws.understanding.float64 import duplicate, lifted, new_tensors_in, randomise, shake
from querykey.laws.understanding.snapshot import Snapshot
from querykey.targets import seeded_outside_torch, signature_of

# What is dropped as a whole, by random numbers that no operation of dropout draws.
PARTS = re.compile("layer|path|seq|token|tok_|word|head|block|cond|class")


@dataclass(frozen=True)
class CopyRecipe:
    """How the weights and the precision of a model's copies are chosen."""

    seed: int = 0
    wide: bool = True  # float64; float32 where the model refuses that
    noisy: bool = False  # own weights get a little noise, so that equal values differ


@dataclass
class ModelCopies:
    """Copies of one model, made when they are first needed; the model itself is never run."""

    subject: Subject
    recipe: CopyRecipe = CopyRecipe()
    models: dict[tuple[str, bool], nn.Module] = field(default_factory=dict)
    snapshots: dict[nn.Module, Snapshot] = field(default_factory=dict)  # of copies as they began
    functions: set[str] = field(default_factory=set)  # names of the torch functions that ran
    weights: dict[nn.Module, list[torch.Tensor]] = field(default_factory=dict)  # as they began
    settled: bool = False  # the weights of the copies are what a law has made of them

    @cached_property
    def model(self) -> nn.Module:
        """The user's model, to be read and never to be run or changed."""
        return self.subject.model

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The arguments of the callable, by name."""
        function = self.subject.forward
        function = function.forward if isinstance(function, nn.Module) else function
        return dict(signature_of(function).parameters)

    @property
    def dtype(self) -> torch.dtype:
        """The precision that the copies compute in."""
        return torch.float64 if self.recipe.wide else torch.float32

    @cached_property
    def not_finite(self) -> list[tuple[str, torch.Tensor]]:
        """The weights of the user's model that are NaN or infinite, by name."""
        return list(not_finite(self.model))

    @cached_property
    def device(self) -> torch.device:
        """The device of the model: inputs are moved there, and answers back to the CPU."""
        tensor = next(chain(self.model.parameters(), self.model.buffers()), None)
        return torch.device("cpu") if tensor is None else tensor.device

    def by(self, recipe: CopyRecipe) -> ModelCopies:
        """Return copies of the same model that are made by another recipe."""
        return replace(self, recipe=recipe, models={}, snapshots={}, weights={})

    def of(self, setting: Setting = PLAIN) -> nn.Module:
        """Return the copy for a setting: its weights, and its dropout switched on for training."""
        key = (setting.weights, setting.train)
        if key not in self.models:
            self.models[key] = self._made(setting)
        return self.models[key]

    def _made(self, setting: Setting) -> nn.Module:
        """Return a new copy for a setting."""
        model = duplicate(self.model, self.recipe.wide)
        if setting.weights == "random":
            randomise(model, self.recipe.seed)
        elif self.recipe.noisy:
            shake(model, self.recipe.seed)
        if setting.train:
            turn_dropout_on(model)
            model.train()
        return model

    def reset(self, setting: Setting) -> None:
        """Undo what runs changed in a copy: statistics, counters, caches, closures.

        A run that turns a switch may have folded weights into each other and noted that.
        """
        model = self.of(setting)
        if model not in self.snapshots:  # it has not run yet
            self.snapshots[model] = Snapshot(model)
        elif self.snapshots[model].restore() and not self.settled:
            if model not in self.weights:
                self.weights[model] = [p.detach() for p in self._made(setting).parameters()]
            for parameter, kept in zip(model.parameters(), self.weights[model], strict=False):
                if not torch.equal(parameter, kept):
                    parameter.data = kept.clone()

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Leave weights as they are inside this context, in which a law changes them."""
        before, self.settled = self.settled, True
        try:
            yield
        finally:
            self.settled = before

    def call(self, inputs: Inputs, setting: Setting = PLAIN, in_place: bool = False) -> Any:
        """Return the callable's output; it gets copies of the inputs unless `in_place`."""
        if not in_place:
            inputs = self.on_device(inputs)
        model = self.of(setting)
        function = self.subject.on(model)
        with self.surroundings(model, setting):
            return self.bind(function, inputs)

    def on_device(self, inputs: Inputs) -> Inputs:
        """Return copies of the inputs on the model's device."""
        return {
            name: value.to(self.device, copy=True) if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
        }

    def bind(self, function: Callable[..., Any], inputs: Inputs) -> Any:
        """Call a function by the names of its arguments, and by place where they have none."""
        order = [
            name
            for name, p in self.parameters.items()
            if p.kind is inspect.Parameter.POSITIONAL_ONLY and name in inputs
        ]
        if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in self.parameters.values()):
            order += [name for name in inputs if name.startswith("argument_")]
        rest = {k: v for k, v in inputs.items() if k not in order}
        return function(*(inputs[name] for name in order), **rest)

    @contextmanager
    def surroundings(self, model: nn.Module, setting: Setting) -> Iterator[None]:
        """Fix the precision, the random numbers and the attention implementation of a call."""
        conditions = setting.conditions
        seed = self.recipe.seed + conditions.reseeded
        with ExitStack() as stack:
            devices = [self.device] if self.device.type == "cuda" else []
            stack.enter_context(torch.random.fork_rng(devices))
            # torch.manual_seed also notes, slowly, what devices that were never used must do.
            torch.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed(seed)
            if setting.train:
                # some models drop layers by these
                stack.enter_context(seeded_outside_torch(seed))
            stack.enter_context(attention(model, setting.attention))
            if not conditions.bare:
                wide = self.recipe.wide
                stack.enter_context(lifted(wide, not conditions.dropout, self.functions))
            elif all(p.dtype is torch.float64 for p in model.parameters() if p.is_floating_point()):
                stack.enter_context(new_tensors_in(torch.float64))
            yield


def not_finite(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights and buffers that hold NaN, and the trained weights that hold infinity.

    Infinity in a buffer, or in a weight that is not trained, is how people write masks.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta or not tensor.is_floating_point():
            continue
        if bool(tensor.isnan().any()) or (tensor.requires_grad and bool(tensor.isinf().any())):
            yield name, tensor


@contextmanager
def attention(model: Any, wanted: str | None) -> Iterator[None]:
    """Compute attention by one of the implementations that the model or torch itself has.

    Torch's FlexAttention is not compiled: that takes half a minute, and refuses float64 on a CPU.
    """
    flex = wanted is not None and "flex" in wanted
    stance = torch.compiler.set_stance("force_eager") if flex else nullcontext()
    with switched(model, wanted), stance:
        yield


@contextmanager
def switched(model: Any, wanted: str | None) -> Iterator[None]:
    """Turn a model's own switch, or torch's, to one of the implementations of attention."""
    if wanted is None:
        yield
    elif wanted == "math":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
    elif "=" in wanted:
        name, value = wanted.split("=")
        held = [m for m in model.modules() if isinstance(vars(m).get(name), bool)]
        before = [vars(m)[name] for m in held]
        try:
            for module in held:
                setattr(module, name, value == "True")
            yield
        finally:
            for module, kept in zip(held, before, strict=True):
                setattr(module, name, kept)
    elif hasattr(model, "set_attn_implementation"):
        before = attention_implementation(model)
        model.set_attn_implementation(wanted)
        try:
            yield
        finally:
            model.set_attn_implementation(before)
    else:
        kept = [(m, m.backend) for m in model.modules() if wanted in backends_of(m)]
        try:
            for module, _ in kept:
                module.backend = wanted
            yield
        finally:
            for module, before in kept:
                module.backend = before


def backends_of(module: Any) -> tuple[str, ...]:
    """Return the names that a module's `backend` may take, as its class lists in `backends`."""
    return getattr(module, "backends", ()) if isinstance(vars(module).get("backend"), str) else ()


def turn_dropout_on(model: nn.Module) -> None:
    """Give every dropout rate of zero a value: code that looks at the rate takes its other path."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if not isinstance(value, float) or value != 0.0:
                continue
            rate = "drop" in name and not re.search(PARTS, name)
            if rate or (isinstance(module, nn.Dropout) and name == "p"):
                setattr(module, name, 0.1)
