"""The bytes that a pass moves, by module: formulas derived when first asked for, and at sizes.

The formulas come from a pass with symbolic sizes, in which two of equal layers run, and are
compared with a pass of all layers at concrete sizes. Where no symbols get through the model they
are interpolated from counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy
import torch

from querykey.costs.counting.passes import PassOptions, PassSetting, run_pass
from querykey.costs.counting.tensors import random_state
from querykey.costs.counting.traffic import OperationCall, Traffic
from querykey.costs.formulas.concrete import devices
from querykey.costs.formulas.formula_set import RefusedError, listed
from querykey.costs.formulas.interpolation import monomial, number
from querykey.costs.formulas.polynomial import Fitter, NotPolynomialError
from querykey.costs.formulas.symbolic import hints_of
from querykey.costs.formulas.validity import Validity
from querykey.costs.inputs import CostError
from querykey.costs.measured_model import MeasuredModel
from querykey.costs.private import Symbols, static_shapes, symbolic_shapes
from querykey.costs.sums import Sum, add_sum, as_sum, expression
from querykey.words import last_line

Calls = Counter[tuple[OperationCall, str, str]]  # by (call, module, phase)


@dataclass(frozen=True)
class _DerivedBytes:
    by_module: dict[str, Sum]  # without children
    valid: Validity


class BytesMoved:
    """The bytes that a model's operations read and write, no two of them fused."""

    def __init__(self, measured: MeasuredModel, options: PassOptions):
        self.measured, self.options = measured, options
        self._passes: dict[tuple[tuple[str, Any], ...], Traffic] = {}

    def value(self, path: str, sizes: Mapping[str, int]) -> Any:
        """Return the bytes that one module moves, its children's included, with sizes put in."""
        try:
            formula = sympy.sympify(self._formulas.get(path, 0))
        except RefusedError:
            if not sizes.keys() >= {*self.measured.names}:
                raise
            within = (own for p, own in self.at(sizes).items() if _inside(p, path))
            return sum(within)
        value = formula.subs({sympy.Symbol(name): size for name, size in sizes.items()})
        return int(value) if value.is_Integer else value

    def calls_at(self, sizes: Mapping[str, int], dtype: torch.dtype | None = None) -> Calls:
        """Return every call of one pass at these sizes, in all layers."""
        return self.traffic_at(sizes, dtype).calls

    def traffic_at(self, sizes: Mapping[str, int], dtype: torch.dtype | None = None) -> Traffic:
        """Return what one pass at these sizes moves, in all layers."""
        options = self.options if dtype is None else replace(self.options, dtype=dtype)
        key = (*sorted((name, sizes[name]) for name in self.measured.names), ("", str(dtype)))
        if key not in self._passes:
            self._passes[key] = _traffic_at(self.measured, options, sizes)
        return self._passes[key]

    def at(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the bytes that every module moves at these sizes, without its children's."""
        fold, moved = self.measured.fold, Counter[str]()
        for (call, path, _), times in self.calls_at(sizes).items():
            moved[fold(path)] += int(call.bytes) * times
        return {path: total for path, total in moved.items() if total}

    @cached_property
    def _formulas(self) -> dict[str, Any]:
        sums: dict[str, Sum] = {}
        for path, total in self._own.items():
            parts = path.split(".") if path else []
            for length in range(len(parts) + 1):
                add_sum(sums.setdefault(".".join(parts[:length]), {}), total)
        return {path: expression(total) for path, total in sums.items()}

    @cached_property
    def _own(self) -> dict[str, Sum]:
        try:
            return self._symbolic()
        except RefusedError as refusal:
            try:
                return self._interpolated()
            except (CostError, NotPolynomialError) as error:
                raise RefusedError(f"the bytes moved have no formula ({refusal})") from error

    def _symbolic(self) -> dict[str, Sum]:
        if symbolic_shapes() is None:
            raise RefusedError("this torch has no symbolic shapes")
        if self.measured.hyper:
            raise RefusedError("a builder's sizes are no symbols")
        reason = ""
        # A size may equal a number of the model by chance, and then seems to be that number.
        for shift, shortcut in ((0, True), (0, False), (6, True)):
            try:
                derived = self._derive(shift, shortcut)
                wrong = self._difference(derived)
            except RefusedError as refusal:
                reason = reason or str(refusal)
                continue
            except CostError:
                raise
            except (Exception, SystemExit) as error:  # whatever a model may raise
                reason = reason or last_line(error, 200)
                continue
            if not wrong:
                return derived.by_module
            reason = reason or wrong
        raise RefusedError(reason)

    def _derive(self, shift: int, shortcut: bool) -> _DerivedBytes:
        measured = self.measured
        base = measured.base()
        model, hints = measured.model(base), hints_of(measured, base, shift)
        symbols, traffic = Symbols(hints, measured.steps), Traffic()
        sizes = {**base, **symbols.sizes}
        device, whole = devices(model)[0], measured.whole_numbers
        setting = PassSetting(sizes, device, symbols.mode, None, shortcut, whole)
        run_pass(model, measured.inputs, self.options, setting, traffic=traffic)
        if symbols.baked():
            raise RefusedError("the model turns sizes into numbers")
        own = _sums(traffic.calls, measured.fold, symbols.plain)
        return _DerivedBytes(own, Validity.of(symbols.guards(), hints))

    def _difference(self, derived: _DerivedBytes) -> str:
        """Return where all layers at concrete sizes move something else, or nothing."""
        measured = self.measured
        base = measured.base()
        hints = hints_of(measured, base, 0)
        steps = [measured.steps.get(name, 1) for name in hints]
        places = enumerate(zip(hints.items(), steps, strict=True))
        point = {**base, **{n: size + (2 + i) * step for i, ((n, size), step) in places}}
        if derived.valid.broken(point):
            point = {**base, **hints}
        values: Any = {sympy.Symbol(name): size for name, size in point.items()}
        formula = {p: expression(total).subs(values) for p, total in derived.by_module.items()}
        counted = self.at(point)
        for path in {**formula, **counted}:
            if formula.get(path, 0) != counted.get(path, 0):
                return (
                    f"at {listed(point)} it gives {formula.get(path, 0)} and counting "
                    f"{counted.get(path, 0)} in `{path or 'the whole model'}`"
                )
        return ""

    def _interpolated(self) -> dict[str, Sum]:
        names = self.measured.names
        fit = Fitter(self.at, names, self.measured.values).fit()
        symbols = tuple(sympy.Symbol(name) for name in names)
        return {
            str(path): {monomial(symbols, powers): number(c) for powers, c in coefficients.items()}
            for path, coefficients in fit.coefficients.items()
        }


def _inside(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _sums(calls: Calls, fold: Callable[[str], str], plain: Callable[[Any], Any]) -> dict[str, Sum]:
    """Return the bytes of calls by module, in the user's names of sizes."""
    prices: dict[Any, Sum] = {}
    own: dict[str, Sum] = {}
    for (call, path, _), times in calls.items():
        key = call.read, call.written
        if key not in prices:
            prices[key] = as_sum(plain(sympy.sympify(call.bytes)))
        add_sum(own.setdefault(fold(path), {}), prices[key], times)
    return own


def _traffic_at(measured: MeasuredModel, options: PassOptions, sizes: Mapping[str, int]) -> Traffic:
    model, reason = measured.model(sizes), ""
    ways: list[tuple[str, Any]] = [(device, static_shapes()) for device in devices(model)]
    if devices(model)[0] == "cpu":
        ways.append(("cpu", nullcontext()))
    for device, mode in ways:
        traffic = Traffic()
        try:
            with random_state(0):
                setting = PassSetting(sizes, device, mode)
                run_pass(model, measured.inputs, options, setting, traffic=traffic)
        except CostError:
            raise
        except (Exception, SystemExit) as error:
            reason = reason or last_line(error, 200)
        else:
            return traffic
    raise CostError(f"the model does not run at {listed(sizes)} ({reason})")
