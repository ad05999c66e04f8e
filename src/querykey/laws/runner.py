"""A model on the bench whose call is understood: masks, positions, caches, causal or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from querykey.laws.blaming.recorder import Recorder
from querykey.laws.trial import Run
from querykey.laws.understanding.copies import Bench, Inputs, Setting
from querykey.laws.understanding.outputs import Slot
from querykey.laws.understanding.signature import Anatomy, length_of
from querykey.targets import Input

WIDE, NARROW = 1e-6, 2e-3  # thresholds below which a relative deviation is rounding
FLOORS = 1e3  # or so many times the floor that was measured, never beyond BLIND
BLIND = 1e-3


@dataclass(frozen=True)
class MaskArgument:
    """An argument that says which tokens are real."""

    name: str
    axis: str  # the length it covers
    hides: bool = False  # True: a 1 marks padding, as in torch.nn
    dtype: torch.dtype = torch.long

    def value(self, real: torch.Tensor) -> torch.Tensor:
        """What to pass for these real tokens."""
        real = real.bool()
        return (~real if self.hides else real).to(self.dtype)


@dataclass(frozen=True)
class PositionArgument:
    """An argument that takes every token's position."""

    name: str
    offset: int = 0  # of the first position
    batched: bool = True

    def value(self, positions: torch.Tensor) -> torch.Tensor:
        """What to pass for these positions, counted from 0."""
        return (positions if self.batched else positions[0]) + self.offset


@dataclass
class Specimen:
    """Everything the laws need to know about a model, and the one way to get an answer."""

    bench: Bench
    anatomy: Anatomy
    masks: tuple[MaskArgument, ...] = ()
    positions: PositionArgument | None = None
    embeds: str | None = None
    flags: tuple[str, ...] = ()  # optional switches such as use_cache
    implementations: tuple[str, ...] = ()
    cache: Any = None  # a protocol.Protocol
    causal: bool = False
    why: str = ""
    doubt: str = ""  # what speaks against it
    also_causal: tuple[Slot, ...] = ()  # outputs beside the main one that are meant to be causal
    floor: float = 0.0
    notes: list[str] = field(default_factory=list)
    spans: tuple[int, ...] = ()  # windows and chunks found in the model
    drawn: dict[Any, Inputs] = field(default_factory=dict)
    known: dict[Any, tuple[Run, torch.Tensor]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """In a word."""
        if self.anatomy.main.kind == "image":
            return "vision"
        if not self.anatomy.sequential:
            return "classifier" if not self.causal else "decoder"
        if self.anatomy.others():
            return "encoder-decoder" if self.causal else "cross-attention"
        return "decoder" if self.causal else "encoder"

    @property
    def threshold(self) -> float:
        """What is more than this is no rounding."""
        return max(WIDE if self.bench.wide else NARROW, min(FLOORS * self.floor, BLIND))

    def inputs(self, setting: Setting, seed: int = 0) -> Inputs:
        """Inputs of the setting's size, the same for the same seed."""
        key = setting.batch, setting.length, seed
        if key not in self.drawn:
            lengths = {self.anatomy.axis: setting.length} if self.anatomy.axis else {}
            self.drawn[key] = self.anatomy.make(
                self.bench, setting.batch, lengths, seed + self.bench.seed
            )
        return dict(self.drawn[key])

    def mask_for(self, axis: str) -> list[MaskArgument]:
        """The mask arguments over one length."""
        return [mask for mask in self.masks if mask.axis == axis]

    def remembered(self, run: Run) -> torch.Tensor:
        """The answer, without gradients; the same run is made once."""
        inputs = tuple(sorted((name, id(value)) for name, value in run.inputs.items()))
        key = inputs, run.setting, run.chunks, run.masked, run.slot
        if key not in self.known:
            with torch.no_grad():
                self.known[key] = run, self.answer(run)  # the run keeps its tensors, and their ids
        return self.known[key][1]

    def answer(self, run: Run, recorder: Recorder | None = None) -> torch.Tensor:
        """The answer as (batch, positions, rest); in training each begins with the same state."""
        if run.setting.train:
            self.bench.begin_anew(run.setting)
        if run.chunks is not None:
            return self.cache.answer(self, run, recorder)
        if run.setting.again:
            self.call(self.inputs(run.setting, seed=5), run.setting)
        output = self.call(self.complete(run), run.setting, recorder)
        return self.take(output, run.inputs, run.slot)

    def take(self, output: Any, inputs: Inputs, slot: Slot | None = None) -> torch.Tensor:
        """The answer out of whatever was returned."""
        return (slot or self.anatomy.slot).take(output, self.batch_of(inputs)).cpu()

    def call(
        self,
        inputs: Inputs,
        setting: Setting,
        recorder: Recorder | None = None,
        as_given: bool = False,
    ) -> Any:
        """Whatever the model returns, recorded where asked."""
        watch = recorder.watching(self.bench.twin(setting)) if recorder else nullcontext()
        with watch:
            return self.bench.raw(inputs, setting, as_given)

    def complete(self, run: Run) -> Inputs:
        """The inputs with what the setting adds: masks that hide nothing, switches, embeddings."""
        inputs = {**run.inputs, **dict(run.setting.given)}
        if run.setting.mask:
            for mask in self.masks:
                inputs.setdefault(mask.name, mask.value(self.all_real(inputs, mask.axis)))
        if run.setting.embeds and self.embeds:
            main = self.anatomy.main.name
            table = self.bench.twin(run.setting).get_input_embeddings()  # type: ignore[operator]
            inputs[self.embeds] = table(inputs.pop(main).to(self.bench.device)).detach()
        return inputs

    def all_real(self, inputs: Inputs, axis: str) -> torch.Tensor:
        """A table of ones over the tokens of one length."""
        each = next(e for e in self.anatomy.inputs if length_of(e) == axis and e.name in inputs)
        value = self.front(each, inputs[each.name])
        return torch.ones(value.shape[:2], dtype=torch.bool)

    def front(self, each: Input, value: torch.Tensor) -> torch.Tensor:
        """An input as (batch, positions, rest)."""
        axes = [a for a in ("batch", length_of(each)) if a in each.axes]
        return value.movedim([each.axes.index(a) for a in axes], list(range(len(axes))))

    def back(self, each: Input, value: torch.Tensor) -> torch.Tensor:
        """The inverse of `front`."""
        axes = [a for a in ("batch", length_of(each)) if a in each.axes]
        return value.movedim(list(range(len(axes))), [each.axes.index(a) for a in axes])

    def batch_of(self, inputs: Inputs) -> int:
        """How many rows the inputs have."""
        main = self.anatomy.main
        if main.name not in inputs:
            return next(iter(inputs.values())).shape[0]
        place = main.axes.index("batch") if "batch" in main.axes else 0
        return inputs[main.name].shape[place]

    def length_of(self, inputs: Inputs) -> int:
        """How many positions the answer has."""
        main = self.anatomy.main
        return inputs[main.name].shape[main.axes.index(self.anatomy.axis)]

    def edit(self, inputs: Inputs, change: Callable[[torch.Tensor], Any], axis: str = "") -> Inputs:
        """A copy in which `change` was applied to data over one length, as (batch, positions).

        `change` works in place, or returns the new value.
        """
        axis = axis or self.anatomy.axis
        made = dict(inputs)
        for each in self.anatomy.inputs:
            if length_of(each) == axis and each.name in made:
                value = self.front(each, made[each.name].clone())
                changed = change(value)
                made[each.name] = self.back(each, value if changed is None else changed)
        return self._echoed(made)

    def with_other(self, inputs: Inputs, other: Inputs, where: torch.Tensor, axis="") -> Inputs:
        """A copy whose data over one length is `other`'s where `where` (batch, positions) says."""
        axis = axis or self.anatomy.axis
        made = dict(inputs)
        for each in self.anatomy.inputs:
            if length_of(each) == axis and each.name in made and each.kind != "mask":
                value = self.front(each, made[each.name]).clone()
                source = self.front(each, other[each.name])
                value[where] = source[where]
                made[each.name] = self.back(each, value)
        return self._echoed(made)

    def with_rows(self, inputs: Inputs, other: Inputs, indices: Sequence[int]) -> Inputs:
        """A copy in which these rows are `other`'s, in every input."""
        made = dict(inputs)
        for each in self.anatomy.inputs:
            if "batch" in each.axes and each.name in made:
                index = torch.tensor(list(indices))
                place = each.axes.index("batch")
                source = other[each.name].index_select(place, index)
                made[each.name] = made[each.name].index_copy(place, index, source)
        return self._echoed(made)

    def take_rows(self, inputs: Inputs, indices: Sequence[int]) -> Inputs:
        """A copy with only these rows."""
        made = dict(inputs)
        for each in self.anatomy.inputs:
            if "batch" in each.axes and each.name in made:
                index = torch.tensor(list(indices))
                made[each.name] = made[each.name].index_select(each.axes.index("batch"), index)
        return self._echoed(made)

    def cut(self, inputs: Inputs, start: int, stop: int, axis: str = "") -> Inputs:
        """A copy with only positions start to stop - 1."""
        return self.edit(inputs, lambda value: value[:, start:stop], axis)

    def _echoed(self, inputs: Inputs) -> Inputs:
        if self.anatomy.echo and self.anatomy.echo in inputs:
            inputs[self.anatomy.echo] = inputs[self.anatomy.main.name]
        return inputs
