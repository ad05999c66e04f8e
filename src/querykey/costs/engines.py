"""The two engines: symbolic sizes in one pass, and exact interpolation over many.

Both give `Formulas`: sums of monomials in the named sizes. `check` holds one against the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import sympy
from torch import nn

from querykey.costs import private
from querykey.costs.inputs import CostError
from querykey.costs.passes import Counts, Options, Sum, as_sum, counts_of, random_state, run_pass
from querykey.costs.polynomial import Fitter, NotPolynomialError
from querykey.costs.subject import Subject, last_line
from querykey.costs.tally import Tally
from querykey.costs.valid import Valid

Key = tuple[str, str]


class RefusedError(CostError):
    """An engine cannot serve this model; the other may."""


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


def symbolic(subject: Subject, how: Options) -> Formulas:
    """One pass with the sizes of the inputs as symbols, the builder's own at their first choice."""
    if private.symbolic_shapes() is None:
        raise RefusedError("this torch has no symbolic shapes")
    base = subject.base()
    model = subject.model(base)
    # A size may equal a constant of the model by chance, and then seems baked in: try two choices.
    for shift in (0, 6):
        hints = _hints(subject, base, shift)
        tally, symbols = _symbolic_pass(subject, model, base, hints, how)
        baked = symbols.baked()
        if not baked:
            break
    else:
        said = ", ".join(f"`{name}` became {value}" for name, value in baked.items())
        raise RefusedError(f"the model turned symbolic sizes into numbers ({said})")
    counts = counts_of(tally, model, how, symbols.plain)
    free = {s.name for each in counts.own.values() for m in each for s in m.free_symbols}
    if free - set(subject.names):
        raise RefusedError("some sizes depend on the values that go in")
    valid = Valid.of(symbols.guards(), hints)
    params = {path: as_sum(n) for path, n in counts.params.items()}
    total = sum(tally.calls.values())
    return Formulas("symbolic", counts.own, params, valid, counts.unknown, calls=total)


def _symbolic_pass(
    subject: Subject, model: nn.Module, base: Mapping[str, int], hints: dict[str, int], how: Options
) -> tuple[Tally, private.Symbols]:
    reason = ""
    for device in _devices(model):
        symbols = private.Symbols(hints)
        sizes = {**base, **symbols.sizes}
        try:
            return run_pass(model, subject.inputs, sizes, symbols.mode, device, how), symbols
        except CostError:
            raise
        except Exception as error:  # whatever a model may raise
            reason = reason or last_line(error)
    raise RefusedError(f"symbolic sizes did not get through the model ({reason})")


class Counter:
    """Counts at concrete sizes: with tensors that have no values, else by really running it."""

    def __init__(self, subject: Subject, how: Options):
        self.subject, self.how = subject, how
        self.ways: list[tuple[str, str]] | None = None
        self.unknown: dict[str, dict[str, int]] = {}
        self.runs = False  # whether values were needed

    def without_running(self) -> Counter:
        """The same, but never with values."""
        ways = _ways(self.subject.model(self.subject.base()))
        self.ways = [way for way in ways if way[0] == "static"]
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
        for way, device in self.ways or _ways(model):
            try:
                counts = self._run(way, device, model, sizes)
            except CostError:
                raise
            except Exception as error:
                reason = reason or last_line(error)
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
            return counts_of(run_pass(model, inputs, sizes, mode, device, how), model, how)
        found = []
        for seed in (0, 1):
            with random_state(seed):
                tally = run_pass(model, inputs, sizes, nullcontext(), device, how)
            found.append(counts_of(tally, model, how))
        if found[0].at({}) != found[1].at({}):
            raise CostError("the cost depends on the values that go in, and no formula bounds it")
        return found[0]


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
    return Formulas(
        "interpolation", own, params, Valid(), counter.unknown, notes, runs=counter.runs
    )


def difference(found: Formulas, counts: dict[Key, int], sizes: Any) -> str:
    """Where formulas and counts differ, in a sentence; empty where they do not."""
    params = {(path, "params"): each for path, each in found.params.items()}
    predicted = Counts(found.own | params, {}, {}).at(sizes)
    keys = [k for k in {**predicted, **counts} if predicted.get(k, 0) != counts.get(k, 0)]
    if not keys:
        return ""
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
        hint = subject.near.get(name, 5 + 2 * place + shift)
        while name not in subject.near and (hint in used or hint in hints.values()):
            hint += 1
        hints[name] = hint
    return hints


def _devices(model: nn.Module) -> list[str]:
    tensors = [*model.parameters(), *model.buffers()]
    return ["cpu", "meta"] if all(t.device.type == "cpu" for t in tensors) else ["meta"]


def _ways(model: nn.Module) -> list[tuple[str, str]]:
    devices = _devices(model)
    ways = [("static", device) for device in devices]
    return [*ways, ("real", "cpu")] if "cpu" in devices else ways


def _number(value: Fraction) -> Any:
    return int(value) if value.denominator == 1 else sympy.Rational(*value.as_integer_ratio())


def _ranges(subject: Subject) -> str:
    return ", ".join(f"{n} {min(v)} to {max(v)}" for n, v in subject.values.items())
