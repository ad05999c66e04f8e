"""The answer for a row is its own: alone or in a batch, and whatever the other rows are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from querykey.laws.catalogue import sweeps
from querykey.laws.law import Law
from querykey.laws.run import Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Cells, Trial, every_cell, rows
from querykey.laws.understanding.signature import front


def has_rows(runner: Runner) -> str:
    """Return why the law does not apply to a model whose answer has no batch axis."""
    slot = runner.signature.slot
    if "batch" not in runner.signature.main.axes or (slot.batch is None and not slot.flat):
        return "it has no batch axis"
    return ""


def whole_rows(runner: Runner, setting: Setting, indices: Iterable[int]) -> Cells:
    """Return everything that is answered for these rows."""
    if not runner.signature.sequential:
        return rows(list(indices))
    return every_cell(indices, range(runner.length(setting)))


def alone(runner: Runner, setting: Setting) -> Iterator[Trial]:
    """Run the first row by itself, then the last."""
    inputs = runner.inputs(setting)
    for row in (0, setting.batch - 1):
        yield Trial(
            Run(inputs, setting),
            Run(runner.signature.take_rows(inputs, [row]), setting),
            (whole_rows(runner, setting, [row]), whole_rows(runner, setting, [0])),
            None,
            f"row {row} of {setting.batch} was run alone",
            _inside(runner, inputs, row, 0),
        )


def others(runner: Runner, setting: Setting) -> Iterator[Trial]:
    """Replace all rows but the first, then all but the second."""
    inputs, other = runner.inputs(setting), runner.inputs(setting, seed=1)
    for row in (0, 1):
        company = [r for r in range(setting.batch) if r != row]
        keep, move = (whole_rows(runner, setting, r) for r in ([row], company))
        yield Trial(
            Run(inputs, setting),
            Run(runner.signature.with_rows(inputs, other, company), setting),
            (keep, keep),
            (move, move),
            "the other rows were replaced",
            _inside(runner, inputs, row, row),
        )


def _inside(runner: Runner, inputs: Inputs, first: int, second: int) -> tuple[Cells, Cells] | None:
    """Return the cells of the same row of an encoder's input, where there is one."""
    others = runner.signature.others()
    if not others:
        return None
    length = front(others[0], inputs[others[0].name]).shape[1]
    return every_cell([first], range(length)), every_cell([second], range(length))


def with_other_sizes(runner: Runner) -> Iterator[Setting]:
    """Try the plain call, a mask that hides nothing, and as many rows as there are heads."""
    yield from sweeps.plain_and_masked(runner)
    yield from sweeps.as_many_rows_as_heads(runner)


LAWS = (
    Law(
        "batch.alone",
        says="The answer for a row is the same alone and in a batch.",
        why="Otherwise an evaluation depends on how it was batched (mmcv 1869).",
        how="One row of a batch is run by itself.",
        trials=alone,
        applies=has_rows,
        sweep=with_other_sizes,
    ),
    Law(
        "batch.others",
        says="The answer for a row does not depend on the other rows.",
        why="Otherwise rows leak into each other, and scores depend on who shares the batch.",
        how="All other rows are replaced; the answer for the row that stays may not move.",
        trials=others,
        applies=has_rows,
        sweep=sweeps.plain_and_masked,
    ),
)
