"""What a model takes and gives, found by running it: inputs, lengths, the answer's axes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from querykey.laws.understanding.copies import Bench, Inputs, Setting
from querykey.laws.understanding.float64 import duplicate
from querykey.laws.understanding.outputs import Slot, answers, locate, tensors
from querykey.targets import Input, find_inputs
from querykey.words import last_line

# Where no length is asked for; the main one is 13 unless a setting says otherwise. All differ.
LENGTHS = {"seq": 10, "target_seq": 9, "third_seq": 8}
DATA = ("tokens", "features", "image", "signal")
ECHOES = re.compile(r"^(targets?|labels?|y)$")


class UnfitError(Exception):
    """One sentence: why a model cannot be run, so that no law can be tried."""

    verdict = "error"


class UnsuitedError(UnfitError):
    """One sentence: why a model that runs is none that the laws can be tried on."""

    verdict = "not-applicable"


@dataclass(frozen=True)
class Anatomy:
    """What is known about a model's call before any law is tried."""

    inputs: tuple[Input, ...]
    main: Input  # what the answer's positions follow
    slot: Slot
    more: tuple[Slot, ...] = ()  # other outputs with the same positions
    echo: str | None = None  # an argument that takes the ids again, to be answered everywhere

    @property
    def axis(self) -> str:
        """The name of the length that the answer follows."""
        return length_of(self.main)

    @property
    def sequential(self) -> bool:
        """Whether there is an answer at every position."""
        return self.slot.flat or self.slot.seq is not None

    def others(self) -> list[Input]:
        """Inputs of another length than the answer's, as an encoder's in an encoder-decoder."""
        return [each for each in self.inputs if length_of(each) not in ("", self.axis)]

    def make(self, bench: Bench, batch: int, lengths: Mapping[str, int], seed: int = 0) -> Inputs:
        """Draw a value for every input; no token twice in a row where the vocabulary allows."""
        generator = torch.Generator().manual_seed(1000 + seed)
        sizes = {**LENGTHS, **lengths, "batch": batch}
        made: Inputs = {}
        for each in self.inputs:
            made[each.name] = draw(each, sizes, generator, bench.dtype)
        if self.echo:
            made[self.echo] = made[self.main.name]
        return made


def draw(
    each: Input, sizes: Mapping[str, int], generator: torch.Generator, dtype: torch.dtype
) -> Any:
    """One value; ids of a row are distinct, so that no two tokens tie."""
    if each.kind == "start":
        return 0
    shape = [axis if isinstance(axis, int) else sizes[axis] for axis in each.axes]
    if each.kind == "tokens":
        span = each.high - each.low
        if len(shape) == 2 and span >= max(shape):
            long = each.axes[1] != "batch"
            rows, columns = (shape[0], shape[1]) if long else (shape[1], shape[0])
            drawn = torch.stack(
                [torch.randperm(span, generator=generator)[:columns] for _ in range(rows)]
            )
            return (drawn if long else drawn.mT.contiguous()) + each.low
        return torch.randint(each.low, each.high, shape, generator=generator)
    if each.kind == "mask":
        return torch.ones(shape, dtype=torch.long)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def dissect(bench: Bench) -> Anatomy:
    """Find inputs, which lengths belong together, the answer's axes; UnfitError says why not."""
    reasons: list[str] = []
    for wide in (True, False):
        bench.wide, bench.twins = wide, {}
        try:
            return _dissect(bench)
        except UnfitError as error:
            reasons.append(str(error))
    raise UnfitError(reasons[-1])


def _dissect(bench: Bench) -> Anatomy:
    inputs = _inputs(bench)
    reason = "it was not run"
    for grouped in _groupings(inputs):
        try:
            found = _located(bench, grouped)
        except Exception as error:
            reason = f"forward raised {last_line(error)[:200]}"
            continue
        if found is not None:
            return found
        reason = (
            "its output holds no floating tensor with a batch axis; check a model that returns "
            "scores or hidden states, and not only a loss"
        )
    raise UnfitError(reason)


def _inputs(bench: Bench) -> tuple[Input, ...]:
    if bench.subject.example is not None:
        described = tuple(_described(bench, bench.subject.example))
        if not described:
            raise UnfitError("the example holds no tensor; give one for every input")
        return described
    if bench.subject.forward is not bench.model:
        return tuple(_of_function(bench))
    try:
        inputs, why = find_inputs(duplicate(bench.model, wide=False))
    except Exception as error:
        raise UnfitError(f"it cannot be copied and run: {last_line(error)[:200]}") from error
    if not inputs:
        raise UnfitError(f"no input can be made up: {why}")
    return tuple(each for each in inputs if each.required)


def _of_function(bench: Bench) -> Iterator[Input]:
    """Inputs of a function around a model: what the model itself takes, under other names."""
    inputs, why = find_inputs(duplicate(bench.model, wide=False))
    names = [n for n, p in bench.parameters.items() if p.default is p.empty]
    if not inputs:
        raise UnfitError(f"no input can be made up: {why}; give an example")
    for index, name in enumerate(names):
        yield replace(inputs[min(index, len(inputs) - 1)], name=name)


def _described(bench: Bench, example: Any) -> Iterator[Input]:
    """An example's tensors as inputs whose batch and length are free."""
    if isinstance(example, torch.Tensor):
        example = (example,)
    if not isinstance(example, Mapping):
        names = [n for n, p in bench.parameters.items() if p.kind is not p.VAR_POSITIONAL]
        names += [f"argument_{i}" for i in range(len(names), len(example))]
        example = dict(zip(names, example, strict=False))
    words = [m.num_embeddings for m in bench.model.modules() if isinstance(m, nn.Embedding)]
    lengths: dict[int, str] = {}
    for name, value in example.items():
        if not isinstance(value, torch.Tensor):
            if any(True for _ in tensors(value)):
                raise UnfitError(
                    f"the example's `{name}` holds its tensors inside a {type(value).__name__}; "
                    f"check a function that takes each by itself and puts them together, as "
                    f'Subject(lambda ids: model({{"ids": ids}}), example=ids)'
                )
            continue
        shape = tuple(value.shape)
        if value.dim() >= 2 and value.dim() != 4:
            free = ["seq", "target_seq", "third_seq"][min(len(lengths), 2)]
            shape = ("batch", lengths.setdefault(shape[1], free), *shape[2:])
        elif shape:
            shape = ("batch", *shape[1:])
        if "mask" in name and not value.is_floating_point():
            yield Input(name, "mask", shape)
        elif value.is_floating_point():
            yield Input(name, "image" if value.dim() == 4 else "features", shape)
        else:
            yield Input(name, "tokens", shape, 0, words[0] if words else int(value.max()) + 1)


def _groupings(inputs: tuple[Input, ...]) -> Iterator[tuple[Input, ...]]:
    """Whose lengths may differ: as told, else each its own, else the first its own, else one."""
    data = [each for each in inputs if each.kind in DATA]
    yield_as_told = len({length_of(each) for each in inputs}) > 1 or len(data) == 1
    if not yield_as_told:
        free = ("seq", "target_seq", "third_seq")
        if len(inputs) <= 3:
            yield tuple(_renamed(each, free[i]) for i, each in enumerate(inputs))
        yield tuple(_renamed(each, free[min(i, 1)]) for i, each in enumerate(inputs))
    yield inputs


def _renamed(each: Input, length: str) -> Input:
    return replace(each, axes=tuple(length if a == "seq" else a for a in each.axes))


def length_of(each: Input) -> str:
    """The name of an input's free length, or nothing."""
    return next((str(a) for a in each.axes if a in LENGTHS), "")


def _located(bench: Bench, inputs: tuple[Input, ...]) -> Anatomy | None:
    """Vary the batch and each length in turn, and see which axes of the output follow."""
    echoes = [None, *(n for n in bench.parameters if ECHOES.match(n))]
    names = {each.name for each in inputs}
    pooled: list[Anatomy] = []
    for echo in (e for e in echoes if e not in names):
        if echo and inputs[0].kind != "tokens":
            continue
        anatomy = Anatomy(inputs, inputs[0], Slot((), None, None), echo=echo)
        try:
            found = list(_candidates(bench, anatomy))
        except Exception:
            if echo is None:
                raise
            continue
        placed = [each for rank, each in sorted(found, key=lambda f: f[0]) if each.sequential]
        if placed:
            main = placed[0].main
            return replace(placed[0], more=tuple(e.slot for e in placed[1:] if e.main is main))
        pooled += [each for _, each in found if each.slot.batch is not None]
    return pooled[0] if pooled else None


def _candidates(bench: Bench, anatomy: Anatomy) -> Iterator[tuple[int, Anatomy]]:
    """Every (place in the output, anatomy) that one input and one part of the output make."""
    axes = [a for a in LENGTHS if any(a in each.axes for each in anatomy.inputs)]
    # The last length first: an encoder-decoder answers at the decoder's positions.
    for axis in reversed(axes) if axes else [""]:
        mains = [e for e in anatomy.inputs if length_of(e) == axis and e.kind in DATA]
        if mains:
            for rank, slot in _slots(bench, replace(anatomy, main=mains[0]), axis):
                yield rank, replace(anatomy, main=mains[0], slot=slot)


def _slots(bench: Bench, anatomy: Anatomy, axis: str) -> list[tuple[int, Slot]]:
    sizes = [(2, 7), (3, 7), (2, 12)]
    shapes = []
    for batch, length in sizes:
        inputs = anatomy.make(bench, batch, {axis: length} if axis else {})
        with torch.no_grad():
            output = bench.raw(inputs, Setting())
        shapes.append({path: tuple(t.shape) for path, t in answers(output)})
    if not axis:
        shapes, sizes = [*shapes[:2], shapes[0]], [(2, 7), (3, 7), (2, 7)]
    return [(list(shapes[0]).index(slot.path), slot) for slot in locate(shapes, sizes)]
