"""Derivatives that a model's author wrote by hand are those of the function that is computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from querykey.laws.blaming.guilty_module import GuiltyModule, describe, guilty_part
from querykey.laws.blaming.recorder import Recorder
from querykey.laws.catalogue import sweeps
from querykey.laws.catalogue.derivatives import differentiating
from querykey.laws.catalogue.gradients import has_weights
from querykey.laws.law import Law, RefusalError
from querykey.laws.private import function_of
from querykey.laws.run import Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome
from querykey.laws.understanding.outputs import tensors
from querykey.words import last_line

STEP = 1e-6
LIMIT = 1e-4  # relative: what a difference of values can tell in float64
ENTRIES = 12  # of an input, at which the derivative is asked for
CALLS = 3  # of one function
Function = type[torch.autograd.Function]


@dataclass
class Used:
    """A call of an author's own autograd Function, and the module that made it."""

    function: Function
    arguments: tuple[Any, ...]
    owner: GuiltyModule | None


@dataclass
class FunctionCalls:
    """Notes what the Functions of a model are called with."""

    recorder: Recorder
    calls: list[Used] = field(default_factory=list)

    @contextmanager
    def over(self, functions: list[Function]) -> Iterator[None]:
        """Put a note-taker in the place of every function's forward inside this context."""
        before = [(function, function.__dict__.get("forward")) for function in functions]
        try:
            for function in functions:
                function.forward = staticmethod(self._noting(function, function.forward))
            yield
        finally:
            for function, forward in before:
                if forward is None:
                    del function.forward
                else:
                    function.forward = forward

    def _noting(self, function: Function, forward: Callable[..., Any]) -> Callable[..., Any]:
        # The context is an argument where no `setup_context` of its own takes it.
        own_context = function.setup_context is torch.autograd.Function.setup_context

        @functools.wraps(forward)  # torch reads the names of its arguments
        def noting(*args: Any) -> Any:
            taken = args[1:] if own_context else args
            call = self.recorder.unfinished
            kept = tuple(t.detach().clone() if isinstance(t, torch.Tensor) else t for t in taken)
            self.calls.append(Used(function, kept, describe(call) if call else None))
            return forward(*args)

        return noting


def functions_of(runner: Runner, setting: Setting) -> list[Function]:
    """Return the autograd Functions of authors that a forward pass of the model goes through."""
    output = runner.call(runner.complete(Run(runner.inputs(setting), setting)), setting)
    nodes = [t.grad_fn for _, t in tensors(output) if t.grad_fn is not None]
    seen, functions = set(nodes), {}
    while nodes:
        node = nodes.pop()
        function = function_of(node)
        if function is not None and not function.__module__.startswith("torch."):
            functions[function] = None
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                nodes.append(child)
    return list(functions)


def custom(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Compare every Function's derivative with differences of its values, in float64."""
    functions = functions_of(runner, setting)
    if not functions:
        raise RefusalError("no autograd Function of its own was used")
    recorder = Recorder()
    watch = FunctionCalls(recorder)
    with watch.over(functions):
        runner.call(runner.complete(Run(runner.inputs(setting), setting)), setting, recorder)
    model = runner.copies.of(setting)
    for function in functions:
        for used in [call for call in watch.calls if call.function is function][:CALLS]:
            with runner.copies.surroundings(model, setting):
                _call_again(used)
                yield from _compared(runner, setting, used)


def _call_again(used: Used) -> None:
    """Raise a RefusalError where a function has used up its arguments, and cannot run again."""
    try:
        _value(used, used.arguments)
    except Exception as error:
        name = used.function.__name__
        raise RefusalError(
            f"{name} cannot be called again with its own arguments: {last_line(error)[:160]}"
        ) from error


def _compared(runner: Runner, setting: Setting, used: Used) -> Iterator[Outcome]:
    """Yield how far one call's derivative is from differences, for every input."""
    places = [
        i for i, value in enumerate(used.arguments)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel()
    ]  # fmt: skip
    value = _value(used, used.arguments)
    if any(_is_same(value, used.arguments[i]) for i in places):
        return  # it computes nothing: what its derivative is, is its author's choice
    arguments = list(used.arguments)
    for i in places:
        arguments[i] = arguments[i].clone().requires_grad_()
    weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(7)).to(value)
    total = (_value(used, arguments) * weights).sum()
    with differentiating():
        written = torch.autograd.grad(total, [arguments[i] for i in places], allow_unused=True)
    for i, gradient in zip(places, written, strict=True):
        yield _entries(runner, setting, used, i, gradient, weights)


def _entries(
    runner: Runner, setting: Setting, used: Used, place: int, gradient: Any, weights: torch.Tensor
) -> Outcome:
    """Return how far the derivative by some entries of one input is from differences."""
    argument = used.arguments[place]
    count = argument.numel()
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(3))[:ENTRIES].tolist()
    by_hand = torch.zeros(count) if gradient is None else gradient.flatten().detach().cpu()
    pairs = []
    for entry in chosen:
        steps = []
        for size in (STEP, 2 * STEP):
            moved = []
            for sign in (1, -1):
                arguments = list(used.arguments)
                arguments[place] = argument.clone()
                arguments[place][torch.unravel_index(torch.tensor(entry), argument.shape)] += (
                    sign * size
                )
                moved.append(float((_value(used, arguments).detach() * weights).sum()))
            steps.append((moved[0] - moved[1]) / (2 * size))
        if abs(steps[0] - steps[1]) <= LIMIT * max(abs(steps[0]), 1e-3):  # it is smooth here
            pairs.append((steps[0], float(by_hand[entry])))
    scale = max((abs(step) for step, _ in pairs), default=0.0)
    name = used.function.__name__
    guilty = Evidence(module=used.owner or guilty_part(runner.copies.model, ""))
    if not scale or gradient is None:
        # A rounding or a sign has no derivative; one that is given in its place is a choice.
        return Outcome(0.0, setting=setting)
    gaps = [(abs(step - own) / scale, step, own) for step, own in pairs]
    gap, step, own = max(gaps)
    # Where a clamp is flat, authors let derivatives through on purpose.
    choice = all(far <= LIMIT or abs(right) <= LIMIT * scale for far, right, _ in gaps)
    note = (
        f"the derivative that {name}.backward gives for input {place} is {own:.4g} where the "
        f"function's is {step:.4g}"
    )
    scaled = gap / LIMIT * runner.facts.threshold
    return Outcome(scaled if gap <= LIMIT else gap, note, setting, None, guilty, advice=choice)


def _value(used: Used, arguments: Any) -> torch.Tensor:
    """Return the first floating output of a function."""
    output = used.function.apply(*arguments)
    return next(t for _, t in tensors(output) if t.is_floating_point())


def _is_same(value: torch.Tensor, argument: torch.Tensor) -> bool:
    return value.numel() == argument.numel() and torch.equal(
        value.detach().flatten(), argument.flatten()
    )


LAWS = (
    Law(
        "gradient.custom",
        says="A derivative that is written by hand is that of the function it belongs to.",
        why="Otherwise training follows another function than the one that is evaluated.",
        how="Every autograd.Function that the model goes through is called again with its own "
        "inputs in float64, and its backward compared with differences of its values.",
        trials=custom,
        applies=has_weights,
        sweep=sweeps.once,
    ),
)
