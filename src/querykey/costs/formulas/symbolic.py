"""The symbolic engine: named sizes go through the model as symbols, in one pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from querykey.costs.counting.counts import counts_of
from querykey.costs.counting.data_dependent import DataDependentSizes
from querykey.costs.counting.equal_layers import equal_layers
from querykey.costs.counting.passes import PassOptions, PassSetting, run_pass
from querykey.costs.counting.trace import Trace
from querykey.costs.formulas.concrete import devices
from querykey.costs.formulas.formula_set import Derivation, FormulaSet, RefusedError
from querykey.costs.formulas.validity import Validity
from querykey.costs.inputs import CostError
from querykey.costs.measured_model import MeasuredModel
from querykey.costs.private import Symbols, symbolic_shapes
from querykey.costs.sums import as_sum
from querykey.words import last_line

PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43)  # hints of sizes that depend on values


def symbolic(
    measured: MeasuredModel,
    options: PassOptions,
    data_dependent: bool = False,
    copy_layers: bool = False,
    at: Mapping[str, int] | None = None,
) -> FormulaSet:
    """Return formulas from one pass with the inputs' sizes as symbols.

    The sizes of a builder are numbers, their first choice. With `data_dependent`, sizes that depend
    on values become symbols too. With `copy_layers`, two of equal layers run, which counts of all
    of them must confirm. Where the model compares sizes, these stand for small numbers, or for the
    numbers in `at`.
    """
    if symbolic_shapes() is None:
        raise RefusedError("this torch has no symbolic shapes")
    derive = partial(_derive, measured, options, data_dependent, copy_layers, at)
    return measured.whole_numbers.kept_if_needed(derive)


def _derive(
    measured: MeasuredModel,
    options: PassOptions,
    data_dependent: bool,
    copy_layers: bool,
    at: Mapping[str, int] | None,
) -> FormulaSet:
    base = measured.base()
    model = measured.model(base)
    # A size may equal a constant of the model by chance, and then seems baked in: two are tried.
    baked: dict[str, Any] = {}
    for hints in [dict(at)] if at else [hints_of(measured, base, shift) for shift in (0, 6)]:
        passes = _Passes(measured, model, {**base}, hints, data_dependent)
        trace, symbols = passes.first_that_runs(options, copy_layers)
        baked = symbols.baked()
        if not baked:
            break
    else:
        became = ", ".join(f"`{name}` became {value}" for name, value in baked.items())
        raise RefusedError(f"the model turned symbolic sizes into numbers ({became})")
    return _formulas(measured, options, model, trace, symbols, hints)


def _formulas(
    measured: MeasuredModel,
    options: PassOptions,
    model: nn.Module,
    trace: Trace,
    symbols: Symbols,
    hints: dict[str, int],
) -> FormulaSet:
    """Return the formulas of a traced pass, with the conditions that torch noted."""
    counts = counts_of(trace, model, options.formulas, symbols.plain)
    picked = trace.data_dependent.sizes if trace.data_dependent else {}
    free = {s.name for total in counts.own.values() for m in total for s in m.free_symbols}
    if free - {*measured.names, *picked}:
        raise RefusedError("some sizes depend on the values that go in")
    base = measured.base()
    valid = Validity.of(symbols.guards(), hints).also(Validity.multiples(measured.steps))
    bounds = {name: symbols.plain(most) for name, (_, most) in picked.items()}
    measured.add_picked({name: path for name, (path, _) in picked.items()})
    derivation = Derivation(
        "symbolic",
        operations=sum(trace.operations.values()),
        copied=trace.copied,
        hints={**base, **hints, **symbols.hints},
    )
    params = {path: as_sum(total) for path, total in counts.params.items()}
    valid = valid.also(Validity.most(bounds))
    return FormulaSet(counts.own, params, counts.unknown, derivation, valid)


class _Passes:
    """The symbolic passes that can be tried over one model, with the same hints."""

    def __init__(
        self,
        measured: MeasuredModel,
        model: nn.Module,
        base: dict[str, int],
        hints: dict[str, int],
        data_dependent: bool,
    ):
        self.measured, self.model, self.base, self.hints = measured, model, base, hints
        self.data_dependent = data_dependent

    def first_that_runs(self, options: PassOptions, copy_layers: bool) -> tuple[Trace, Symbols]:
        """Try devices, each with and without the shortcut for equal layers."""
        reason = ""
        shortcuts = [True, False] if copy_layers and equal_layers(self.model) else [False]
        for device, shortcut in itertools.product(devices(self.model), shortcuts):
            symbols = Symbols(self.hints, self.measured.steps)
            picked = DataDependentSizes(_adding(symbols)) if self.data_dependent else None
            sizes = {**self.base, **symbols.sizes}
            whole = self.measured.whole_numbers
            setting = PassSetting(sizes, device, symbols.mode, picked, shortcut, whole)
            try:
                return run_pass(self.model, self.measured.inputs, options, setting), symbols
            except CostError:
                raise
            except (Exception, SystemExit) as error:  # whatever a model may raise
                reason = reason or last_line(error, 200)
        raise RefusedError(f"symbolic sizes did not get through the model ({reason})")


def _adding(symbols: Symbols) -> Callable[[str], Any]:
    """Return a function that adds a symbol by name, each with another hint."""
    primes = itertools.cycle(PRIMES)
    return lambda name: symbols.add(name, next(primes))


def hints_of(measured: MeasuredModel, base: Mapping[str, int], shift: int) -> dict[str, int]:
    """Return distinct hints of at least 5 for the inputs' sizes; `near` ones where asked for."""
    used = {size for name, size in base.items() if name in measured.hyper}
    hints: dict[str, int] = {}
    for place, name in enumerate(n for n in measured.names if n not in measured.hyper):
        start = max(5, measured.whole_numbers.least)
        choices = range(start + 2 * place + shift, 999)
        choices = measured.values[name] if name in measured.stated else choices
        least = 5 * measured.steps.get(name, 1)
        free = (n for n in choices if n >= least and n not in used and n not in hints.values())
        hints[name] = measured.near.get(name) or next(free, measured.values[name][-1])
    return hints
