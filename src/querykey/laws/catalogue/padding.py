"""Padding changes nothing: neither what it holds nor how much of it there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from querykey.laws.catalogue import sweeps
from querykey.laws.catalogue.derivatives import reach
from querykey.laws.law import Law
from querykey.laws.runner import Specimen
from querykey.laws.trial import Cells, Outcome, Run, Trial, cells, rows
from querykey.laws.understanding.arguments import REAL
from querykey.laws.understanding.copies import Inputs, Setting

PADS = (0, 4, 7)  # how many tokens of each row are padding


def takes_a_mask(specimen: Specimen) -> str:
    """To models that are told which tokens are real."""
    return "" if specimen.masks else "it takes no padding mask"


def takes_left_padding(specimen: Specimen) -> str:
    """To decoders: padding on the left is how they answer for rows of different lengths."""
    if not specimen.mask_for(specimen.anatomy.axis):
        return "it takes no padding mask"
    if not specimen.causal:
        return "encoders are padded on the right"
    if specimen.anatomy.others():
        return "the targets of an encoder-decoder are padded on the right"
    return ""


def padded_axes(specimen: Specimen) -> list[str]:
    """The lengths that a mask covers, the answer's own last."""
    axes = dict.fromkeys(mask.axis for mask in specimen.masks)
    return sorted(axes, key=lambda axis: axis == specimen.anatomy.axis)


def reality(specimen: Specimen, inputs: Inputs, axis: str, left: bool = False) -> torch.Tensor:
    """Which tokens are real, with more padding row by row."""
    real = specimen.all_real(inputs, axis)
    length = real.shape[1]
    for row in range(len(real)):
        count = min(PADS[row % 3], length - 2)
        real[row, :count] &= not left
        real[row, length - count :] &= left
    return real


def given(specimen: Specimen, axis: str, real: torch.Tensor) -> Inputs:
    """The mask arguments that say so, and positions that count real tokens."""
    made = {mask.name: mask.value(real) for mask in specimen.mask_for(axis)}
    left = not bool(real[:, 0].all())
    if left and specimen.positions and axis == specimen.anatomy.axis:
        count = (real.long().cumsum(1) - 1).clamp(min=0)
        made[specimen.positions.name] = specimen.positions.value(count)
    return made


def protected(specimen: Specimen, inputs: Inputs, axis: str, real: torch.Tensor) -> Cells:
    """Real positions of the answer; all of it where the padding is elsewhere."""
    if not specimen.anatomy.sequential:
        return rows(list(range(len(real))))
    if axis == specimen.anatomy.axis:
        return cells([(int(r), int(i)) for r, i in real.nonzero()])
    length = specimen.length_of(inputs)
    return cells([(r, i) for r in range(len(real)) for i in range(length)])


def right(specimen: Specimen, setting: Setting) -> Iterator[Trial]:
    """Pad on the right: other content, then no padding at all."""
    for axis in padded_axes(specimen):
        yield from _content(specimen, setting, axis, left=False)
        yield from _count(specimen, setting, axis, left=False)


def left(specimen: Specimen, setting: Setting) -> Iterator[Trial]:
    """Pad on the left: other content, then no padding at all."""
    yield from _content(specimen, setting, specimen.anatomy.axis, left=True)
    yield from _count(specimen, setting, specimen.anatomy.axis, left=True)


def _content(specimen: Specimen, setting: Setting, axis: str, left: bool) -> Iterator[Trial]:
    inputs, other = specimen.inputs(setting), specimen.inputs(setting, seed=1)
    real = reality(specimen, inputs, axis, left)
    told = given(specimen, axis, real)
    keep = protected(specimen, inputs, axis, real)
    changed = specimen.with_other(inputs, other, ~real, axis)
    move = None
    if axis == specimen.anatomy.axis and specimen.anatomy.sequential:
        move = cells([(int(r), int(i)) for r, i in (~real).nonzero()])
    yield Trial(
        Run({**inputs, **told}, setting),
        Run({**changed, **told}, setting),
        (keep, keep),
        (move, move) if move else None,
        f"other content in the {'left' if left else 'right'} padding of {axis}",
        _inside(specimen, axis, real.nonzero().tolist(), real.nonzero().tolist()),
    )


def _count(specimen: Specimen, setting: Setting, axis: str, left: bool) -> Iterator[Trial]:
    inputs = specimen.inputs(setting)
    real = reality(specimen, inputs, axis, left)
    padded = pad_with_its_token(specimen, inputs, real, axis)
    told = given(specimen, axis, real)
    for row in range(1, setting.batch):
        span = real[row].nonzero().flatten().tolist()
        alone = specimen.cut(specimen.take_rows(inputs, [row]), span[0], span[-1] + 1, axis)
        whole = specimen.all_real(alone, axis)
        if not specimen.anatomy.sequential:
            keep = rows([row]), rows([0])
        elif axis == specimen.anatomy.axis:
            keep = cells([(row, i) for i in span]), cells([(0, i) for i in range(len(span))])
        else:
            places = range(specimen.length_of(inputs))
            keep = cells([(row, i) for i in places]), cells([(0, i) for i in places])
        masks = {mask.name: mask.value(whole) for mask in specimen.mask_for(axis)}
        yield Trial(
            Run({**padded, **told}, setting),
            Run({**alone, **masks}, setting),
            keep,
            None,
            f"the row was given without its {'left' if left else 'right'} padding of {axis}",
            _inside(specimen, axis, [(row, i) for i in span], [(0, i) for i in range(len(span))]),
            # By torch's convention rows are padded on the right, and positions count from there.
            advice=left and not any(REAL.search(mask.name) for mask in specimen.mask_for(axis)),
        )


def _inside(specimen: Specimen, axis: str, first: list, second: list) -> tuple[Cells, Cells] | None:
    """Real tokens of the padded input, where the answer's positions are not its."""
    if axis == specimen.anatomy.axis and specimen.anatomy.sequential:
        return None
    return cells([tuple(c) for c in first]), cells([tuple(c) for c in second])


def pad_with_its_token(specimen: Specimen, inputs: Inputs, real: torch.Tensor, axis: str) -> Inputs:
    """Where a model names a token for padding, its users pad with that one."""
    config: Any = getattr(specimen.bench.model, "config", None)
    token = getattr(config, "pad_token_id", None)
    each = next((e for e in specimen.anatomy.inputs if axis in e.axes), None)
    if not isinstance(token, int) or each is None or each.kind != "tokens" or token < 0:
        return inputs

    def fill(value: torch.Tensor) -> None:
        value[~real] = token

    return specimen.edit(inputs, fill, axis)


def gradient(specimen: Specimen, setting: Setting) -> Iterator[Outcome]:
    """Real answers have no derivative by padding, and a finite one by the rest."""
    for axis in padded_axes(specimen):
        inputs = specimen.inputs(setting)
        real = reality(specimen, inputs, axis)
        run = Run({**inputs, **given(specimen, axis, real)}, setting)
        ask = protected(specimen, inputs, axis, real)
        forbidden = cells([(int(r), int(i)) for r, i in (~real).nonzero()])
        allowed = cells([(int(r), int(i)) for r, i in real.nonzero()])
        outcome = reach(specimen, run, ask, forbidden, allowed, axis)
        yield replace(outcome, trial=next(_content(specimen, setting, axis, left=False)))


def sweep(specimen: Specimen) -> Iterator[Setting]:
    """Each implementation handles masks in its own code."""
    yield from sweeps.plain(specimen)
    yield from sweeps.other_implementations(specimen)


LAWS = (
    Law(
        "padding.right",
        "real answers do not change with the content or the amount of right padding",
        "other padding, or none",
        "answers at real positions",
        takes_a_mask,
        right,
        sweep,
    ),
    Law(
        "padding.left",
        "real answers do not change with the content or the amount of left padding",
        "other padding, or none",
        "answers at real positions",
        takes_left_padding,
        left,
        sweep,
    ),
    Law(
        "padding.gradient",
        "real answers have no derivative by padding",
        "differentiate",
        "derivatives by padding",
        takes_a_mask,
        gradient,
        sweeps.once,
    ),
)
