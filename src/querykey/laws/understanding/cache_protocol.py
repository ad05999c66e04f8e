"""How a model hands its cache on, found by trying: what it returns goes back in by some name."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from querykey.laws.blaming.recorder import Recorder
from querykey.laws.runner import Specimen
from querykey.laws.trial import Run, deviation
from querykey.laws.understanding.arguments import MASKS
from querykey.laws.understanding.copies import Inputs, Setting
from querykey.laws.understanding.outputs import Path, children, follow

ARGUMENTS = re.compile(
    r"^(past\w*|(?!use_)(\w+_)?cache(s|_params)?|kv(_?cache)?|states?|(?!encoder_)\w*_states?|hc|hx|h_?0|h|"
    r"hidden|mems|memory|carry|layer_past|prev\w*)$"
)
NOT_CACHES = re.compile(
    r"encoder_\w+|output_\w+|return_\w+|inputs?_\w+|\w*attention\w*|cache_pos\w*"
)
CERTAIN = re.compile(r"past|cache|kv")
STARTS = re.compile(r"^(start_?pos(ition)?|start|offset|past_len(gth)?|pos(ition)?_offset)$")
MAKERS = re.compile(r"^(make|init|new|empty|create|allocate|initial)_?\w*(cache|state|memory)s?$")
FEW = 4  # arguments without a telling name that are tried as the cache
SPLITS = ((8, 4, 1), (12, 1))  # in chunks, and one token after all others


@dataclass(frozen=True)
class Protocol:
    """Where a cache goes in, where it comes out, and what else every call needs."""

    argument: str | None  # None: the model keeps its cache to itself
    source: Path | None  # its place in what is returned; None: the one handed in is changed
    given: tuple[tuple[str, Any], ...] = ()
    start: str | None = None  # takes the number of tokens so far
    make: Callable[[nn.Module, int], Any] | None = None  # the first cache, where one is needed
    step: Callable[..., Any] | None = None  # the owner's own way

    def answer(self, specimen: Specimen, run: Run, recorder: Recorder | None) -> torch.Tensor:
        """The chunks' answers, joined."""
        assert run.chunks is not None
        twin = specimen.bench.twin(run.setting)
        cache = self.begin(specimen, run.setting, specimen.batch_of(run.inputs))
        answers, past = [], 0
        watch = recorder.watching(twin) if recorder else nullcontext()
        with watch:
            for size in run.chunks:
                piece = self.piece(specimen, run, past, size)
                output, cache = self.one(specimen, piece, run.setting, cache, past)
                answers.append(specimen.take(output, piece))
                past += size
        return torch.cat(answers, 1)

    def begin(self, specimen: Specimen, setting: Setting, batch: int) -> Any:
        """The cache before the first token."""
        if self.make is None:
            return None
        twin = specimen.bench.twin(setting)
        with specimen.bench.surroundings(twin, setting):
            return self.make(twin, batch)

    def piece(self, specimen: Specimen, run: Run, past: int, size: int) -> Inputs:
        """The inputs of a chunk, with the mask that covers its past."""
        piece = specimen.cut(run.inputs, past, past + size)
        for mask in specimen.mask_for(specimen.anatomy.axis):
            if mask.name in run.inputs:  # a mask covers the past too
                piece[mask.name] = run.inputs[mask.name][:, : past + size]
            elif run.masked:
                whole = specimen.cut(run.inputs, 0, past + size)
                piece[mask.name] = mask.value(specimen.all_real(whole, mask.axis))
        place = specimen.positions
        if place and place.name in run.inputs:
            piece[place.name] = run.inputs[place.name][..., past : past + size]
        return {**piece, **dict(run.setting.given)}

    def one(
        self, specimen: Specimen, piece: Inputs, setting: Setting, cache: Any, past: int
    ) -> tuple[Any, Any]:
        """What one chunk gives, and the cache after it."""
        twin = specimen.bench.twin(setting)
        if self.step:
            with specimen.bench.surroundings(twin, setting):
                return self.step(twin, specimen.bench.placed(piece), cache)
        inputs = {**piece, **dict(self.given)}
        if self.argument and cache is not None:
            inputs[self.argument] = cache
        if self.start:
            inputs[self.start] = past
        output = specimen.bench.raw(inputs, setting)
        if self.source is not None:
            cache = follow(output, self.source)
        return output, cache

    def __str__(self) -> str:
        if self.step:
            return "as told"
        return self.argument or f"kept inside, told {self.start}"


def find_protocol(specimen: Specimen) -> Protocol | None:
    """The first way of handing a cache on that gives the whole answer, else the first at work."""
    if not specimen.anatomy.sequential or specimen.anatomy.slot.flat:
        return None
    said = specimen.bench.subject.cache
    if said:
        return Protocol(None, (), step=said)
    setting = Setting()
    inputs = specimen.inputs(setting)
    other = specimen.with_other(
        inputs, specimen.inputs(setting, seed=1), _first(setting.batch, setting.length, 8)
    )
    working, recurs = None, _recurs(specimen.bench.model)
    with torch.no_grad():
        whole = specimen.remembered(Run(inputs, setting))
        for candidate in _candidates(specimen, inputs):
            found = _tried(specimen, candidate, inputs, other)
            if found is None:
                continue
            answer, effective = found
            if not effective and not (recurs or CERTAIN.search(candidate.argument or "")):
                continue
            if effective and deviation(whole, answer)[0] < specimen.threshold:
                return candidate
            if not candidate.argument or ARGUMENTS.match(candidate.argument):
                working = working or candidate  # a name that says nothing must prove itself
    return working


def _recurs(model: nn.Module) -> bool:
    """Whether it is made to carry a state, so that a state without effect is a fault."""
    return any(isinstance(m, nn.RNNBase | nn.RNNCellBase) for m in model.modules())


def _first(batch: int, length: int, count: int) -> torch.Tensor:
    where = torch.zeros(batch, length, dtype=torch.bool)
    where[:, :count] = True
    return where


def _tried(
    specimen: Specimen, candidate: Protocol, inputs: Inputs, other: Inputs
) -> tuple[torch.Tensor, bool] | None:
    """The chunked answer, and whether later chunks notice another past."""
    trusting = replace_cache(specimen, candidate)
    answers, effective = [], False
    for split in SPLITS:
        try:
            first, second = (trusting.answer(Run(i, Setting(), split)) for i in (inputs, other))
        except Exception:
            continue
        answers.append(first)
        late = slice(split[0], None)
        effective |= deviation(first[:, late], second[:, late])[0] > specimen.threshold
    return (answers[0], effective) if answers else None


def replace_cache(specimen: Specimen, protocol: Protocol) -> Specimen:
    """The same specimen with another protocol."""
    return replace(specimen, cache=protocol, known={})


def _candidates(specimen: Specimen, inputs: Inputs) -> Iterator[Protocol]:
    parameters = specimen.bench.parameters
    free = [n for n, p in parameters.items() if p.default is None and n not in inputs]
    free = [name for name in free if not NOT_CACHES.fullmatch(name)]
    arguments = [name for name in free if ARGUMENTS.match(name)]
    if not arguments and len(free) <= FEW:
        arguments = [name for name in free if not MASKS.match(name)]
    flags = tuple((name, True) for name in specimen.flags)
    counters = [n for n in parameters if STARTS.match(n)]
    starts = [*counters, None]
    for argument in arguments:
        for given in dict.fromkeys([flags, ()]):
            for source in _sources(specimen, inputs, given, argument):
                for start in starts:
                    yield Protocol(argument, source, given, start)
        for make in _makers(specimen):
            for start in starts:
                for source in (*_sources(specimen, inputs, flags, argument), None):
                    yield Protocol(argument, source, flags, start, make)
        for empty in ({}, []):
            for start in starts:
                yield Protocol(argument, None, flags, start, _copies(empty))
    if not arguments:
        for start in counters:
            yield Protocol(None, None, flags, start)
    if callable(getattr(specimen.bench.model, "extend", None)) and "input" not in parameters:
        yield from _extending(specimen)


def _copies(empty: Any) -> Callable[[nn.Module, int], Any]:
    return lambda model, batch: copy.copy(empty)


def _makers(specimen: Specimen) -> Iterator[Callable[[nn.Module, int], Any]]:
    """Methods of the model that make an empty cache, called with as much as they take."""
    for name in dir(type(specimen.bench.model)):
        if MAKERS.match(name):
            for arguments in ((), ("batch",), ("batch", "length")):
                yield _making(name, arguments)


def _readers(specimen: Specimen) -> Iterator[Callable[[nn.Module, Inputs], Any]]:
    """Methods that make a cache of the other inputs, as a decoder's of what its encoder reads."""
    names = {each.name for each in specimen.anatomy.others()}
    for name in dir(type(specimen.bench.model)):
        if MAKERS.match(name):
            taken = set(inspect.signature(getattr(specimen.bench.model, name)).parameters)
            if taken & names:
                yield _reading(name, taken)


def _sized(
    specimen: Specimen, make: Callable[[nn.Module, int], Any]
) -> Callable[[nn.Module, Inputs], Any]:
    return lambda model, inputs: make(model, specimen.batch_of(inputs))


def _reading(name: str, taken: set[str]) -> Callable[[nn.Module, Inputs], Any]:
    def begin(model: nn.Module, inputs: Inputs) -> Any:
        return getattr(model, name)(**{n: v for n, v in inputs.items() if n in taken})

    return begin


def _making(name: str, arguments: tuple[str, ...]) -> Callable[[nn.Module, int], Any]:
    def make(model: nn.Module, batch: int) -> Any:
        sizes = {"batch": batch, "length": 64}
        return getattr(model, name)(*(sizes[each] for each in arguments))

    return make


def _extending(specimen: Specimen) -> Iterator[Protocol]:
    """`extend(ids, state) -> (answer, state)`, beside a forward without a state."""
    main = specimen.anatomy.main.name
    sized = [_sized(specimen, make) for make in _makers(specimen)]
    for begin in (*_readers(specimen), *sized):

        def step(model: Any, inputs: Inputs, cache: Any, begin=begin) -> tuple[Any, Any]:
            ids, state = inputs[main], begin(model, inputs) if cache is None else cache
            names = [mask.name for mask in specimen.mask_for(specimen.anatomy.axis)]
            told = next((inputs[name] for name in names if name in inputs), None)
            if told is None or "real" not in inspect.signature(model.extend).parameters:
                return model.extend(ids, state)
            return model.extend(ids, state, real=told[:, -ids.shape[1] :])  # the new ones alone

        yield Protocol(None, (), step=step)


def _sources(
    specimen: Specimen, inputs: Inputs, given: tuple[tuple[str, Any], ...], argument: str
) -> list[Path]:
    """Places in the output that may hold the cache: by its own name, a like name, or any other."""
    try:
        with torch.no_grad():
            output = specimen.bench.raw({**specimen.cut(inputs, 0, 5), **dict(given)})
    except Exception:
        return []
    answer = specimen.anatomy.slot.path[:1]
    parts = [(key, value) for key, value in children(output) if (key,) != answer]
    parts = [(key, value) for key, value in parts if value is not None]
    named = [(key,) for key, _ in parts if key == argument]
    alike = [(key,) for key, _ in parts if isinstance(key, str) and ARGUMENTS.match(key)]
    numbered = [(key,) for key, _ in parts if isinstance(key, int)]
    return list(dict.fromkeys([*named, *alike, *numbered]))
