"""The two engines: symbolic sizes in one pass, and exact interpolation over many.

Both give `Formulas`: sums of monomials in the named sizes. `check` holds one against the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import sympy
from torch import nn

from querykey.costs import private
from querykey.costs.counting.data_dependent import Picks
from querykey.costs.counting.equal_layers import equal_layers
from querykey.costs.counting.passes import (
    Counts,
    Options,
    Sum,
    as_sum,
    counts_of,
    random_state,
    run_pass,
)
from querykey.costs.counting.trace import BACKWARD, FORWARD, Tally
from querykey.costs.formulas.order import fold_sums
from querykey.costs.formulas.polynomial import Fitter, NotPolynomialError
from querykey.costs.formulas.validity import Valid
from querykey.costs.inputs import CostError
from querykey.costs.measured_model import Subject
from querykey.words import last_line

Key = tuple[str, str]


PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43)  # stand for what values pick


class RefusedError(CostError):
    """An engine cannot serve this model; the other may."""


class ValuesError(CostError):
    """What is counted depends on values."""


class FoldedError(CostError):
    """Numbered modules share work as values decide: only what they do together has a formula."""


@dataclass
class Formulas:
    """What an engine found: sums by (module, metric), parameters by module."""

    engine: str
    own: dict[Key, Sum]
    params: dict[str, Sum]
    valid: Valid
    unknown: dict[str, dict[str, int]]
    notes: list[str] = field(default_factory=list)
    calls: int = 0  # of operations in one pass
    runs: bool = False  # whether values were needed
    repeated: bool = False  # whether some layers were not run, being equal to others
    loops: bool = False  # whether larger sizes take more operations, as in a loop over time
    hints: dict[str, int] = field(default_factory=dict)  # sizes at which it holds by construction
    below: Formulas | None = None  # for smaller sizes, where these do not hold


def symbolic(
    subject: Subject,
    how: Options,
    picking: bool = False,
    repeats: bool = False,
    at: Mapping[str, int] | None = None,
) -> Formulas:
    """One pass with the sizes of the inputs as symbols, the builder's own at their first choice.

    With `picking`, sizes that only values decide become symbols too. With `repeats`, equal layers
    are run twice only, which a count of all of them must confirm. Where the model compares, the
    sizes stand for small numbers, or for those in `at`.
    """
    if private.symbolic_shapes() is None:
        raise RefusedError("this torch has no symbolic shapes")
    base = subject.base()
    model = subject.model(base)
    # A size may equal a constant of the model by chance, and then seems baked in: try two choices.
    baked: dict[str, Any] = {}
    for hints in [dict(at)] if at else [_hints(subject, base, shift) for shift in (0, 6)]:
        tally, symbols = _symbolic_pass(subject, model, base, hints, how, picking, repeats)
        baked = symbols.baked()
        if not baked:
            break
    else:
        said = ", ".join(f"`{name}` became {value}" for name, value in baked.items())
        raise RefusedError(f"the model turned symbolic sizes into numbers ({said})")
    counts = counts_of(tally, model, how, symbols.plain)
    picked = tally.picks.found if tally.picks else {}
    free = {s.name for each in counts.own.values() for m in each for s in m.free_symbols}
    if free - {*subject.names, *picked}:
        raise RefusedError("some sizes depend on the values that go in")
    valid = Valid.of(symbols.guards(), hints).also(Valid.multiples(subject.steps))
    valid = valid.also(Valid.most({n: symbols.plain(most) for n, (_, most) in picked.items()}))
    subject.pick({name: path for name, (path, _) in picked.items()})
    params = {path: as_sum(n) for path, n in counts.params.items()}
    total = sum(tally.calls.values())
    found = Formulas("symbolic", counts.own, params, valid, counts.unknown, calls=total)
    found.repeated, found.hints = tally.repeated, {**base, **hints, **symbols.hints}
    return found


def _symbolic_pass(
    subject: Subject,
    model: nn.Module,
    base: Mapping[str, int],
    hints: dict[str, int],
    how: Options,
    picking: bool,
    repeats: bool,
) -> tuple[Tally, private.Symbols]:
    reason = ""
    shortcuts = [True, False] if repeats and equal_layers(model) else [False]
    for device, shortcut in itertools.product(_devices(model), shortcuts):
        symbols = private.Symbols(hints, subject.steps)
        sizes = {**base, **symbols.sizes}
        picks = Picks(_pick_of(symbols)) if picking else None
        try:
            mode = symbols.mode
            tally = run_pass(model, subject.inputs, sizes, mode, device, how, picks, shortcut)
            return tally, symbols
        except CostError:
            raise
        except (Exception, SystemExit) as error:  # whatever a model may raise
            reason = reason or last_line(error, 200)
    raise RefusedError(f"symbolic sizes did not get through the model ({reason})")


def _pick_of(symbols: private.Symbols) -> Callable[[str], Any]:
    primes = itertools.cycle(PRIMES)
    return lambda name: symbols.add(name, next(primes))


class Counter:
    """Counts at concrete sizes: with tensors that have no values, else by really running it."""

    def __init__(self, subject: Subject, how: Options):
        self.subject, self.how = subject, how
        self.ways: list[tuple[str, str]] | None = None
        self.unknown: dict[str, dict[str, int]] = {}
        self.runs = False  # whether values were needed
        self.calls: set[int] = set()  # operations per pass
        self.last = 0  # operations in the last one

    def without_running(self) -> Counter:
        """The same, but never with values."""
        self.ways = _ways(self.subject.model(self.subject.base()), static=True)
        return self

    def __call__(self, sizes: Mapping[str, int]) -> dict[Key, int]:
        """Counts and parameters by (module, metric)."""
        model = self.subject.model(sizes)
        counts = self._count(model, sizes)
        for op, where in counts.unknown.items():
            self.unknown.setdefault(op, {}).update(where)
        found: dict[Key, int] = {}
        for (path, metric), total in counts.own.items():
            key = self.subject.fold(path), metric
            found[key] = found.get(key, 0) + int(sum(total.values()))
        for path, total in counts.params.items():
            folded = self.subject.fold(path), "params"
            found[folded] = found.get(folded, 0) + total
        return {key: n for key, n in found.items() if n}

    def _count(self, model: nn.Module, sizes: Mapping[str, int]) -> Counts:
        reason = ""
        for way, device in self.ways or _ways(model, static=bool(self.subject.picked)):
            try:
                counts = self._run(way, device, model, sizes)
            except CostError:
                raise
            except (Exception, SystemExit) as error:
                reason = reason or last_line(error, 200)
            else:
                self.ways, self.runs = [(way, device)], way == "real"
                return counts
        said = ", ".join(f"{name}={size}" for name, size in sizes.items())
        at = f" with {said}" if said else ""
        raise CostError(
            f"the model does not run{at} ({reason}); a size that the model fixes is written as a "
            "number, and one that must divide another is said with sizes={...}"
        )

    def _run(self, way: str, device: str, model: nn.Module, sizes: Mapping[str, int]) -> Counts:
        inputs, how = self.subject.inputs, self.how
        if way == "static":
            mode = private.static_shapes()
            picks = Picks(sizes.__getitem__) if self.subject.picked else None
            tally = run_pass(model, inputs, sizes, mode, device, how, picks)
            self.last = sum(tally.calls.values())
            self.calls.add(self.last)
            return counts_of(tally, model, how)
        found = []
        for seed in (0, 1):
            with random_state(seed):
                tally = run_pass(model, inputs, sizes, nullcontext(), device, how)
            found.append(counts_of(tally, model, how))
            self.last = sum(tally.calls.values())
        self._compare(*found)
        return found[0]

    def _compare(self, first: Counts, second: Counts) -> None:
        """Refuse what differs between two runs with different values."""
        fold, varied = self.subject.fold, self.subject.varies
        for self.subject.varies in (varied, True):
            a, b = (
                {k: sum(v.values()) for k, v in fold_sums(each.own, fold).items()}
                for each in (first, second)
            )
            if a == b:
                if self.subject.varies != varied:
                    raise FoldedError("values decide which module does what")
                return
        self.subject.varies = varied
        raise ValuesError("the cost depends on the values that go in, and no formula bounds it")


def interpolated(subject: Subject, how: Options) -> Formulas:
    """A polynomial through counts at concrete sizes, with points held out to test it."""
    counter = Counter(subject, how)
    fitter = Fitter(counter, subject.names, subject.values)
    try:
        fit = fitter.fit()
    except NotPolynomialError as error:
        raise RefusedError(f"{error}; say where with near={{'{error.name}': SIZE}}") from error
    symbols = [sympy.Symbol(name) for name in subject.names]
    monomials = [
        sympy.prod(s**p for s, p in zip(symbols, each, strict=True)) for each in fit.powers
    ]
    own: dict[Key, Sum] = {}
    params: dict[str, Sum] = {}
    for key, coefficients in fit.coefficients.items():
        path, metric = key  # type: ignore[misc]
        made = {m: _number(c) for m, c in zip(monomials, coefficients, strict=True) if c != 0}
        if metric == "params":
            params[path] = made
        else:
            own[path, metric] = made
    notes = []
    if subject.names:
        notes.append(
            f"fitted to {fit.evaluated} counts at sizes {_ranges(subject)}, {fit.held_out} held out"
        )
    if counter.runs:
        notes.append("counted by running it: what it does depends on values")
    found = Formulas("interpolation", own, params, Valid(), counter.unknown, notes)
    found.runs, found.loops = counter.runs, len(counter.calls) > 1
    return found


def difference(found: Formulas, counts: dict[Key, int], sizes: Any) -> str:
    """Where formulas and counts differ, in a sentence; empty where they do not."""
    params = {(path, "params"): each for path, each in found.params.items()}
    predicted = Counts(found.own | params, {}, {}).at(sizes)
    keys = [k for k in {**predicted, **counts} if predicted.get(k, 0) != counts.get(k, 0)]
    if not keys:
        return ""
    keys.sort(key=lambda key: key[1] not in (FORWARD, BACKWARD))  # what weighs most
    path, metric = keys[0]
    said = ", ".join(f"{name}={size}" for name, size in sizes.items())
    return (
        f"at {said} the formula gives {predicted.get(keys[0], 0)} and counting gives "
        f"{counts.get(keys[0], 0)} ({metric} of `{path or 'the whole'}`)"
    )


def _hints(subject: Subject, base: Mapping[str, int], shift: int) -> dict[str, int]:
    """Distinct sizes of at least 5 for the inputs; near where the user said."""
    used = {size for name, size in base.items() if name in subject.hyper}
    hints: dict[str, int] = {}
    for place, name in enumerate(n for n in subject.names if n not in subject.hyper):
        said = subject.values[name] if name in subject.said else range(5 + 2 * place + shift, 999)
        least = 5 * subject.steps.get(name, 1)
        free = (n for n in said if n >= least and n not in used and n not in hints.values())
        hint = subject.near.get(name) or next(free, subject.values[name][-1])
        hints[name] = hint
    return hints


def _devices(model: nn.Module) -> list[str]:
    tensors = [*model.parameters(), *model.buffers()]
    return ["cpu", "meta"] if all(t.device.type == "cpu" for t in tensors) else ["meta"]


def _ways(model: nn.Module, static: bool = False) -> list[tuple[str, str]]:
    """How to count: on tensors without values, then (unless `static`) on real ones."""
    devices = _devices(model)
    ways = [("static", device) for device in devices]
    return [*ways, ("real", "cpu")] if "cpu" in devices and not static else ways


def _number(value: Fraction) -> Any:
    return int(value) if value.denominator == 1 else sympy.Rational(*value.as_integer_ratio())


def _ranges(subject: Subject) -> str:
    return ", ".join(f"{n} {min(v)} to {max(v)}" for n, v in subject.values.items())
