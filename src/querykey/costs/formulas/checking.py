"""Check symbolic formulas by counts at concrete sizes, and widen their range where these agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy

from querykey.costs.counting.passes import PassOptions
from querykey.costs.formulas.concrete import ConcreteCounter
from querykey.costs.formulas.formula_set import DisagreeError, FormulaSet, compare_engines
from querykey.costs.formulas.symbolic import symbolic
from querykey.costs.formulas.validity import MOST, Validity, written
from querykey.costs.inputs import CostError
from querykey.costs.measured_model import MeasuredModel
from querykey.words import plural

QUICK = 300  # a pass of fewer operations is checked at more points
DEEP = 5000  # in a pass of more, the backward pass of equal layers is counted in two of them
OF_BACKWARD = ("backward", "pointwise_backward", "recomputed")
NEAR_BOUND = 4096  # sizes beyond a bound are tried where the bound is at most this
BRANCHES = 8  # at most so many branches are tried
READABLE = 60  # a longer condition is not shown in a note


def check(measured: MeasuredModel, options: PassOptions, formulas: FormulaSet) -> None:
    """Count at sizes away from those of the symbolic pass, and raise where anything differs."""
    derivation = formulas.derivation
    deep = derivation.copied and derivation.operations > DEEP
    counter = ConcreteCounter(measured, options, copy_layers=deep)
    every_layer = ConcreteCounter(measured, replace(options, backward=False))
    points = _points(measured, formulas)
    for point in points:
        wrong = formulas.difference(counter(point), point)
        if deep and not wrong:
            wrong = formulas.difference(every_layer(point), point, without=OF_BACKWARD)
        if wrong:
            raise DisagreeError(f"the two engines disagree: {wrong}; please report this model")
    if measured.names:
        choices = plural(len(points), "concrete choice")
        formulas.notes.append(f"checked by counting operations at {choices} of sizes")
        if deep:
            formulas.notes.append("counted forward in every layer, backward in two equal layers")
        check_at_one(measured, options, formulas)


def check_at_one(measured: MeasuredModel, options: PassOptions, formulas: FormulaSet) -> None:
    """Count where sizes are 1, as copies and broadcasts can disappear there, or bound the range."""
    counter = ConcreteCounter(measured, options, copy_layers=formulas.derivation.copied)
    named = [name for name in measured.names if name not in measured.hyper]

    def wrong_at_one(names: Sequence[str]) -> str:
        point = {**measured.base(), **dict.fromkeys(names, 1)}
        if formulas.valid.broken(point):
            return ""
        try:
            return formulas.difference(counter(point), point)
        except CostError:
            return "the model does not run"

    together = wrong_at_one(named) if named else ""
    alone = {name: wrong for name in named if together and (wrong := wrong_at_one([name]))}
    # Costs may differ only where several sizes are 1 at once.
    differing = alone or ({", ".join(named): together} if together else {})
    for names, wrong in differing.items():
        least = Validity.least(dict.fromkeys(names.split(", "), 2))
        formulas.valid = formulas.valid.also(least)
        formulas.notes.append(f"another formula holds where {names} is 1: {wrong}")


def widen(measured: MeasuredModel, options: PassOptions, formulas: FormulaSet) -> None:
    """Drop the conditions of branches beyond which the model costs the same."""
    copied = formulas.derivation.copied  # which a count of all layers has confirmed
    counter = ConcreteCounter(measured, options, never_run=True, copy_layers=copied)

    def same_at(point: Mapping[str, int]) -> bool:
        try:
            return not formulas.difference(counter(point), point)
        except CostError:  # the size is too large for the model
            return False

    for name in formulas.valid.upper_bounds():
        for _ in range(BRANCHES):
            most = formulas.valid.upper_bounds().get(name, MOST)
            wider = most <= NEAR_BOUND and _beyond(measured, options, formulas, name, same_at)
            if not wider:
                _meet(formulas, name, same_at)
                break
            formulas.valid = wider
            note = f"the model branches at {name} <= {most}, and costs the same beyond"
            formulas.notes.append(note)
    stated = Validity.multiples(measured.steps).conditions
    for condition in [c for c in formulas.valid.unbounded() if c not in stated][:BRANCHES]:
        points = formulas.valid.breaking(condition, formulas.derivation.hints)
        if points and all(map(same_at, points)):
            formulas.valid = formulas.valid.without(condition)
            note = f"the model branches {_where(condition)}, and costs the same elsewhere"
            formulas.notes.append(note)


def _where(condition: Any) -> str:
    """Return a condition, or which sizes it is about where nobody could read it."""
    text = written(condition)
    if len(text) <= READABLE:
        return f"at {text}"
    return f"on {' and '.join(sorted(symbol.name for symbol in condition.free_symbols))}"


def _meet(formulas: FormulaSet, name: str, same_at: Callable[[Mapping[str, int]], bool]) -> None:
    """Move an upper bound up by one where the model costs the same there.

    torch binds a symbol that equals a number of the model, so the size before a branch is left out.
    """
    most = formulas.valid.upper_bounds().get(name, MOST)
    rest = formulas.valid.without(sympy.Symbol(name) <= most)
    hints = formulas.derivation.hints
    points = [{**{n: s + more for n, s in hints.items()}, name: most + 1} for more in (0, 1)]
    if most <= NEAR_BOUND and all(not rest.broken(p) and same_at(p) for p in points):
        formulas.valid = rest.also(Validity.most({name: most + 1}))


def _beyond(
    measured: MeasuredModel,
    options: PassOptions,
    formulas: FormulaSet,
    name: str,
    same_at: Callable[[Mapping[str, int]], bool],
) -> Validity | None:
    """Return the range without the upper bound of a size, where the model costs the same beyond.

    The sizes beyond are traced too, because they may have bounds of their own.
    """
    how = formulas.derivation
    most = formulas.valid.upper_bounds()[name]
    rest = formulas.valid.without(sympy.Symbol(name) <= most)
    for size in (2 * most + 1, most + 1):
        point = {**how.hints, name: size}
        if rest.broken(point) or not same_at(point):
            continue
        at = {n: s for n, s in point.items() if n not in measured.hyper}
        try:
            there = symbolic(measured, options, copy_layers=how.copied, at=at)
            compare_engines(formulas, there, measured.fold)
        except CostError:
            continue
        least = there.valid.lower_bound(name)
        if least <= most + 1:
            return rest.also(there.valid.without(sympy.Symbol(name) >= least))
    return None


def _points(measured: MeasuredModel, formulas: FormulaSet) -> list[dict[str, int]]:
    """Return concrete sizes within the range of the formula, away from the symbolic pass's."""
    base, steps = formulas.derivation.hints, measured.steps
    shifts = [(8, 3), (-2, 1)] if formulas.derivation.operations < QUICK else [(2, 1)]
    points = []
    for shift, step in shifts:
        moved = (
            (n, s, (shift + step * i) * steps.get(n, 1)) for i, (n, s) in enumerate(base.items())
        )
        point = {n: max(2, s + by) for n, s, by in moved}
        while formulas.valid.broken(point) and point != base:
            point = {n: (s + base[n]) // 2 if s > base[n] else base[n] for n, s in point.items()}
        points.append(point)
    return points[: 1 if not measured.names else None]
