"""`cost`: the formulas of a model, by two engines that check each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sympy

from querykey.costs.formulas.validity import MOST, Valid, written
from querykey.costs.inputs import CostError, Inputs

if TYPE_CHECKING:
    import torch
    from torch import nn

    from querykey.costs.counting.passes import Formula, Options
    from querykey.costs.formulas.symbolic import Formulas
    from querykey.costs.measured_model import Subject
    from querykey.costs.report import Report

ENGINES = ("auto", "symbolic", "interpolation", "both")
QUICK = 300  # a pass with fewer operations is checked at more points
# Where to look for a polynomial when there is none among small sizes: from, in steps of.
ELSEWHERE = ((33, 1), (8, 8), (128, 64), (256, 128), (300, 1))
NEAR_BOUND = 4096  # bounds up to here are looked beyond
BRANCHES = 8  # so many of them


class DisagreeError(CostError):
    """The engines give different answers."""


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
) -> Report:
    """Return what a torch model costs, as exact formulas in named sizes.

    `model` is a module (it is left as it is), or a builder: a callable that takes sizes by name
    and returns a module, for formulas in widths and numbers of layers. `inputs` is one value, a
    tuple or a dict of `tokens(...)`, `array(...)`, `images(...)`, or tensors. The loss is the sum
    of the first floating output unless `loss(output)` is given. `attention` says how
    scaled_dot_product_attention runs: "flash" fused, "math" as the products it is made of.

    `engine` "auto" takes symbolic sizes and counts at concrete ones to check them, or interpolates
    where symbols do not get through; "both" derives everything twice. `near` says around which
    sizes the formula shall hold, where a model branches on them. `sizes` says which numbers a
    builder takes: {"width": 12} for multiples of 12, or a list. `formulas` gives the FLOPs of
    operations that have none here, by name: {"mylib.op": lambda shapes, out_shapes: ...}.
    """
    from querykey.costs.counting.fused_attention import ATTENTION
    from querykey.costs.counting.passes import Options
    from querykey.costs.measured_model import Subject
    from querykey.costs.report import make_report

    _one_of("attention", attention, ATTENTION)
    _one_of("engine", engine, ENGINES)
    _one_of("phase", phase, ("train",))
    subject = Subject(model, Inputs.of(inputs), sizes or {}, near or {})
    how = Options(backward, attention, loss, dict(formulas or {}))
    found = _interpolate(subject, how) if subject.hyper else _derive(subject, how, engine)
    return make_report(subject, found, how)


def _derive(subject: Subject, how: Options, engine: str) -> Formulas:
    """Formulas for one model, whose sizes are those of its inputs."""
    from querykey.costs.formulas.symbolic import RefusedError, symbolic

    if engine == "interpolation":
        return _interpolated(subject, how)
    checks = {"auto": _checked, "both": _compared}.get(engine)
    try:
        found = symbolic(subject, how, repeats=checks is not None)
    except RefusedError as refusal:
        if engine != "auto":
            raise
        return _without_symbols(subject, how, refusal)
    if checks is None:
        return found
    try:
        return checks(subject, how, found)
    except DisagreeError:
        if not found.repeated:
            raise
        return checks(subject, how, symbolic(subject, how))


def _checked(subject: Subject, how: Options, found: Formulas) -> Formulas:
    _check(subject, how, found)
    _relax(subject, how, found)
    return found


def _compared(subject: Subject, how: Options, found: Formulas) -> Formulas:
    from querykey.costs.formulas.symbolic import interpolated

    _compare(subject, found, interpolated(subject, how))
    found.notes.append("both engines agree term for term")
    return found


def _without_symbols(subject: Subject, how: Options, refusal: CostError) -> Formulas:
    """Interpolate; where the counts depend on values, let these be sizes of their own."""
    from querykey.costs.formulas.symbolic import symbolic

    try:
        found = _interpolated(subject, how)
    except CostError as error:
        try:
            found = symbolic(subject, how, picking=True)
        except CostError:
            raise error from None
        if not subject.picked:
            raise
        _check(subject, how, found)
        for name, path in subject.picked.items():
            found.notes.append(f"`{name}`: how many values pick in `{path or 'the whole'}`")
        return found
    found.notes.insert(0, f"{refusal}, so the formula was interpolated")
    return found


def _interpolate(subject: Subject, how: Options) -> Formulas:
    """Formulas in a builder's sizes, with symbolic sizes of the inputs as a check at one choice."""
    from querykey.costs.formulas.symbolic import RefusedError, symbolic

    found = _interpolated(subject, how)
    try:
        other = symbolic(subject, how)
    except RefusedError as refusal:
        found.notes.append(f"not checked with symbols: {refusal}")
        return found
    fixed = {name: subject.base()[name] for name in subject.hyper}
    _compare(subject, other, found, fixed)
    for each in filter(None, (found, found.below)):
        each.valid = each.valid.also(other.valid)
    found.notes.append("symbolic sizes of the inputs agree term for term at one choice of the rest")
    return found


def _interpolated(subject: Subject, how: Options) -> Formulas:
    """Interpolate where the counts are one polynomial, and see how far it holds."""
    from querykey.costs.formulas.extrapolation import Reach
    from querykey.costs.formulas.symbolic import FoldedError, RefusedError, interpolated

    refusals, pieces = [], []
    for place in (None, *ELSEWHERE):
        if place is not None:
            subject.move(*place)
        try:
            try:
                found = interpolated(subject, how)
            except FoldedError:
                found = interpolated(subject, how)
                found.notes.append("values decide which of the modules named `*` does what")
        except RefusedError as refusal:
            refusals.append(refusal)
            if not subject.movable:
                break
            continue
        except CostError:  # too long for the model, where there was a place before
            if not refusals and not pieces:
                raise
            continue
        if place is None:
            _check_at_one(subject, how, found)
        looked = subject.near if place is None else subject.moved
        least = {name: min(subject.values[name]) for name in looked}
        found.valid = found.valid.also(Valid.least(least))
        found.valid = found.valid.also(Valid.multiples(subject.steps))
        reach = Reach(subject, how, found)
        reach.tell()
        if reach.fits or subject.near:
            found.below = pieces[0] if pieces else None
            return found
        pieces.append(found)
    if pieces:
        return pieces[0]
    raise refusals[0]


def _check(subject: Subject, how: Options, found: Formulas) -> None:
    """Count at concrete sizes, away from those of the symbolic pass, and compare everything."""
    from querykey.costs.formulas.symbolic import Counter, difference

    counter = Counter(subject, how)
    points = _points(subject, found)
    for point in points:
        wrong = difference(found, counter(point), point)
        if wrong:
            raise DisagreeError(f"the two engines disagree: {wrong}; please report this model")
    if subject.names:
        found.notes.append(f"checked by counting at {len(points)} concrete choice(s) of sizes")
        if found.calls < QUICK:
            _check_at_one(subject, how, found)
        else:
            found.notes.append("sizes of 1 were not tried, where costs may differ")


def _relax(subject: Subject, how: Options, found: Formulas) -> None:
    """Drop conditions where the model branches on sizes, and costs the same beyond."""
    from querykey.costs.formulas.symbolic import Counter, difference

    counter = Counter(subject, how).without_running()

    def same_at(point: Mapping[str, int]) -> bool:
        try:
            return not difference(found, counter(point), point)
        except CostError:  # too long for the model
            return False

    for name in found.valid.upper_bounds():
        for _ in range(BRANCHES):
            most = found.valid.upper_bounds().get(name, MOST)
            beyond = most <= NEAR_BOUND and _beyond(subject, how, found, name, same_at)
            if not beyond:
                break
            found.valid = beyond
            found.notes.append(f"it branches at {name} <= {most}, and costs the same beyond")
    said = Valid.multiples(subject.steps).conditions
    for condition in [c for c in found.valid.unbounded() if c not in said][:BRANCHES]:
        points = found.valid.breaking(condition, found.hints)
        if points and all(map(same_at, points)):
            found.valid = found.valid.without(condition)
            found.notes.append(f"it branches at {written(condition)}, and costs the same elsewhere")


def _beyond(
    subject: Subject, how: Options, found: Formulas, name: str, same_at: Callable[..., bool]
) -> Valid | None:
    """The range with what lies beyond the upper bound of a size, where all costs the same there.

    That piece is traced too: it may have bounds of its own.
    """
    from querykey.costs.formulas.symbolic import symbolic

    most = found.valid.upper_bounds()[name]
    rest = found.valid.without(sympy.Symbol(name) <= most)
    for size in (2 * most + 1, most + 1):
        point = {**found.hints, name: size}
        if rest.broken(point) or not same_at(point):
            continue
        named = {n: s for n, s in point.items() if n not in subject.hyper}
        try:
            there = symbolic(subject, how, repeats=found.repeated, at=named)
            _compare(subject, found, there)
        except CostError:
            continue
        least = there.valid.lower_bound(name)
        if least <= most + 1:
            return rest.also(there.valid.without(sympy.Symbol(name) >= least))
    return None


def _points(subject: Subject, found: Formulas) -> list[dict[str, int]]:
    """Concrete sizes at which the formula holds by its own word."""
    base, steps = found.hints, subject.steps
    shifts = [(8, 3), (-2, 1)] if found.calls < QUICK else [(2, 1)]
    points = []
    for shift, step in shifts:
        moved = (
            (n, s, (shift + step * i) * steps.get(n, 1)) for i, (n, s) in enumerate(base.items())
        )
        point = {n: max(2, s + by) for n, s, by in moved}
        while found.valid.broken(point) and point != base:
            point = {n: (s + base[n]) // 2 if s > base[n] else base[n] for n, s in point.items()}
        points.append(point)
    return points[: 1 if not subject.names else None]


def _check_at_one(subject: Subject, how: Options, found: Formulas) -> None:
    """Say from which size on the formula holds: at 1, copies and broadcasts can disappear."""
    from querykey.costs.formulas.symbolic import Counter, difference

    counter = Counter(subject, how)
    named = [name for name in subject.names if name not in subject.hyper]

    def wrong_at_one(names: Sequence[str]) -> str:
        point = {**subject.base(), **dict.fromkeys(names, 1)}
        return "" if found.valid.broken(point) else difference(found, counter(point), point)

    try:
        together = wrong_at_one(named) if named else ""
        alone = {name: wrong_at_one([name]) for name in named} if together else {}
    except CostError:
        found.notes.append("it does not run where every size is 1")
        return
    differing = {name: wrong for name, wrong in alone.items() if wrong}
    # It may take several sizes of 1 at once.
    differing = differing or ({", ".join(named): together} if together else {})
    for names, wrong in differing.items():
        if any(word in wrong for word in ("(forward", "(backward")):
            found.valid = found.valid.also(Valid.least(dict.fromkeys(names.split(", "), 2)))
        else:
            found.notes.append(f"costs differ where {names} is 1: {wrong}")


def _compare(
    subject: Subject, first: Formulas, second: Formulas, fixed: Mapping[str, int] | None = None
) -> None:
    """Refuse to choose between formulas that differ; `fixed` sizes are put into the second."""
    from querykey.costs.formulas.order import expression, fold_sums

    left, right = fold_sums(first.own, subject.fold), dict(second.own)
    for key in {**left, **right}:
        a, b = expression(left.get(key, {})), expression(right.get(key, {}), fixed)
        if (a - b).expand() != 0:
            path, metric = key
            raise DisagreeError(
                f"the two engines disagree about {metric} of `{path or 'the whole'}`: {a} with "
                f"symbols, {b} by interpolation; please report this model"
            )


def _one_of(what: str, given: str, known: Sequence[str]) -> None:
    from querykey.words import suggest

    if given not in known:
        later = " (other phases come later)" if what == "phase" else ""
        hint = suggest(str(given), known)
        raise CostError(f"{what} is one of {', '.join(known)}{later}, not `{given}`{hint}")
