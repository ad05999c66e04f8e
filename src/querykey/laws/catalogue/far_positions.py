"""Positions far from the first, which half precision cannot count one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from querykey.laws.blaming.guilty_module import guilty_part
from querykey.laws.run import Inputs, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome

FAR = 4096  # bfloat16 counts one by one to 256 from here on in steps of 32, float16 in steps of 4
COUNTINGS = 4  # so many of a call's countings of positions are tried
TOLD_APART = 128  # so many first rows of a table differ, where its rows are positions


def from_far_on(runner: Runner, inputs: Inputs, dtype: torch.dtype) -> tuple[Inputs, Inputs] | None:
    """Return inputs whose positions begin far on, and the same with these positions rounded.

    None where a model cannot be told positions. On a GPU a table without such rows ends the
    process, so this is for CPUs alone.
    """
    positions = runner.facts.arguments.positions
    if positions is None or runner.copies.device.type != "cpu":
        return None
    rows, length = runner.signature.batch_of(inputs), runner.signature.length_of(inputs)
    numbers = torch.arange(FAR, FAR + length).expand(rows, -1).contiguous()
    first, second = (
        {**inputs, positions.name: positions.value(part)}
        for part in (numbers, numbers.to(dtype).long())
    )
    return first, second


class CountedFarOn(TorchFunctionMode):
    """Lets one of a call's countings of its positions in floats begin far on, and may round it."""

    def __init__(self, length: int, place: int, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.length, self.place, self.dtype = length, place, dtype
        self.found = 0  # countings by `torch.arange` in floats so far
        self.counted_in: torch.dtype | None = None  # the precision of the one that was changed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **(kwargs or {}))
        if (
            func is not torch.arange
            or value.numel() != self.length
            or not value.is_floating_point()
        ):
            return value
        if not torch.equal(value.double(), torch.arange(self.length).double()):
            return value
        self.found += 1
        if self.found - 1 != self.place:
            return value
        self.counted_in = value.dtype
        return (value.double() + FAR).to(self.dtype).to(value.dtype)


def tables_that_repeat(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Yield an outcome for each table of angles whose neighbouring rows are equal far on."""
    model = runner.copies.model
    for path, name, table in _tables(model):
        equal = (table[1:] == table[:-1]).all(1).nonzero().flatten()
        if len(equal) and int(equal[0]) >= TOLD_APART:
            place = int(equal[0])
            note = (
                f"its table `{name}` has the same row for positions {place} and {place + 1}, so "
                f"they cannot be told apart: positions were counted in half precision"
            )
            evidence = Evidence({"position": place}, module=guilty_part(model, path))
            yield Outcome(1.0, note, setting, evidence=evidence)


def _tables(model: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield module, name and rows of every tensor that holds sines and cosines of positions."""
    for path, module in model.named_modules():
        held = [*module.named_buffers(recurse=False), *vars(module).items()]
        for name, value in held:
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            rows = value.detach().squeeze()
            long = value.device.type != "meta" and rows.dim() == 2 and len(rows) > 2 * TOLD_APART
            if long and _of_angles(rows):
                yield path, name, rows


def _of_angles(rows: torch.Tensor) -> bool:
    """Return whether the first row is of sines and cosines of 0, and all others of angles."""
    first = rows[0]
    return (
        bool(((first == 0) | (first == 1)).all())
        and bool((rows.abs() <= 1).all())
        and not bool((rows == rows.round()).all())
    )
