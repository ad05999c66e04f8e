"""`cost`: the formulas of a model, from two engines that check each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from querykey.costs.assembling import make_report
from querykey.costs.counting.counts import Formula
from querykey.costs.counting.fused_attention import ATTENTION
from querykey.costs.counting.passes import PassOptions
from querykey.costs.counting.phases import PHASES
from querykey.costs.formulas.checking import check, check_at_one, widen
from querykey.costs.formulas.concrete import FoldedError, NotRunningError
from querykey.costs.formulas.extrapolation import Extrapolation
from querykey.costs.formulas.fields import confirm, in_fields
from querykey.costs.formulas.formula_set import (
    DisagreeError,
    FormulaSet,
    RefusedError,
    compare_engines,
)
from querykey.costs.formulas.interpolation import interpolated
from querykey.costs.formulas.symbolic import symbolic
from querykey.costs.formulas.validity import Validity
from querykey.costs.inputs import CostError, Inputs, NoBackwardError
from querykey.costs.measured_model import MeasuredModel
from querykey.costs.over import builder_over, own_values, values_over
from querykey.costs.ranges import farther, of_multiples, wider
from querykey.costs.report import CostReport
from querykey.words import checked, suggest

ENGINES = ("auto", "symbolic", "interpolation", "both")
# Where a fit is tried when small sizes lie on no polynomial: (first size, step).
ELSEWHERE = ((33, 1), (8, 8), (128, 64), (256, 128), (300, 1))


@checked
def cost(
    model: nn.Module | Callable[..., nn.Module],
    inputs: Any,
    *,
    backward: bool = True,
    attention: str = "flash",
    phase: str = "train",
    loss: Callable[[Any], torch.Tensor] | None = None,
    engine: str = "auto",
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    near: Mapping[str, int] | None = None,
    formulas: Mapping[str, Formula] | None = None,
    over: Sequence[str] | None = None,
) -> CostReport:
    """Return what a torch model costs, as exact formulas in named sizes.

    `model` is a module (it is left unchanged), or a builder: a callable that takes sizes by name
    and returns a module, for formulas in widths and numbers of layers. `inputs` is one value, a
    tuple or a dict of `tokens(...)`, `array(...)`, `images(...)`, or tensors. The loss is the sum
    of the first floating output unless `loss(output)` is given. `attention` says how
    scaled_dot_product_attention runs: "flash" fused, "math" as the products it consists of.
    `phase` "prefill" is the cost of reading a prompt into a cache, "decode" that of one new token
    per row after a prompt of the inputs' sizes; both without gradients.

    `engine` "auto" takes symbolic sizes and checks them by counts at concrete sizes, or
    interpolates where symbolic sizes do not get through the model; "both" derives everything twice.
    `near` says around which sizes the formula shall hold, where a model branches on them. `sizes`
    says which numbers a builder takes: {"width": 12} for multiples of 12, or a list. `formulas`
    gives the FLOPs of operations that have none here: {"mylib.op": lambda shapes, out_shapes: ...}.
    `over` names fields of a Hugging Face model's configuration, or arguments of a builder that have
    defaults, which stay free as sizes too.
    """
    _one_of("attention", attention, ATTENTION)
    _one_of("engine", engine, ENGINES)
    _one_of("phase", phase, PHASES)
    train = phase == "train"
    options = PassOptions(
        backward and train, attention, loss, dict(formulas or {}), graph=train, phase=phase
    )
    if over is not None:
        report = _over(model, inputs, over, sizes or {}, options)
    else:
        near_to = partial(MeasuredModel, model, Inputs.of(inputs), sizes or {})
        measured = near_to(near or {})
        if measured.hyper:
            formula_set = _of_builder(measured, options)
        else:
            derive = partial(_of_model, options=options, engine=engine)
            try:
                formula_set = derive(measured)
            except NotRunningError as refusal:
                measured, formula_set = of_multiples(measured, derive, refusal)
                sizes = {**measured.steps}
            else:
                plain = near_to(near or {})
                measured, formula_set = wider(measured, formula_set, plain, derive)
                if not near:
                    measured, formula_set = farther(measured, formula_set, near_to, derive)
        report = make_report(measured, formula_set, options)

    @cache
    def at_one(names: frozenset[str]) -> CostReport:
        if not names <= {*Inputs.of(inputs).names()} or names & {*(over or ()), *(near or ())}:
            raise CostError(f"{', '.join(names)} cannot be 1")
        return cost(
            model, Inputs.of(inputs).at_one(names), backward=backward, attention=attention,
            phase=phase, loss=loss, engine=engine, near=near, formulas=dict(options.formulas),
            sizes={n: s for n, s in (sizes or {}).items() if n not in names}, over=over,
        )  # fmt: skip

    return replace(report, at_one=at_one)


def _of_model(measured: MeasuredModel, options: PassOptions, engine: str) -> FormulaSet:
    """Derive the formulas of one model, whose sizes are those of its inputs."""
    if engine == "interpolation":
        return _interpolated_as_far_as_it_holds(measured, options)
    confirm = {"auto": _by_counts, "both": _by_both_engines}.get(engine)
    try:
        formulas = symbolic(measured, options, copy_layers=confirm is not None)
    except RefusedError as refusal:
        if engine != "auto":
            raise
        return _without_symbols(measured, options, refusal)
    if confirm is None:
        return formulas
    try:
        return confirm(measured, options, formulas)
    except DisagreeError:
        if not formulas.derivation.copied and not measured.whole_numbers.kept:
            raise
        measured.whole_numbers.give_up()
        return confirm(measured, options, symbolic(measured, options))


def _of_builder(measured: MeasuredModel, options: PassOptions) -> FormulaSet:
    """Derive formulas in a builder's sizes; symbolic sizes of the inputs check one choice."""
    formulas = _interpolated_as_far_as_it_holds(measured, options)
    try:
        other = symbolic(measured, options)
    except RefusedError as refusal:
        formulas.notes.append(f"not checked with symbols: {refusal}")
        return formulas
    fixed = {name: measured.base()[name] for name in measured.hyper}
    compare_engines(other, formulas, measured.fold, fixed)
    for piece in filter(None, (formulas, formulas.below)):
        piece.valid = piece.valid.also(other.valid)
    formulas.notes.append(
        "symbolic sizes of the inputs agree term for term at one choice of the rest"
    )
    return formulas


def _over(
    model: nn.Module | Callable[..., nn.Module],
    inputs: Any,
    over: Sequence[str],
    sizes: Mapping[str, int | Sequence[int]],
    options: PassOptions,
) -> CostReport:
    """Return the report in fields of a configuration, or in arguments of a builder."""
    build = builder_over(model, over)
    refusals: list[CostError] = []
    for values in values_over(over, model):
        try:
            measured = MeasuredModel(build, Inputs.of(inputs), {**values, **sizes}, {})
            for derive in (in_fields, _folded_if_needed):
                try:
                    formulas = derive(measured, options)
                    confirm(measured, options, formulas, own_values(model, over))
                    return make_report(measured, formulas, options)
                except RefusedError as refusal:
                    refusals.append(refusal)
        except NoBackwardError:
            raise
        except CostError as error:
            refusals.append(error)
    raise refusals[0]


def _by_counts(measured: MeasuredModel, options: PassOptions, formulas: FormulaSet) -> FormulaSet:
    check(measured, options, formulas)
    widen(measured, options, formulas)
    return formulas


def _by_both_engines(
    measured: MeasuredModel, options: PassOptions, formulas: FormulaSet
) -> FormulaSet:
    compare_engines(formulas, interpolated(measured, options), measured.fold)
    formulas.notes.append("both engines agree term for term")
    return formulas


def _without_symbols(
    measured: MeasuredModel, options: PassOptions, refusal: CostError
) -> FormulaSet:
    """Interpolate; where costs depend on values, give the sizes that these decide names."""
    try:
        formulas = _interpolated_as_far_as_it_holds(measured, options)
    except CostError as error:
        try:
            formulas = symbolic(measured, options, data_dependent=True)
        except CostError:
            raise error from None
        if not measured.picked:
            raise
        check(measured, options, formulas)
        for name, path in measured.picked.items():
            place = path or "the whole model"
            formulas.notes.append(f"`{name}` is how many rows are picked by values in `{place}`")
        return formulas
    formulas.notes.insert(0, f"{refusal}, so the formula was interpolated")
    return formulas


def _interpolated_as_far_as_it_holds(measured: MeasuredModel, options: PassOptions) -> FormulaSet:
    """Interpolate at small sizes, then elsewhere, until a polynomial holds far away too."""
    refusals, pieces = [], []
    for place in (None, *ELSEWHERE):
        if place is not None:
            measured.move(*place)
        try:
            formulas = _folded_if_needed(measured, options)
        except RefusedError as refusal:
            refusals.append(refusal)
            if not measured.movable:
                break
            continue
        except CostError:  # these sizes are too large for the model, where others were tried
            if not refusals and not pieces:
                raise
            continue
        if place is None:
            check_at_one(measured, options, formulas)
        tried = measured.near if place is None else measured.moved
        least = {name: min(measured.values[name]) for name in tried}
        formulas.valid = formulas.valid.also(Validity.least(least))
        formulas.valid = formulas.valid.also(Validity.multiples(measured.steps))
        extrapolation = Extrapolation(measured, options, formulas)
        extrapolation.note()
        if extrapolation.fits or measured.near:
            return replace(formulas, below=pieces[0] if pieces else None)
        pieces.append(formulas)
    if pieces:
        return pieces[0]
    raise refusals[0]


def _folded_if_needed(measured: MeasuredModel, options: PassOptions) -> FormulaSet:
    """Interpolate; where values share work among numbered modules, count these together."""
    try:
        return interpolated(measured, options)
    except FoldedError:
        formulas = interpolated(measured, options)
        formulas.notes.append("values decide which of the modules named `*` does what")
        return formulas


def _one_of(argument: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        hint = suggest(str(value), choices)
        raise CostError(f"{argument} is one of {', '.join(choices)}, not `{value}`{hint}")
