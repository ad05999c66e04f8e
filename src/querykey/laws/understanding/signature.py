"""What a model takes and gives: its inputs, their axes, and where its answer is.

Every change that a law makes to inputs is a method here, so that a law need not know whether a
model takes (batch, positions) or (positions, batch).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from querykey.laws.understanding.mask_argument import MaskArgument
from querykey.laws.understanding.outputs import Slot
from querykey.targets import Input

# Sizes where none is asked for; the main length is 13 unless a setting says otherwise. All differ.
LENGTHS = {"seq": 10, "target_seq": 9, "third_seq": 8}


@dataclass(frozen=True)
class MaskInput(Input):
    """A mask that every call must give, of which more is known than that a 1 is a real token."""

    told: MaskArgument | None = None


@dataclass(frozen=True)
class CallSignature:
    """The inputs of a model's call, and the output that is its answer."""

    inputs: tuple[Input, ...]
    main: Input  # the input whose positions the answer follows
    slot: Slot
    more: tuple[Slot, ...] = ()  # other outputs with the same positions
    echo: str | None = None  # an argument that takes the ids again, to be answered everywhere
    only: int | None = None  # the one number of tokens that the model takes, if it takes one alone

    @property
    def axis(self) -> str:
        """Return the name of the length that the answer follows."""
        return length_of(self.main)

    @property
    def varies(self) -> bool:
        """Return whether sequences of several lengths are taken."""
        return bool(self.axis) and self.only is None

    @property
    def sequential(self) -> bool:
        """Return whether there is an answer at every position."""
        return self.slot.flat or self.slot.seq is not None

    def others(self) -> list[Input]:
        """Return inputs of another length than the answer's, such as an encoder's tokens."""
        return [entry for entry in self.inputs if length_of(entry) not in ("", self.axis)]

    def draw(self, batch: int, lengths: Mapping[str, int], seed: int, dtype: torch.dtype) -> dict:
        """Draw a value for every input; no token occurs twice in a row where that is possible."""
        generator = torch.Generator().manual_seed(1000 + seed)
        sizes = {**LENGTHS, **lengths, "batch": batch}
        drawn: dict[str, Any] = {}
        for entry in self.inputs:
            drawn[entry.name] = draw(entry, sizes, generator, dtype)
            if entry.kind == "lengths":
                told = self.length_told_by(entry)
                fixed = next((axis for axis in self.main.axes[1:] if isinstance(axis, int)), 1)
                drawn[entry.name] = torch.full((batch,), sizes[told] if told else fixed)
        if self.echo:
            drawn[self.echo] = drawn[self.main.name]
        return drawn

    def batch_of(self, inputs: Mapping[str, Any]) -> int:
        """Return how many rows the inputs have."""
        if self.main.name not in inputs:
            return next(iter(inputs.values())).shape[0]
        place = self.main.axes.index("batch") if "batch" in self.main.axes else 0
        return inputs[self.main.name].shape[place]

    def length_of(self, inputs: Mapping[str, Any]) -> int:
        """Return how many positions the answer has."""
        return inputs[self.main.name].shape[self.main.axes.index(self.axis)]

    def all_real(self, inputs: Mapping[str, Any], axis: str) -> torch.Tensor:
        """Return a (batch, positions) table of True for the tokens along one length."""
        entry = next(e for e in self.inputs if length_of(e) == axis and e.name in inputs)
        value = front(entry, inputs[entry.name])
        return torch.ones(value.shape[:2], dtype=torch.bool)

    def edit(
        self,
        inputs: Mapping[str, Any],
        change: Callable[[torch.Tensor], Any],
        axis: str = "",
    ) -> dict[str, Any]:
        """Return inputs whose data along one length was changed, seen as (batch, positions, ...).

        `change` works in place, or returns the new value. Where an input has the length on two
        axes, as a mask of pairs has, both are changed.
        """
        axis = axis or self.axis
        edited = dict(inputs)
        for entry in self.inputs:
            if length_of(entry) == axis and entry.name in edited:
                value = front(entry, edited[entry.name].clone())
                changed = change(value)
                value = back(entry, value if changed is None else changed)
                if entry.axes.count(axis) == 2 and changed is not None:
                    turned = turn(entry, value)
                    value = turn(entry, back(entry, change(front(entry, turned))))
                edited[entry.name] = value
        return self._echoed(edited)

    def with_other(
        self,
        inputs: Mapping[str, Any],
        other: Mapping[str, Any],
        where: torch.Tensor,
        axis: str = "",
    ) -> dict[str, Any]:
        """Return inputs that are `other`'s where the (batch, positions) table `where` is True."""
        axis = axis or self.axis
        edited = dict(inputs)
        for entry in self.inputs:
            if length_of(entry) == axis and entry.name in edited and entry.kind != "mask":
                value = front(entry, edited[entry.name]).clone()
                source = front(entry, other[entry.name])
                value[where] = source[where]
                edited[entry.name] = back(entry, value)
        return self._echoed(edited)

    def with_rows(
        self, inputs: Mapping[str, Any], other: Mapping[str, Any], indices: Sequence[int]
    ) -> dict[str, Any]:
        """Return inputs in which these rows are `other`'s, in every input."""
        edited = dict(inputs)
        for entry in self.inputs:
            if "batch" in entry.axes and entry.name in edited:
                index = torch.tensor(list(indices))
                place = entry.axes.index("batch")
                source = other[entry.name].index_select(place, index)
                edited[entry.name] = edited[entry.name].index_copy(place, index, source)
        return self._echoed(edited)

    def take_rows(self, inputs: Mapping[str, Any], indices: Sequence[int]) -> dict[str, Any]:
        """Return inputs with only these rows, in this order."""
        edited = dict(inputs)
        for entry in self.inputs:
            if "batch" in entry.axes and entry.name in edited:
                index = torch.tensor(list(indices))
                edited[entry.name] = edited[entry.name].index_select(
                    entry.axes.index("batch"), index
                )
        return self._echoed(edited)

    def cut(
        self, inputs: Mapping[str, Any], start: int, stop: int, axis: str = ""
    ) -> dict[str, Any]:
        """Return inputs with only positions start to stop - 1."""
        return self.edit(inputs, lambda value: value[:, start:stop], axis)

    def length_told_by(self, lengths: Input) -> str:
        """Return the length that an argument of row lengths speaks of: the first, or by name.

        It is the empty string where every length is fixed.
        """
        data = [entry for entry in self.inputs if length_of(entry)]
        first = lengths.name.split("_")[0]
        named = [entry for entry in data if entry.name.startswith(first)]
        return next((length_of(one) for one in [*named, *data]), "")

    def _echoed(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return inputs in which the second copy of the ids, and lengths of rows, fit the rest."""
        if self.echo and self.echo in inputs:
            inputs[self.echo] = inputs[self.main.name]
        for entry in self.inputs:
            if entry.kind == "lengths" and entry.name in inputs and self.length_told_by(entry):
                most = self.all_real(inputs, self.length_told_by(entry)).shape[1]
                inputs[entry.name] = inputs[entry.name].clamp(max=most)
            if entry.kind == "positions" and entry.name in inputs:
                count = self.all_real(inputs, str(entry.axes[-1])).shape[1]
                rows = inputs[entry.name].shape[:-1]
                inputs[entry.name] = torch.arange(count).expand(*rows, count)
        return inputs


def length_of(entry: Input) -> str:
    """Return the name of an input's free length, or the empty string.

    Positions have none: they are counted anew after every change, and are no data.
    """
    if entry.kind == "positions":
        return ""
    return next((str(axis) for axis in entry.axes if axis in LENGTHS), "")


def front(entry: Input, value: torch.Tensor) -> torch.Tensor:
    """Return an input's value as (batch, positions, rest)."""
    axes = [axis for axis in ("batch", length_of(entry)) if axis in entry.axes]
    return value.movedim([entry.axes.index(axis) for axis in axes], list(range(len(axes))))


def back(entry: Input, value: torch.Tensor) -> torch.Tensor:
    """Return (batch, positions, rest) in the input's own order of axes: the inverse of `front`."""
    axes = [axis for axis in ("batch", length_of(entry)) if axis in entry.axes]
    return value.movedim(list(range(len(axes))), [entry.axes.index(axis) for axis in axes])


def turn(entry: Input, value: torch.Tensor) -> torch.Tensor:
    """Return the value of an input of pairs with their two axes exchanged."""
    first = entry.axes.index(length_of(entry))
    return value.transpose(first, entry.axes.index(length_of(entry), first + 1))


def draw(
    entry: Input, sizes: Mapping[str, int], generator: torch.Generator, dtype: torch.dtype
) -> Any:
    """Draw one input's value; the ids of a row are distinct, so that no two tokens tie."""
    if entry.kind == "start":
        return 0
    shape = [axis if isinstance(axis, int) else sizes[axis] for axis in entry.axes]
    if entry.kind == "tokens":
        span = entry.high - entry.low
        if len(shape) == 2 and span >= max(shape):
            long = entry.axes[1] != "batch"
            rows, columns = (shape[0], shape[1]) if long else (shape[1], shape[0])
            drawn = torch.stack(
                [torch.randperm(span, generator=generator)[:columns] for _ in range(rows)]
            )
            return (drawn if long else drawn.mT.contiguous()) + entry.low
        return torch.randint(entry.low, entry.high, shape, generator=generator)
    if isinstance(entry, MaskInput) and entry.told:
        real = torch.ones(shape[0], shape[entry.axes.index(length_of(entry))], dtype=torch.bool)
        return entry.told.value(real)
    if entry.kind == "mask":
        return torch.full(shape, entry.real)
    if entry.kind == "positions":
        return torch.arange(shape[-1]).expand(shape)
    if entry.kind == "lengths":
        return torch.ones(shape, dtype=torch.long)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
