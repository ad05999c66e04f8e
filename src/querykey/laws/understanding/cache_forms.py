"""Caches that are no argument of forward: a `step` method, caches that are set up, one object."""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from querykey.laws.run import Inputs
from querykey.laws.runner import Runner
from querykey.laws.understanding.facts import CacheProtocol, FoundStep
from querykey.laws.understanding.outputs import tensors

STEPS = (
    "step", "decode_step", "forward_step", "step_forward", "single_step", "inference_step",
    "recurrent_step", "forward_one", "decode_one", "one_step", "forward_one_step",
)  # fmt: skip
MAKERS = re.compile(r"^(make|init|new|empty|create|allocate|initial)_?\w*(cache|state|memory)s?$")
SETUPS = re.compile(r"^(set_?up|init|enable|allocate|build)_?(kv_?)?caches?$")
PLACES = re.compile(r"^(input_pos|input_positions?|cache_positions?)$")
HOLDERS = re.compile(r"InferenceParams|Cache$|State$")
LIBRARIES = {"builtins", "torch", "typing", "types", "collections"}
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
                step = _stepping(name, main.name, flat)
                yield CacheProtocol(None, (), step=FoundStep(f"{name}()", step))
        if inspect.isfunction(function) and len(inspect.signature(function).parameters) == 3:
            for begin in (*makers(model), _nothing):
                for flat in (True, False):
                    step = _stepping_from_state(name, main.name, flat, begin)
                    yield CacheProtocol(None, (), step=FoundStep(f"{name}()", step))
    places = [name for name in runner.copies.parameters if PLACES.match(name)]
    for name in dir(type(model)):
        if places and SETUPS.match(name):
            by = f"{name}(), then {places[0]} in every call"
            step = _set_up(name, main.name, places[0])
            yield CacheProtocol(None, (), step=FoundStep(by, step))


@dataclass(frozen=True)
class Fresh:
    """Makes a fresh object of a class as the first cache."""

    kind: type
    annotated: bool  # the argument's annotation names the class

    def __call__(self, model: nn.Module, batch: int) -> Any:
        """Return the object, whatever the model and however many rows."""
        return self.kind()


def holders(model: nn.Module, argument: str) -> Iterator[Callable[[nn.Module, int], Any]]:
    """Yield what makes the objects that an argument is annotated with, and those of the model's
    file that are called a cache or a state."""
    module = sys.modules.get(type(model).__module__)  # None for a class whose code was executed
    world = {} if module is None else vars(module)
    named = [kind for name, kind in list(world.items()) if HOLDERS.search(name)]
    annotated = list(_annotated(model, argument))
    for kind in dict.fromkeys([*annotated, *named]):
        if isinstance(kind, type) and not issubclass(kind, nn.Module):
            yield Fresh(kind, kind in annotated)


def _annotated(model: nn.Module, argument: str) -> Iterator[type]:
    """Yield the classes that people wrote themselves in an argument's annotation."""
    try:
        hint = typing.get_type_hints(type(model).forward).get(argument)
    except Exception:  # a name that is imported for type checkers alone
        return
    for kind in typing.get_args(hint) or (hint,):
        if inspect.isclass(kind) and kind.__module__.partition(".")[0] not in LIBRARIES:
            yield kind


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


def _nothing(model: nn.Module, batch: int) -> None:
    """Return no state, for a step that makes its first one itself."""


def _stepping_from_state(
    name: str, main: str, flat: bool, begin: Callable[[nn.Module, int], Any]
) -> Callable[..., tuple[Any, Any]]:
    """Return a step that feeds tokens one by one with a state, and gets scores and a new state."""

    def step(model: Any, inputs: Inputs, cache: Any) -> tuple[Any, Any]:
        ids, scores = inputs[main], []
        state = begin(model, len(ids)) if cache is None else cache[0]
        for token in ids.unbind(1):
            output = getattr(model, name)(token if flat else token[:, None], state)
            if not isinstance(output, tuple | list) or len(output) < 2:
                raise ValueError("it returns no state beside its answer")
            answer, state = output[0], output[-1]
            scores.append(answer[:, None] if answer.dim() == 2 else answer)
        return torch.cat(scores, 1), (state,)

    return step


def makers(model: nn.Module) -> Iterator[Callable[[nn.Module, int], Any]]:
    """Yield the model's methods that make an empty cache, called with as many sizes as fit."""
    for name in dir(type(model)):
        if MAKERS.match(name):
            for arguments in ((), ("batch",), ("batch", "length")):
                yield _making(name, arguments)


def _making(name: str, arguments: tuple[str, ...]) -> Callable[[nn.Module, int], Any]:
    """Return a function that passes sizes by place to a method of the model."""

    def make(model: nn.Module, batch: int) -> Any:
        sizes = {"batch": batch, "length": ROOM}
        return getattr(model, name)(*(sizes[name] for name in arguments))

    return make


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
