"""Formulas that hold at more sizes than those that were found first, or at multiples alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from querykey.costs.formulas.concrete import NotRunningError
from querykey.costs.formulas.formula_set import FormulaSet
from querykey.costs.inputs import CostError
from querykey.costs.measured_model import MeasuredModel

Derive = Callable[[MeasuredModel], FormulaSet]
STEPS = (2, 4, 8, 16, 32, 14, 28)  # multiples that are tried where a model runs at no others
FEW, MOST = 64, 1 << 40  # formulas that end below FEW are looked for beyond it, too


def wider(
    measured: MeasuredModel,
    formulas: FormulaSet,
    plain: MeasuredModel,
    derive: Derive,
) -> tuple[MeasuredModel, FormulaSet]:
    """Return the formulas, or those by Python's own `int` where these hold for larger sizes.

    A model in blocks, such as windows, holds a symbolic size to as many blocks as it had.
    """
    bounds = formulas.valid.upper_bounds()
    if not measured.whole_numbers.kept or not bounds:
        return measured, formulas
    plain.whole_numbers.give_up()
    try:
        other = derive(plain)
    except CostError:
        return measured, formulas
    if len(other.valid.upper_bounds()) < len(bounds):
        return plain, other
    return measured, formulas


def farther(
    measured: MeasuredModel,
    formulas: FormulaSet,
    near_to: Callable[[dict[str, int]], MeasuredModel],
    derive: Derive,
) -> tuple[MeasuredModel, FormulaSet]:
    """Return formulas that hold for larger sizes, where those given end at small ones.

    Some models go another way for a few tokens. Those given become the ones for smaller sizes.
    """
    bounds = formulas.valid.upper_bounds().items() if _by_symbols(formulas) else ()
    ends = {n: bound for n, bound in bounds if bound < FEW and n in measured.movable}
    for times in (4, 2) if ends else ():
        near = {name: times * (bound + 1) for name, bound in ends.items()}
        try:
            far = near_to(near)
            other = derive(far)
        except CostError:
            continue
        highest = other.valid.upper_bounds()
        if _by_symbols(other) and all(highest.get(n, MOST) > near[n] for n in ends):
            return far, replace(other, below=formulas)
    return measured, formulas


def _by_symbols(formulas: FormulaSet) -> bool:
    return formulas.derivation.engine == "symbolic"


def of_multiples(
    measured: MeasuredModel, derive: Derive, refusal: NotRunningError
) -> tuple[MeasuredModel, FormulaSet]:
    """Derive formulas of a model that runs at multiples of a number only, as an image in patches.

    The first size, usually the batch, stays free.
    """
    names = measured.movable[1:]
    if {*measured.movable} != {*measured.names}:
        raise refusal  # the user said which sizes there are
    for step in STEPS if names else ():
        at_steps = MeasuredModel(measured.source, measured.inputs, dict.fromkeys(names, step), {})
        try:
            formulas = derive(at_steps)
        except CostError:
            continue
        among = " and ".join(f"`{name}`" for name in names)
        formulas.notes.append(
            "the model does not run at every size: the formulas are for multiples of "
            f"{step} in {among}"
        )
        return at_steps, formulas
    raise refusal
