"""The calls that a run makes of a model, recorded so that they can be written down as code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from querykey.laws.run import Run
from querykey.laws.runner import Runner
from querykey.laws.understanding.cache_edits import RECORDING, own_crop

# No methods of a model: the rows of a cache are taken in another order, a cache is kept as it is,
# and its last tokens are dropped.
ROWS, KEPT, CROPPED = "@rows", "@kept", "@cropped"
MODEL = ""  # the method of a call of the model itself, or of the function that a Subject holds


class UnwritableError(Exception):
    """One sentence: a value, or what is done with it, that cannot be written down as code."""


@dataclass(frozen=True)
class TracedCall:
    """One call from outside: its method, its arguments as they were, and its result."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    on: Any = None  # whose method it is, where it is not the model's


@dataclass
class CallTrace:
    """Records the outermost calls of a model; what it calls inside itself is left out."""

    calls: list[TracedCall] = field(default_factory=list)
    inside: bool = False
    known: dict[int, Any] = field(default_factory=dict)  # keeps objects, so that ids stay theirs

    def record(self, method: str, function: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        """Call a function, and record it unless it is called from inside another one."""
        if self.inside:
            return function(*args, **kwargs)
        kept = self._kept(args), self._kept(kwargs)
        self.inside = True
        try:
            result = function(*args, **kwargs)
        finally:
            self.inside = False
        self.known[id(result)] = result
        self.calls.append(TracedCall(method, *kept, result))
        return result

    def _kept(self, value: Any) -> Any:
        """Return an argument as it is now, and itself where it came out of a call or grows."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        came_out = any(value is part for c in self.calls for part, _ in parts_of(c.result))
        if came_out or id(value) in self.known:
            return value
        if isinstance(value, torch.Tensor):
            return value.detach().clone()
        if type(value) in (list, dict) and not value:  # a container that calls may fill
            self.known[id(value)] = value
            return value
        if type(value) in (list, tuple):
            kept = [self._kept(part) for part in value]
            return kept if type(value) is list else tuple(kept)
        if type(value) is dict:
            return {name: self._kept(part) for name, part in value.items()}
        return value


def parts_of(value: Any, code: str = "", depth: int = 4) -> Iterator[tuple[Any, str]]:
    """Yield an object and what it holds, each with the code that reads it from the object."""
    yield value, code
    if depth == 0 or isinstance(value, torch.Tensor | nn.Module):
        return
    if isinstance(value, dict):
        inner = [(part, f"{code}[{key!r}]") for key, part in value.items()]
    elif isinstance(value, tuple) and (names := getattr(value, "_fields", None)):
        inner = [(getattr(value, name), f"{code}.{name}") for name in names]
    elif isinstance(value, list | tuple):
        inner = [(part, f"{code}[{place}]") for place, part in enumerate(value)]
    elif hasattr(value, "keys") and hasattr(value, "__getitem__"):
        inner = [(value[key], f"{code}[{key!r}]") for key in value.keys()]  # noqa: SIM118
    elif hasattr(value, "__dict__"):
        inner = [(part, f"{code}.{name}") for name, part in vars(value).items()]
    else:
        return
    for part, path in inner:
        yield from parts_of(part, path, depth - 1)


@dataclass(frozen=True)
class TracedRun:
    """The calls that a run makes, and the outputs that its answer was taken from, in order."""

    run: Run
    calls: list[TracedCall]
    taken: list[Any]
    answer: torch.Tensor


def trace_run(runner: Runner, run: Run) -> TracedRun:
    """Return what a run calls and answers."""
    taken: list[Any] = []
    with tracing(runner, run) as (trace, watched), torch.no_grad():
        take = watched.take

        def noted(output: Any, *rest: Any) -> torch.Tensor:
            taken.append(output)
            return take(output, *rest)

        watched.take = noted  # type: ignore[method-assign]
        watched.edited = _noting_edits(runner, trace, watched)  # type: ignore[method-assign]
        answer = watched.answer(run)
    return TracedRun(run, trace.calls, taken, answer)


def _noting_edits(runner: Runner, trace: CallTrace, watched: Runner) -> Callable[..., Any]:
    """Return `edited` of a runner, which also records what is done to a cache between calls."""
    edit, draft = watched.edited, watched.drafted
    drafted: list[Any] = []  # the cache behind the tokens that are dropped

    def noted(*args: Any) -> Any:
        cache, mark = draft(*args)
        drafted[:] = [cache]
        return cache, mark

    def edited(run: Run, cache: Any, past: int, recorder: Any) -> Any:
        place = len(trace.calls)
        new = edit(run, cache, past, recorder)
        if run.beams:
            batch = runner.signature.batch_of(run.inputs)
            trace.calls.append(TracedCall(ROWS, (cache, list(run.beams), batch), {}, new))
        if run.drafts:
            [longer] = drafted
            before, after = _crop_calls(cache, longer, new, past, run.drafts)
            trace.calls[place:] = [*before, *trace.calls[place:], *after]
        return new

    watched.drafted = noted  # type: ignore[method-assign]
    return edited


def _crop_calls(
    cache: Any, longer: Any, new: Any, past: int, count: int
) -> tuple[list[TracedCall], list[TracedCall]]:
    """Return the calls before and behind the tokens that are dropped from a cache again."""
    own = own_crop(longer, past, count)
    if own:
        method, amount = own
        records = hasattr(cache, RECORDING)
        before = [TracedCall(RECORDING, (), {}, None, on=cache)] if records else []
        return before, [TracedCall(method, (amount,), {}, new, on=longer)]
    if new is longer or new is cache or isinstance(new, bool | int | str):
        return [], []  # the next call says by itself how many tokens there are
    kept = object()  # stands for a copy of the cache before
    before = TracedCall(KEPT, (cache,), {}, kept)
    return [before], [TracedCall(CROPPED, (longer, kept, count), {}, new)]


@contextmanager
def tracing(runner: Runner, run: Run) -> Iterator[tuple[CallTrace, Runner]]:
    """Record what is called of the copy that a run uses, by the runner that is yielded."""
    trace, model = CallTrace(), runner.copies.of(run.setting)
    copies = replace(runner.copies)
    watched = replace(runner, copies=copies, answers={})
    if runner.subject.forward is not runner.copies.model:
        bind = copies.bind

        def bound(function: Callable[..., Any], inputs: dict[str, Any]) -> Any:
            call = functools.partial(_by_name, bind, function)
            return trace.record(MODEL, call, (), inputs)

        copies.bind = bound  # type: ignore[method-assign]
    kind = type(model)
    model.__class__ = _traced_class(kind, trace)
    try:
        yield trace, watched
    finally:
        model.__class__ = kind


def _by_name(bind: Callable[..., Any], function: Callable[..., Any], **inputs: Any) -> Any:
    return bind(function, inputs)


def _traced_class(kind: Any, trace: CallTrace) -> type:
    """Return a subclass of a model's class that records calls from outside."""
    own = {
        name
        for base in kind.__mro__[: kind.__mro__.index(nn.Module)]
        for name, value in vars(base).items()
        if inspect.isfunction(value) and not name.startswith("_") and name != "forward"
    }

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return trace.record(MODEL, functools.partial(kind.__call__, self), args, kwargs)

    def lookup(self: Any, name: str) -> Any:
        value = kind.__getattribute__(self, name)
        if name not in own or trace.inside or not inspect.ismethod(value):
            return value

        @functools.wraps(value)
        def method(*args: Any, **kwargs: Any) -> Any:
            return trace.record(name, value, args, kwargs)

        return method

    return type(kind.__name__, (kind,), {"__call__": call, "__getattribute__": lookup})
