"""The bench: copies of a model, and one way to call them."""

from __future__ import annotations

import copy
import inspect
import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from querykey.laws.subject import Subject
from querykey.laws.understanding.float64 import duplicate, lifted, new_tensors_in, randomise, shake

Inputs = dict[str, Any]
MACHINERY = set(vars(nn.Module())) - {"_buffers"}  # hooks, modules, parameters, the mode


@dataclass(frozen=True)
class Setting:
    """One way of calling a model among those that users leave to chance."""

    weights: str = "random"
    given: tuple[tuple[str, Any], ...] = ()  # optional arguments given on top
    train: bool = False
    attention: str | None = None  # the implementation, where a model has several
    embeds: bool = False  # embeddings in place of ids
    batch: int = 3
    length: int = 13
    mask: bool = False  # a mask that hides nothing is given
    again: bool = False  # after another call, with other random numbers
    dropout: bool = False  # dropout may act
    bare: bool = False  # in the copy's own precision, nothing intercepted

    def __str__(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self.label().items()) or "as it comes"

    def label(self) -> dict[str, Any]:
        """What differs from the plainest call."""
        plain = Setting()
        said: dict[str, Any] = dict(self.given)
        for name in ("weights", "train", "attention", "embeds", "batch", "length", "mask"):
            if getattr(self, name) != getattr(plain, name):
                said[name] = getattr(self, name)
        return said


@dataclass
class Bench:
    """Copies of one model to experiment on; the model itself is never run or changed."""

    subject: Subject
    seed: int = 0
    wide: bool = True
    shaken: bool = False  # own weights get a little noise, so that equal values differ
    twins: dict[tuple[str, bool], nn.Module] = field(default_factory=dict)
    states: dict[nn.Module, list[dict[str, Any]]] = field(default_factory=dict)  # as they began
    seen: set[str] = field(default_factory=set)  # names of the torch functions that ran

    @cached_property
    def model(self) -> nn.Module:
        """The user's model; look, do not touch."""
        return self.subject.model

    @cached_property
    def names(self) -> dict[nn.Module, str]:
        """Where each module of the copy with random weights sits."""
        return {module: path for path, module in self.twin().named_modules()}

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The arguments of the callable, by name."""
        function = self.subject.forward
        function = function.forward if isinstance(function, nn.Module) else function
        return dict(inspect.signature(function).parameters)

    @property
    def dtype(self) -> torch.dtype:
        """What the copies compute in."""
        return torch.float64 if self.wide else torch.float32

    @cached_property
    def device(self) -> torch.device:
        """Where the model is; inputs go there, answers come back."""
        held = next(chain(self.model.parameters(), self.model.buffers()), None)
        return torch.device("cpu") if held is None else held.device

    def twin(self, setting: Setting | None = None) -> nn.Module:
        """The copy for a setting: random or own weights, and with dropout switched on to train."""
        setting = setting or Setting()
        key = (setting.weights, setting.train)
        if key not in self.twins:
            twin = duplicate(self.model, self.wide)
            if setting.weights == "random":
                randomise(twin, self.seed)
            elif self.shaken:
                shake(twin, self.seed)
            if setting.train:
                turn_dropout_on(twin)
                twin.train()
                self.states[twin] = _state(twin)
            self.twins[key] = twin
        return self.twins[key]

    def begin_anew(self, setting: Setting) -> None:
        """Undo what earlier runs taught a copy in training: statistics, counters, attributes."""
        twin = self.twin(setting)
        states = _copied(twin, self.states.get(twin, []))
        for module, began in zip(twin.modules(), states, strict=False):
            held = vars(module)
            for name in [n for n in held if n not in MACHINERY and n not in began]:
                del held[name]
            held.update(began)

    def raw(self, inputs: Inputs, setting: Setting | None = None, as_given: bool = False) -> Any:
        """Whatever the callable returns; it gets copies, unless what it does to them is asked."""
        setting = setting or Setting()
        if not as_given:
            inputs = self.placed(inputs)
        twin = self.twin(setting)
        function = self.subject.on(twin)
        with self.surroundings(twin, setting):
            return self.bind(function, inputs)

    def placed(self, inputs: Inputs) -> Inputs:
        """Copies of the inputs on the model's device."""
        return {
            name: value.to(self.device, copy=True) if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
        }

    def bind(self, function: Callable[..., Any], inputs: Inputs) -> Any:
        """Call by name, and by place where the callable has no names."""
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
    def surroundings(self, twin: nn.Module, setting: Setting) -> Iterator[None]:
        """Precision, a fixed seed, and the asked attention implementation."""
        with ExitStack() as stack:
            devices = [self.device] if self.device.type == "cuda" else []
            stack.enter_context(torch.random.fork_rng(devices))
            # torch.manual_seed also notes, slowly, what devices that were never used must do.
            torch.default_generator.manual_seed(self.seed + setting.again)
            if devices:
                torch.cuda.manual_seed(self.seed + setting.again)
            if setting.train:
                stack.enter_context(_same_chance(self.seed + setting.again))
            stack.enter_context(attention(twin, setting.attention))
            if not setting.bare:
                stack.enter_context(lifted(self.wide, not setting.dropout, self.seen))
            elif all(p.dtype is torch.float64 for p in twin.parameters() if p.is_floating_point()):
                stack.enter_context(new_tensors_in(torch.float64))
            yield


def _state(model: nn.Module) -> list[dict[str, Any]]:
    """Copies of the buffers and attributes of every module."""
    held = [
        {name: value for name, value in vars(module).items() if name not in MACHINERY}
        for module in model.modules()
    ]
    return _copied(model, held)


def _copied(model: nn.Module, state: Any) -> Any:
    """A copy on its own memory, but for the model's modules and parameters themselves."""
    parts = chain(model.modules(), model.parameters())
    return copy.deepcopy(state, {id(part): part for part in parts})


@contextmanager
def _same_chance(seed: int) -> Iterator[None]:
    """Python's and NumPy's random numbers begin alike, as torch's do: some drop layers by them."""
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


@contextmanager
def attention(model: Any, wanted: str | None) -> Iterator[None]:
    """Choose among the implementations that a `transformers` model or torch itself has."""
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
    elif hasattr(model, "set_attn_implementation"):
        before = model.config._attn_implementation
        model.set_attn_implementation(wanted)
        try:
            yield
        finally:
            model.set_attn_implementation(before)
    else:
        switched = [(m, m.backend) for m in model.modules() if wanted in backends_of(m)]
        try:
            for module, _ in switched:
                module.backend = wanted
            yield
        finally:
            for module, before in switched:
                module.backend = before


def backends_of(module: Any) -> tuple[str, ...]:
    """The names that a module's `backend` may have, where its class lists them in `backends`."""
    return getattr(module, "backends", ()) if isinstance(vars(module).get("backend"), str) else ()


def turn_dropout_on(model: nn.Module) -> None:
    """Give every dropout rate of zero a value: code that looks at the rate takes its other path."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if not isinstance(value, float) or value != 0.0:
                continue
            rate = "drop" in name and not re.search("layer|path", name)
            if rate or (isinstance(module, nn.Dropout) and name == "p"):
                setattr(module, name, 0.1)
