"""Caches that are no argument of forward: a `step` method, caches that are set up, one object."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from querykey.laws.run import Inputs
from querykey.laws.runner import Runner
from querykey.laws.understanding.facts import CacheProtocol
from querykey.laws.understanding.outputs import tensors

STEPS = ("step", "decode_step", "forward_step", "step_forward")
SETUPS = re.compile(r"^(set_?up|init|enable|allocate|build)_?(kv_?)?caches?$")
PLACES = re.compile(r"^(input_pos|input_positions?|cache_positions?)$")
HOLDERS = re.compile(r"InferenceParams|Cache$|State$")
ROOM = 64  # tokens that a cache is set up for


def other_forms(runner: Runner) -> Iterator[CacheProtocol]:
    """Yield protocols whose caches the model keeps, or makes when it is asked to."""
    model, main = runner.copies.model, runner.signature.main
    if main.kind != "tokens" or main.axes[0] != "batch":
        return
    for name in STEPS:
        function = getattr(type(model), name, None)
        if inspect.isfunction(function) and len(_required(function)) == 2:
            for flat in (True, False):
                yield CacheProtocol(None, (), step=_stepping(name, main.name, flat))
    places = [name for name in runner.copies.parameters if PLACES.match(name)]
    for name in dir(type(model)):
        if places and SETUPS.match(name):
            yield CacheProtocol(None, (), step=_set_up(name, main.name, places[0]))


def holders(model: nn.Module) -> Iterator[Callable[[nn.Module, int], Any]]:
    """Yield what makes the objects that the model's file calls a cache or a state."""
    module = sys.modules.get(type(model).__module__)  # None for a class whose code was executed
    world = {} if module is None else vars(module)
    for name, kind in list(world.items()):
        if isinstance(kind, type) and HOLDERS.search(name) and not issubclass(kind, nn.Module):
            yield lambda model, batch, kind=kind: kind()


def _required(function: Callable[..., Any]) -> list[str]:
    """Return the arguments that a call of a function must give, self included."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty]


def _stepping(name: str, main: str, flat: bool) -> Callable[..., tuple[Any, Any]]:
    """Return a step that feeds tokens one by one; a reset must make a used model a fresh one."""

    def step(model: Any, inputs: Inputs, cache: Any) -> tuple[Any, Any]:
        ids = inputs[main]

        def one(token: torch.Tensor) -> torch.Tensor:
            output = getattr(model, name)(token if flat else token[:, None])
            answer = next(t for _, t in tensors(output) if t.is_floating_point())
            return answer[:, None] if answer.dim() == 2 else answer

        if cache is None and inspect.ismethod(getattr(model, "reset", None)):
            one(ids[:, -1])
            model.reset()
        return torch.cat([one(ids[:, t]) for t in range(ids.shape[1])], 1), True

    return step


def _set_up(name: str, main: str, place: str) -> Callable[..., tuple[Any, Any]]:
    """Return a step that sets caches up before the first token, and tells every token's place."""

    def step(model: Any, inputs: Inputs, cache: Any) -> tuple[Any, Any]:
        batch, length = inputs[main].shape[:2]
        if cache is None:
            setup = getattr(model, name)
            sizes = {n: batch if "batch" in n else ROOM for n in _required(setup)}
            setup(**sizes)
        past = cache or 0
        places = torch.arange(past, past + length, device=inputs[main].device)
        return model(**{**inputs, place: places}), past + length

    return step
