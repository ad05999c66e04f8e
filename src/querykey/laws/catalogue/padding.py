"""Padding changes nothing: neither what it holds nor how much of it there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from querykey.laws.catalogue import sweeps
from querykey.laws.catalogue.derivatives import reach
from querykey.laws.law import Law, plain_settings
from querykey.laws.run import Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Cells, Outcome, Trial, cells, every_cell, rows

PADS = (0, 4, 7)  # how many tokens of the rows are padding
UNORDERED = (4, 0, 7)  # where rows of any order are taken


def takes_a_mask(runner: Runner) -> str:
    """Return why the law does not apply to a model that takes no padding mask."""
    return "" if runner.facts.masks else "it takes no padding mask"


def knows_padding(runner: Runner) -> str:
    """Return why the law does not apply to a model that takes no mask and makes none from ids."""
    signs = runner.facts.arguments.padding
    return "" if signs.ids or signs.idle else takes_a_mask(runner)


def takes_left_padding(runner: Runner) -> str:
    """Return why the law does not apply: only decoders are padded on the left."""
    if not runner.facts.masks_over(runner.signature.axis):
        return "it takes no padding mask"
    if any(mask.counts for mask in runner.facts.masks):
        return "it takes the lengths of rows, which are padded on the right"
    if not runner.facts.causal:
        return "encoders are padded on the right"
    if runner.signature.others():
        return "the targets of an encoder-decoder are padded on the right"
    return ""


def padded_axes(runner: Runner) -> list[str]:
    """Return the lengths that a mask covers, the answer's own last."""
    axes = dict.fromkeys(mask.axis for mask in runner.facts.masks)
    return sorted(axes, key=lambda axis: axis == runner.signature.axis)


def real_tokens(runner: Runner, inputs: Inputs, axis: str, left: bool = False) -> torch.Tensor:
    """Return a (batch, positions) table of real tokens, with more padding row by row."""
    real = runner.signature.all_real(inputs, axis)
    length = real.shape[1]
    sides = [mask.counts for mask in runner.facts.masks_over(axis)]
    pads = UNORDERED if "any order" in sides else PADS
    for row in range(len(real)):
        count = min(pads[row % 3], length - 2)
        real[row, :count] &= not left
        real[row, length - count :] &= left
    return real


def arguments(runner: Runner, axis: str, real: torch.Tensor, counted: bool = True) -> Inputs:
    """Return the mask arguments that name these real tokens, and positions that count them."""
    passed = {mask.name: mask.value(real) for mask in runner.facts.masks_over(axis)}
    left = not bool(real[:, 0].all())
    positions = runner.facts.arguments.positions
    if counted and left and positions and axis == runner.signature.axis:
        count = (real.long().cumsum(1) - 1).clamp(min=0)
        passed[positions.name] = positions.value(count)
    return passed


def cells_where(table: torch.Tensor) -> Cells:
    """Return the cells at which a (batch, positions) table is True."""
    return cells([(int(row), int(position)) for row, position in table.nonzero()])


def protected(runner: Runner, inputs: Inputs, axis: str, real: torch.Tensor) -> Cells:
    """Return the real positions of the answer; all of it where the padding is elsewhere."""
    if not runner.signature.sequential:
        return rows(range(len(real)))
    if axis == runner.signature.axis:
        return cells_where(real)
    length = runner.signature.length_of(inputs)
    return every_cell(range(len(real)), range(length))


def right(runner: Runner, setting: Setting) -> Iterator[Trial | Outcome]:
    """Pad on the right: with other content, then not at all; tell of masks that do nothing."""
    for name in runner.facts.arguments.padding.idle:
        note = f"nothing that was passed for `{name}` changes an answer, so it hides nothing"
        yield Outcome(1.0, note, setting, advice=True)
    for axis in padded_axes(runner):
        yield from _content(runner, setting, axis, left=False)
        yield from _amount(runner, setting, axis, left=False)
    for axis, _ in runner.facts.arguments.padding.ids:
        yield from _amount(runner, setting, axis, left=False)


def left(runner: Runner, setting: Setting) -> Iterator[Trial]:
    """Pad on the left: with other content, then not at all."""
    yield from _content(runner, setting, runner.signature.axis, left=True)
    yield from _amount(runner, setting, runner.signature.axis, left=True)
    if runner.facts.arguments.positions:
        yield from _amount(runner, setting, runner.signature.axis, left=True, counted=False)


def _content(runner: Runner, setting: Setting, axis: str, left: bool) -> Iterator[Trial]:
    """Replace what stands at padding."""
    inputs, other = runner.inputs(setting), runner.inputs(setting, seed=1)
    real = real_tokens(runner, inputs, axis, left)
    masks = arguments(runner, axis, real)
    keep = protected(runner, inputs, axis, real)
    changed = runner.signature.with_other(inputs, other, ~real, axis)
    move = None
    if axis == runner.signature.axis and runner.signature.sequential:
        move = cells_where(~real)
    yield Trial(
        Run({**inputs, **masks}, setting),
        Run({**changed, **masks}, setting),
        (keep, keep),
        (move, move) if move else None,
        f"only the content of its {'left' if left else 'right'} padding along {axis} changed"
        f"{_contrary(runner, axis)}",
        _inside(runner, axis, real.nonzero().tolist(), real.nonzero().tolist()),
    )


def _contrary(runner: Runner, axis: str) -> str:
    """Return what to say of a mask that hides the opposite of what its name says."""
    names = {mask.name for mask in runner.facts.masks_over(axis)}
    return "".join(
        f" (by its name a 1 in {name} marks padding, but it hides where there is none: if that is "
        f"meant, state all inputs, this one with --input '{name}=mask(batch,seq)')"
        for name in runner.facts.arguments.padding.contrary
        if name in names
    )


def _amount(
    runner: Runner, setting: Setting, axis: str, left: bool, counted: bool = True
) -> Iterator[Trial]:
    """Run every padded row alone and without its padding; positions are passed where `counted`."""
    signature, inputs = runner.signature, runner.inputs(setting)
    if signature.only and axis == signature.axis:
        return  # no row can be run without its padding
    real = real_tokens(runner, inputs, axis, left)
    padded = {
        **pad_with_its_token(runner, inputs, real, axis),
        **arguments(runner, axis, real, counted),
    }
    name = getattr(runner.facts.arguments.positions, "name", "")
    side = f"{'left' if left else 'right'} padding along {axis}"
    uncounted = "" if counted else f" (no {name} was passed)"
    for row in [row for row in range(setting.batch) if not bool(real[row].all())]:
        span = real[row].nonzero().flatten().tolist()
        alone = signature.cut(signature.take_rows(inputs, [row]), span[0], span[-1] + 1, axis)
        whole = signature.all_real(alone, axis)
        masks = {mask.name: mask.value(whole) for mask in runner.facts.masks_over(axis)}
        yield Trial(
            Run(padded, setting),
            Run({**alone, **masks}, setting),
            _same_answers(runner, inputs, axis, row, span),
            None,
            f"the row was given without its {side}{uncounted}",
            _inside(runner, axis, [(row, i) for i in span], [(0, i) for i in range(len(span))]),
            advice=left and not (counted and means_left_padding(runner, axis)),
        )


def means_left_padding(runner: Runner, axis: str) -> bool:
    """Return whether a model is meant to be padded on the left as well.

    By torch's convention, where a 1 marks padding, rows are padded on the right, and positions
    count from there; but who counts the real tokens of a mask does it for padding on the left.
    """
    named = any(mask.names_real for mask in runner.facts.masks_over(axis))
    return named or runner.facts.arguments.padding.counted


def _same_answers(
    runner: Runner, inputs: Inputs, axis: str, row: int, span: list[int]
) -> tuple[Cells, Cells]:
    """Return the cells of a padded row, and those of the same row alone without its padding."""
    if not runner.signature.sequential:
        return rows([row]), rows([0])
    if axis == runner.signature.axis:
        return every_cell([row], span), every_cell([0], range(len(span)))
    places = range(runner.signature.length_of(inputs))
    return every_cell([row], places), every_cell([0], places)


def _inside(runner: Runner, axis: str, first: list, second: list) -> tuple[Cells, Cells] | None:
    """Return real tokens of the padded input, where the answer's positions are others."""
    if axis == runner.signature.axis and runner.signature.sequential:
        return None
    return cells([tuple(c) for c in first]), cells([tuple(c) for c in second])


def pad_with_its_token(runner: Runner, inputs: Inputs, real: torch.Tensor, axis: str) -> Inputs:
    """Return inputs padded with the token that the model's configuration names, if any."""
    config: Any = getattr(runner.copies.model, "config", None)
    known = dict(runner.facts.arguments.padding.ids)
    token = known.get(axis, getattr(config, "pad_token_id", None))
    entry = next((e for e in runner.signature.inputs if axis in e.axes), None)
    if not isinstance(token, int) or entry is None or entry.kind != "tokens" or token < 0:
        return inputs

    def fill(value: torch.Tensor) -> None:
        value[~real] = token

    return runner.signature.edit(inputs, fill, axis)


def gradient(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Differentiate real answers: zero by padding, and finite by the rest."""
    for axis in padded_axes(runner):
        inputs = runner.inputs(setting)
        real = real_tokens(runner, inputs, axis)
        run = Run({**inputs, **arguments(runner, axis, real)}, setting)
        ask = protected(runner, inputs, axis, real)
        outcome = reach(runner, run, ask, cells_where(~real), cells_where(real), axis)
        trial = next(_content(runner, setting, axis, left=False))
        yield replace(outcome, evidence=replace(outcome.evidence, trial=trial))


def sweep(runner: Runner) -> Iterator[Setting]:
    """Try every implementation of attention, because each handles masks in its own code."""
    yield from plain_settings(runner)
    yield from sweeps.other_implementations(runner)
    yield Setting(train=True)  # some code takes another path there
    yield from sweeps.as_many_rows_as_heads(runner)


LAWS = (
    Law(
        "padding.right",
        says="Real answers do not change with the content or the amount of right padding.",
        why="Otherwise answers depend on who else is in the batch (transformers 29029).",
        how="Padding gets other content, then every row is run alone without it.",
        trials=right,
        applies=knows_padding,
        sweep=sweep,
    ),
    Law(
        "padding.left",
        says="Real answers do not change with the content or the amount of left padding.",
        why="Otherwise prompts of unequal length are continued differently (transformers 22161).",
        how="Padding before the tokens gets other content, then every row is run alone without it.",
        trials=left,
        applies=takes_left_padding,
        sweep=sweep,
    ),
    Law(
        "padding.gradient",
        says="Real answers have no derivative with respect to padding.",
        why="Otherwise padding is trained on (NeMo Automodel 3704).",
        how="Real answers are differentiated by the embeddings of padding.",
        trials=gradient,
        applies=takes_a_mask,
        sweep=sweeps.once,
    ),
)
