"""A row's answer is its own: alone or in company, and whoever the company is."""

from __future__ import annotations

from collections.abc import Iterator

from querykey.laws.catalogue import sweeps
from querykey.laws.law import Law
from querykey.laws.runner import Specimen
from querykey.laws.trial import Cells, Run, Trial, cells, rows
from querykey.laws.understanding.copies import Inputs, Setting


def has_rows(specimen: Specimen) -> str:
    """To models whose answer has a batch axis."""
    slot = specimen.anatomy.slot
    if "batch" not in specimen.anatomy.main.axes or (slot.batch is None and not slot.flat):
        return "it has no batch axis"
    return ""


def whole_rows(specimen: Specimen, setting: Setting, indices: list[int]) -> Cells:
    """Everything that is answered for these rows."""
    if not specimen.anatomy.sequential:
        return rows(indices)
    return cells([(r, i) for r in indices for i in range(setting.length)])


def alone(specimen: Specimen, setting: Setting) -> Iterator[Trial]:
    """Run a row by itself."""
    inputs = specimen.inputs(setting)
    for row in (0, setting.batch - 1):
        yield Trial(
            Run(inputs, setting),
            Run(specimen.take_rows(inputs, [row]), setting),
            (whole_rows(specimen, setting, [row]), whole_rows(specimen, setting, [0])),
            None,
            f"row {row} of {setting.batch} was run alone",
            _inside(specimen, inputs, row, 0),
        )


def others(specimen: Specimen, setting: Setting) -> Iterator[Trial]:
    """Replace the other rows."""
    inputs, other = specimen.inputs(setting), specimen.inputs(setting, seed=1)
    for row in (0, 1):
        company = [r for r in range(setting.batch) if r != row]
        keep, move = (whole_rows(specimen, setting, r) for r in ([row], company))
        yield Trial(
            Run(inputs, setting),
            Run(specimen.with_rows(inputs, other, company), setting),
            (keep, keep),
            (move, move),
            "the other rows were replaced",
            _inside(specimen, inputs, row, row),
        )


def _inside(
    specimen: Specimen, inputs: Inputs, first: int, second: int
) -> tuple[Cells, Cells] | None:
    """The same row of an encoder's input."""
    others = specimen.anatomy.others()
    if not others:
        return None
    length = specimen.front(others[0], inputs[others[0].name]).shape[1]
    return cells([(first, i) for i in range(length)]), cells([(second, i) for i in range(length)])


def sweep(specimen: Specimen) -> Iterator[Setting]:
    """Masks and training mode bring code of their own."""
    yield from sweeps.plain(specimen)
    if specimen.masks:
        yield Setting(mask=True)


LAWS = (
    Law(
        "batch.alone",
        "a row's answer is the same alone and in a batch",
        "run one row by itself",
        "that row's answer",
        has_rows,
        alone,
        sweep,
    ),
    Law(
        "batch.others",
        "a row's answer does not depend on the other rows",
        "replace the other rows",
        "the row that stays",
        has_rows,
        others,
        sweep,
    ),
)
