"""Finding out how a model's cache is passed on: what it returns goes back in by some name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from querykey.laws.run import PLAIN, Inputs, Run
from querykey.laws.runner import Runner
from querykey.laws.trial import deviation
from querykey.laws.understanding.cache_forms import MAKERS, Fresh, holders, makers, other_forms
from querykey.laws.understanding.cache_growth import grows, grows_in_pairs
from querykey.laws.understanding.facts import CacheProtocol, FoundStep, Protocols
from querykey.laws.understanding.masks import MASKS
from querykey.laws.understanding.outputs import Path, children, follow

ARGUMENTS = re.compile(
    r"^(past\w*|(?!use_)(\w+_)?cache(s|_params)?|cached_\w+|(\w+_)?kvs?(_?cache)?|kv_\w+|states?|"
    r"(?!encoder_)\w*_states?|hc|hx|h_?0|h|hidden|mems|memory|memories|carry|carries|layer_past|prev\w*|"
    r"inference_params)$"
)
NOT_CACHES = re.compile(
    r"encoder_\w+|output_\w+|return_\w+|inputs?_\w+|\w*attention\w*|cache_pos\w*"
)
MEMORIES = re.compile(r"^(?!.*cache).*(mem|segment|context|history)")
CERTAIN = re.compile(r"past|cache|kv|inference_params")
STARTS = re.compile(r"^(start_?pos(ition)?|start|offset|past_len(gth)?|pos(ition)?_offset)$")
# What switches ask for that is no cache.
BESIDES = re.compile(r"att|weight|loss|dict|hidden|logit|emb|prob|feature|score|all|intermediate")
FAIRSEQS = "incremental_state"  # a dict that is filled, beside all ids so far
FEW = 4  # arguments without a telling name that are tried as the cache
FIRST = (2, 1)
SPLITS = ((8, 4, 1), (12, 1))  # in chunks, and one token after all others


def find_cache(runner: Runner) -> CacheProtocol | None:
    """Return the first protocol that gives the answers of one call, else the likeliest that works.

    One that gives other answers is a broken cache only if there is no doubt what goes in where.
    """
    if not runner.signature.sequential or runner.signature.slot.flat:
        return None
    step = runner.subject.cache
    if step:
        return CacheProtocol(None, (), step=step)
    inputs = runner.inputs()
    early = torch.zeros(PLAIN.batch, runner.length(), dtype=torch.bool)
    early[:, :8] = True
    other = runner.signature.with_other(inputs, runner.inputs(seed=1), early)
    working, recurs = None, _recurs(runner.copies.model)
    with torch.no_grad():
        whole = runner.remembered(Run(inputs, PLAIN))
        for candidate in _candidates(runner, inputs):
            if candidate.make is not None and working is not None and _is_returned(working):
                continue  # what callers could make instead does not mend what the model makes
            tried = _tried(runner, candidate, inputs, other)
            if tried is None:
                continue
            answer, effective = tried
            if not effective and not (recurs or CERTAIN.search(candidate.argument or "")):
                continue
            if effective and deviation(whole, answer)[0] < runner.facts.threshold:
                return candidate
            called = MEMORIES.search(candidate.argument or "")
            signs = (grows_in_pairs,) if called else (_beyond_doubt, _works_at_first, grows)
            if working is None and any(sign(runner, candidate, inputs) for sign in signs):
                working = candidate
    return working


def _beyond_doubt(runner: Runner, candidate: CacheProtocol, inputs: Inputs) -> bool:
    """Return whether names alone say which part of the output goes in, and by which argument."""
    if candidate.argument is None:
        return True
    free = _optional(runner, inputs)
    rivals = [n for n in free if ARGUMENTS.match(n) or CERTAIN.search(n)]
    if isinstance(candidate.step, _Filling):
        return True
    if isinstance(candidate.make, Fresh) and candidate.make.annotated:
        return True
    if candidate.argument not in rivals or candidate.step is not None:
        return False
    if candidate.source is None:  # an empty list or dict may not be what it wants
        return not isinstance(candidate.make, _Empty)
    return isinstance(candidate.source[-1], str) or rivals == [candidate.argument]


def _is_returned(candidate: CacheProtocol) -> bool:
    """Return whether the model returns its cache under the name of the argument that takes it."""
    return candidate.source is not None and candidate.source[-1] == candidate.argument


def _works_at_first(runner: Runner, candidate: CacheProtocol, inputs: Inputs) -> bool:
    """Return whether the first few tokens are answered rightly in chunks: then it is a cache."""
    few = runner.signature.cut(inputs, 0, sum(FIRST))
    trusting = runner.supposing(replace(runner.facts, protocols=Protocols(candidate)))
    try:
        whole, fed = (trusting.answer(Run(few, PLAIN, split)) for split in (None, FIRST))
    except Exception:
        return False
    return deviation(whole, fed)[0] < runner.facts.threshold


def _optional(runner: Runner, inputs: Inputs) -> list[str]:
    """Return the arguments that may be left out, and whose name does not say another thing."""
    free = [n for n, p in runner.copies.parameters.items() if p.default is None and n not in inputs]
    return [name for name in free if not NOT_CACHES.fullmatch(name)]


def _recurs(model: nn.Module) -> bool:
    """Return whether the model carries a state, so that a state without effect is a fault."""
    return any(isinstance(m, nn.RNNBase | nn.RNNCellBase) for m in model.modules())


def _tried(
    runner: Runner, candidate: CacheProtocol, inputs: Inputs, other: Inputs
) -> tuple[torch.Tensor, bool] | None:
    """Return the answer in chunks, and whether later chunks depend on earlier tokens."""
    trusting = runner.supposing(replace(runner.facts, protocols=Protocols(candidate)))
    answers, effective = [], False
    for split in SPLITS:
        try:
            first, second = (trusting.answer(Run(i, PLAIN, split)) for i in (inputs, other))
        except Exception:
            continue
        answers.append(first)
        late = slice(split[0], None)
        effective |= deviation(first[:, late], second[:, late])[0] > runner.facts.threshold
    return (answers[0], effective) if answers else None


def _candidates(runner: Runner, inputs: Inputs) -> Iterator[CacheProtocol]:
    """Yield every protocol that the names of arguments and methods suggest, the likeliest first."""
    parameters = runner.copies.parameters
    free = _optional(runner, inputs)
    arguments = [name for name in free if ARGUMENTS.match(name)]
    if not arguments and len(free) <= FEW:
        arguments = [name for name in free if not MASKS.match(name)]
    flags = tuple((name, True) for name in runner.facts.arguments.flags)
    counters = [n for n in parameters if STARTS.match(n)]
    starts = [*counters, None]
    for argument in arguments:
        if argument == FAIRSEQS:
            yield CacheProtocol(argument, None, step=_Filling(runner, argument))
            continue
        asking = [a for a in _asking(runner) if not BESIDES.search(a[0][0])]
        for extra in dict.fromkeys([flags, (), *asking]):
            for source in _sources(runner, inputs, extra, argument):
                for start in starts:
                    yield CacheProtocol(argument, source, extra, start)
        for make in makers(runner.copies.model):
            for start in starts:
                for source in (*_sources(runner, inputs, flags, argument), None):
                    yield CacheProtocol(argument, source, flags, start, make)
        for empty in (_Empty(dict), _Empty(list)):
            for start in starts:
                yield CacheProtocol(argument, None, flags, start, empty)
        for make in holders(runner.copies.model, argument):
            for start in starts:
                yield CacheProtocol(argument, None, flags, start, make)
    if not arguments:
        for start in counters or ([None] if flags else []):
            yield CacheProtocol(None, None, flags, start)
    yield from other_forms(runner)
    if callable(getattr(runner.copies.model, "extend", None)) and "input" not in parameters:
        yield from _extending(runner)
    for argument in filter(CERTAIN.search, arguments):
        for extra in dict.fromkeys([flags, (), *_asking(runner)]):
            for source in _sources(runner, inputs, extra, argument):
                protocol = CacheProtocol(argument, source, extra)
                yield replace(protocol, step=_repeating(runner, protocol))


@dataclass(frozen=True)
class _Empty:
    """Makes a fresh empty container as the first cache."""

    kind: type

    def __call__(self, model: nn.Module, batch: int) -> Any:
        return self.kind()


@dataclass(frozen=True)
class _Filling:
    """A step that passes all ids so far beside a dict, in which the model keeps its cache."""

    runner: Runner
    argument: str

    def __call__(self, model: Any, inputs: Inputs, cache: Any) -> tuple[Any, Any]:
        main = self.runner.signature.main.name
        before, kept = cache or (None, {})
        ids = inputs[main] if before is None else torch.cat([before, inputs[main]], 1)
        output = model(**{**inputs, main: ids, self.argument: kept})
        if not kept:
            raise ValueError("it keeps nothing in the dict")
        if self.runner.take(output, inputs).shape[1] != inputs[main].shape[1]:
            raise ValueError("it does not answer once for every new token")
        return output, (ids, kept)


def _asking(runner: Runner) -> Iterator[tuple[tuple[str, Any], ...]]:
    """Yield the switches that make a model return more, each alone."""
    for name, parameter in runner.copies.parameters.items():
        if name.startswith(("return_", "output_")) and parameter.default is False:
            yield ((name, True),)


def _repeating(runner: Runner, protocol: CacheProtocol) -> Callable[..., Any]:
    """Return a step that passes all ids so far beside the cache, and is answered for new ones.

    Where positions are passed, those of all ids are.
    """
    main, argument, source = runner.signature.main.name, protocol.argument, protocol.source
    assert argument is not None
    assert source is not None
    positions = runner.facts.arguments.positions
    repeated = (main, positions.name) if positions else (main,)

    def step(model: Any, inputs: Inputs, cache: Any) -> tuple[Any, Any]:
        arguments = dict(inputs)
        if cache is not None:
            before, arguments[argument] = cache
            arguments |= {name: torch.cat([b, inputs[name]], -1) for name, b in before.items()}
        ids = {name: arguments[name] for name in repeated if name in arguments}
        output = model(**arguments, **dict(protocol.arguments))
        if runner.take(output, inputs).shape[1] != inputs[main].shape[1]:
            raise ValueError("it does not answer once for every new token")
        return output, (ids, follow(output, source))

    return step


def _readers(runner: Runner) -> Iterator[Callable[[nn.Module, Inputs], Any]]:
    """Yield methods that make a cache from the other inputs, such as an encoder's tokens."""
    names = {entry.name for entry in runner.signature.others()}
    for name in dir(type(runner.copies.model)):
        if MAKERS.match(name):
            taken = set(inspect.signature(getattr(runner.copies.model, name)).parameters)
            if taken & names:
                yield _reading(name, taken)


def _sized(
    runner: Runner, make: Callable[[nn.Module, int], Any]
) -> Callable[[nn.Module, Inputs], Any]:
    """Return a function that makes an empty cache for as many rows as the inputs have."""
    return lambda model, inputs: make(model, runner.signature.batch_of(inputs))


def _reading(name: str, taken: set[str]) -> Callable[[nn.Module, Inputs], Any]:
    """Return a function that passes those inputs to a method which the method takes."""

    def begin(model: nn.Module, inputs: Inputs) -> Any:
        return getattr(model, name)(**{n: v for n, v in inputs.items() if n in taken})

    return begin


def _extending(runner: Runner) -> Iterator[CacheProtocol]:
    """Yield protocols of `extend(ids, state) -> (answer, state)`, beside a stateless forward."""
    main = runner.signature.main.name
    sized = [_sized(runner, make) for make in makers(runner.copies.model)]
    for begin in (*_readers(runner), *sized):

        def step(model: Any, inputs: Inputs, cache: Any, begin=begin) -> tuple[Any, Any]:
            ids, state = inputs[main], begin(model, inputs) if cache is None else cache
            names = [mask.name for mask in runner.facts.masks_over(runner.signature.axis)]
            real = next((inputs[name] for name in names if name in inputs), None)
            if real is None or "real" not in inspect.signature(model.extend).parameters:
                return model.extend(ids, state)
            return model.extend(ids, state, real=real[:, -ids.shape[1] :])  # the new tokens alone

        yield CacheProtocol(None, (), step=FoundStep("extend()", step))


def _sources(
    runner: Runner, inputs: Inputs, extra: tuple[tuple[str, Any], ...], argument: str
) -> list[Path]:
    """Return the places in the output that may hold the cache, likely names first."""
    try:
        with torch.no_grad():
            output = runner.call({**runner.signature.cut(inputs, 0, 5), **dict(extra)})
    except Exception:
        return []
    answer = runner.signature.slot.path[:1]
    parts = [(key, value) for key, value in children(output) if (key,) != answer]
    parts = [(key, value) for key, value in parts if value is not None]
    named = [(key,) for key, _ in parts if key == argument]
    alike = [(key,) for key, _ in parts if isinstance(key, str) and ARGUMENTS.match(key)]
    numbered = [(key,) for key, _ in parts if isinstance(key, int)]
    return list(dict.fromkeys([*named, *alike, *numbered]))
