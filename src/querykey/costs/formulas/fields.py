"""Formulas over the fields of a configuration: passes in symbols, interpolated over the fields.

Each pass is made at numbers for the fields, and with the sizes of the inputs as symbols. So what
is interpolated is one coefficient of one monomial of one module, mostly one product of fields.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import sympy

from querykey.costs.counting.passes import PassOptions
from querykey.costs.formulas.checking import widen
from querykey.costs.formulas.concrete import ConcreteCounter
from querykey.costs.formulas.divisibility import Divisions, find_divisions
from querykey.costs.formulas.formula_set import Derivation, FormulaSet, RefusedError, listed
from querykey.costs.formulas.interpolation import monomial, number
from querykey.costs.formulas.polynomial import Fitter, NotPolynomialError
from querykey.costs.formulas.symbolic import symbolic
from querykey.costs.formulas.validity import Validity
from querykey.costs.inputs import CostError
from querykey.costs.measured_model import MeasuredModel
from querykey.costs.sums import Key, Sum, add_sum, fold_sums

MOST, LEAST = "most", "least"  # bounds of the inputs' sizes, interpolated like costs
POINTS = 4  # random choices of all sizes at which the formula is counted
FEW = (1, 2, 8, 64)  # a field is tried at so few times the number that it is a multiple of
NEAR_INPUTS, FAR_INPUTS = 40, 300  # the inputs' sizes are at most so large in these choices
FAR = 7  # a field is tried at so many times its largest fitted value


def in_fields(measured: MeasuredModel, options: PassOptions) -> FormulaSet:
    """Return formulas in the inputs' sizes and in the builder's."""
    counter = _SymbolicCounter(measured, options)
    names = tuple(measured.hyper)
    try:
        fit = Fitter(counter, names, measured.values).fit()
    except NotPolynomialError as error:
        raise RefusedError(f"{error}; say other values with sizes={{...}}") from error
    symbols = tuple(sympy.Symbol(name) for name in names)
    own: dict[Key, Sum] = {}
    params: dict[str, Sum] = {}
    bounds: dict[str, dict[str, Any]] = {MOST: {}, LEAST: {}}
    for (path, metric, rest), terms in fit.coefficients.items():  # type: ignore[misc]
        total = {monomial(symbols, p) * rest: number(c) for p, c in terms.items()}
        if metric in bounds:
            bounds[metric][path] = sympy.Add(*(m * c for m, c in total.items())) / rest
        elif metric == "params":
            params[path] = total
        else:
            add_sum(own.setdefault((path, metric), {}), total)
    valid = Validity(tuple(counter.conditions or ()))
    valid = valid.also(Validity.most(bounds[MOST])).also(Validity.least(bounds[LEAST]))
    valid = _widened(measured, options, valid)
    ranges = ", ".join(f"{n} {min(measured.values[n])} to {max(measured.values[n])}" for n in names)
    passes = f"{fit.evaluated} symbolic passes at {ranges}"
    notes = [f"fitted to {passes}, {fit.held_out} of which only check the fit"]
    return FormulaSet(own, params, counter.unknown, Derivation("both"), valid, notes)


def _widened(measured: MeasuredModel, options: PassOptions, valid: Validity) -> Validity:
    """Drop the conditions that the formula of one choice of fields turns out not to need."""
    if not valid.conditions:
        return valid
    base = {name: measured.values[name][0] for name in measured.hyper}
    one = symbolic(measured.at(base), options)
    before = one.valid
    widen(measured.at(base), options, one)
    dropped = [c for c in before.conditions if c not in one.valid.conditions]
    added = [c for c in one.valid.conditions if c not in before.conditions]
    if not all(condition in valid.conditions for condition in dropped):
        return valid  # these depend on the fields
    return valid.without(*dropped).also(Validity(tuple(added)))


class _SymbolicCounter:
    """Returns one number per module, metric and monomial of the inputs' sizes, at given fields."""

    def __init__(self, measured: MeasuredModel, options: PassOptions):
        self.measured, self.options = measured, options
        self.unknown: dict[str, dict[str, int]] = {}
        self.conditions: tuple[Any, ...] | None = None

    def __call__(self, fields: Mapping[str, int]) -> dict[Any, Fraction]:
        formulas = symbolic(self.measured.at(fields), self.options)
        fold = self.measured.fold
        for op, calls in formulas.unknown.items():
            self.unknown.setdefault(op, {}).update({fold(p): n for p, n in calls.items()})
        counts: dict[Any, Fraction] = {}
        for (path, metric), total in fold_sums(formulas.own, fold).items():
            for term, factor in total.items():
                counts[path, metric, term] = _fraction(factor)
        for path, total in formulas.params.items():
            key = fold(path), "params", sympy.S.One
            counts[key] = counts.get(key, Fraction(0)) + sum(map(_fraction, total.values()))
        valid = formulas.valid
        for name, bound in valid.upper_bounds().items():
            counts[name, MOST, sympy.S.One] = Fraction(bound)
            if (least := valid.lower_bound(name)) > 1:
                counts[name, LEAST, sympy.S.One] = Fraction(least)
        if self.conditions is None:
            self.conditions = valid.unbounded()
        elif set(self.conditions) != {*valid.unbounded()}:
            raise RefusedError("the model branches on sizes in another way at other fields")
        return {key: count for key, count in counts.items() if count}


def confirm(
    measured: MeasuredModel,
    options: PassOptions,
    formulas: FormulaSet,
    own: Mapping[str, int] | None,
) -> None:
    """Find the range of formulas over fields by counting, and count at random sizes within it.

    `own` are the fields of the model itself, where it has some.
    """
    checker = _Checker(measured, options, formulas)
    base = {name: measured.values[name][0] for name in measured.hyper}
    divisions = checker.divisions(base)
    formulas.valid = formulas.valid.also(Validity(tuple(divisions.conditions)))
    formulas.valid = formulas.valid.also(checker.upper(base, divisions))
    formulas.valid = formulas.valid.also(checker.distinct(base, divisions))
    least = checker.least(base, divisions)
    above_one = {name: size for name, size in least.items() if size > 1}
    formulas.valid = formulas.valid.also(Validity.least(above_one))
    checker.count_at_random(divisions, least)
    if own is not None and not formulas.valid.broken({**checker.inputs, **own}):
        if not checker.holds(own, copy_layers=True):
            raise RefusedError(f"the formula does not hold at the model's own {listed(own)}")
        formulas.notes.append(f"checked by counting at the model's own {listed(own)}")


class _Checker:
    """Counts a model at fields and sizes, and compares the counts with its formulas."""

    def __init__(self, measured: MeasuredModel, options: PassOptions, formulas: FormulaSet):
        self.measured, self.formulas = measured, formulas
        self._counter = ConcreteCounter(measured, options)
        self._quick = ConcreteCounter(measured, options, copy_layers=True)
        self.inputs = {n: measured.values[n][0] for n in measured.names if n not in measured.hyper}
        self._known: dict[Any, bool] = {}

    def holds(self, sizes: Mapping[str, int], copy_layers: bool = False) -> bool:
        """Return whether the formula holds; sizes that are not given are the first choice."""
        point = {**self.measured.base(), **sizes}
        key = tuple(point.values())
        if key not in self._known:
            try:
                counts = (self._quick if copy_layers else self._counter)(point)
                self._known[key] = not self.formulas.difference(counts, point)
            except CostError:
                self._known[key] = False
        return self._known[key]

    def divisions(self, base: Mapping[str, int]) -> Divisions:
        """Return what must divide what; numbers of layers, which take long, are left out."""
        names = [n for n in self.measured.hyper if not self._repeats(n)]
        divisions = find_divisions(base, names, self.holds)
        every = tuple(self.measured.hyper)
        return Divisions(
            every,
            dict.fromkeys(every, 1) | dict(divisions.times),
            dict.fromkeys(every, ()) | dict(divisions.divisors),
            {name: {name} for name in every} | dict(divisions.above),
        )

    def _repeats(self, name: str) -> bool:
        """Return whether a larger size means more modules, as a number of layers does."""
        first, second = self.measured.values[name][:2]
        base = self.measured.base()
        models = (self.measured.model({**base, name: size}) for size in (first, second))
        few, many = (sum(1 for _ in model.modules()) for model in models)
        return many > few

    def upper(self, base: Mapping[str, int], divisions: Divisions) -> Validity:
        """Return bounds of the fields that are no longer described by the formula far away."""
        valid = Validity()
        for name in self.measured.hyper:
            if self._repeats(name):
                continue  # these were counted at their largest value, and layers are alike
            least = base[name] // divisions.unit(name, base)
            far = FAR * max(self.measured.values[name]) // base[name] + 1

            def at(times: int, name: str = name) -> dict[str, int]:
                return divisions.grown(name, base, divisions.unit(name, base) * times)

            if self.holds(at(least * far)):
                continue
            low, high = least, least * far
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self.holds(at(middle)) else (low, middle)
            bound: Any = at(low)[name]
            if divisions.divisors[name]:  # such as features per head, beyond which kernels branch
                divisor = divisions.divisors[name][0]
                bound = sympy.Symbol(divisor) * (bound // base[divisor])
            valid = valid.also(Validity.most({name: bound}))
        return valid

    def distinct(self, base: Mapping[str, int], divisions: Divisions) -> Validity:
        """Return which sizes must be larger than their divisors, as counts differ where equal."""
        pairs = [(n, d) for n in divisions.names for d in divisions.divisors[n]]
        conditions = []
        for name, divisor in pairs:
            equal = {**base, divisor: base[name]}
            if divisions.times[name] == 1 and not self.holds(equal):
                conditions.append(sympy.Gt(sympy.Symbol(name), sympy.Symbol(divisor)))
        return Validity(tuple(conditions))

    def least(self, base: Mapping[str, int], divisions: Divisions) -> dict[str, int]:
        """Return a small value of every size at which counts agree, 1 where its unit does."""
        values = self.measured.values

        def at_least(name: str) -> int:
            unit = divisions.unit(name, base)
            for times in FEW:
                if unit * times < min(values[name]) and self.holds(
                    divisions.grown(name, base, unit * times)
                ):
                    return 1 if times == 1 else unit * times
            return min(values[name])

        least = {name: at_least(name) for name in base}
        for name in self.inputs:
            least[name] = next((n for n in (1, 2) if self.holds({name: n})), min(values[name]))
        together = least | divisions.smallest(least)
        if not self.formulas.valid.broken(together) and not self.holds(together):
            least |= {name: max(2, least[name]) for name in self.inputs}
        return least

    def count_at_random(self, divisions: Divisions, least: Mapping[str, int]) -> None:
        """Count at random sizes within the range, and raise where the formula differs."""
        chance = random.Random(0)
        values = self.measured.values
        fields = {n: min(max(values[n]), 5 if self._repeats(n) else 10**9) for n in divisions.names}
        counted = 0
        for _ in range(50):
            point = divisions.sizes(
                lambda name, unit: chance.randint(
                    -(-least[name] // unit), max(-(-least[name] // unit), fields[name] // unit, 3)
                )
            )
            longest = FAR_INPUTS if counted == POINTS - 1 else NEAR_INPUTS
            point |= {n: chance.randint(least[n], longest) for n in self.inputs}
            if self.formulas.valid.broken(point):
                continue
            if not self.holds(point):
                raise RefusedError(f"the formula does not hold at {listed(point)}")
            counted += 1
            if counted == POINTS:
                break
        if not counted:
            raise RefusedError("no sizes were found at which the formula could be checked")
        self.formulas.notes.append(f"checked by counting at {counted} random choices of all sizes")


def _fraction(value: Any) -> Fraction:
    return Fraction(value) if isinstance(value, int) else Fraction(int(value.p), int(value.q))
