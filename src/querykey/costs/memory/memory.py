"""The memory of a model: its peak as a formula, derived when it is first asked for, and at sizes.

The formula comes from one pass with symbolic sizes in which three of equal layers run. Its value is
compared with a pass of all layers at concrete sizes before it is used. Where no symbols get through
the model, the peak is still exact at sizes that are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy
import torch

from querykey.costs.counting.passes import PassOptions, PassSetting, run_pass
from querykey.costs.counting.tensors import random_state
from querykey.costs.formulas.concrete import devices
from querykey.costs.formulas.formula_set import RefusedError, listed
from querykey.costs.formulas.symbolic import hints_of
from querykey.costs.formulas.validity import Validity
from querykey.costs.inputs import CostError
from querykey.costs.measured_model import MeasuredModel
from querykey.costs.memory.layers import expanded, three_of_equal_layers
from querykey.costs.memory.peak import Peak, peak_at, peak_formulas
from querykey.costs.memory.timeline import Event, Timeline
from querykey.costs.private import Symbols, static_shapes, symbolic_shapes
from querykey.words import last_line

MOST = 1 << 40  # no size is looked for beyond it


@dataclass(frozen=True)
class _Derived:
    """The events of a pass with symbolic sizes, and the range in which they come like this."""

    events: list[Event]
    symbols: Symbols
    valid: Validity


class PeakMemory:
    """What is in memory during a training step, or during a forward pass without gradients."""

    def __init__(self, measured: MeasuredModel, options: PassOptions):
        self.measured, self.options = measured, options
        self._others: dict[Any, PeakMemory] = {}
        self._peaks: dict[tuple[tuple[str, int], ...], Peak] = {}

    def training(self, step: bool) -> PeakMemory:
        """Return the memory of a training step, or else of inference, of the same model."""
        return self._other(replace(self.options, backward=step, graph=step))

    def with_settings(self, dtype: torch.dtype | None, checkpointing: bool) -> PeakMemory:
        """Return the memory of a training step in another precision, or with layers run again."""
        options = replace(self.options, backward=True, graph=True)
        return self._other(replace(options, dtype=dtype, checkpointing=checkpointing))

    def _other(self, options: PassOptions) -> PeakMemory:
        """Return the memory of a pass with other options, each made once."""
        if options == self.options:
            return self
        key = options.backward, options.graph, options.dtype, options.checkpointing
        if key not in self._others:
            self._others[key] = PeakMemory(self.measured, options)
        return self._others[key]

    @cached_property
    def formula(self) -> Any:
        """Return the peak in bytes: the largest of some formulas; raise where there is none."""
        derived = self._derived
        formulas = peak_formulas(derived.events, derived.symbols.plain)
        return formulas[0] if len(formulas) == 1 else sympy.Max(*formulas, evaluate=False)

    @property
    def valid(self) -> Validity:
        """Return the range in which the formula holds."""
        return self._derived.valid

    def at(self, sizes: Mapping[str, int]) -> Peak:
        """Return the peak at these sizes, and what is alive there, counted in all layers."""
        key = tuple(sorted((name, sizes[name]) for name in self.measured.names))
        if key not in self._peaks:
            self._peaks[key] = peak_at(self._events_at(sizes), int)
        return self._peaks[key]

    @cached_property
    def _derived(self) -> _Derived:
        if symbolic_shapes() is None:
            raise RefusedError("this torch has no symbolic shapes")
        if self.measured.hyper:
            raise RefusedError(
                "the peak of a builder has no formula; put all sizes in, as in at(width=64)"
            )
        reason = ""
        for shortcut in (True, False):
            try:
                derived = self._symbolic(shortcut)
            except RefusedError:
                raise
            except (Exception, SystemExit) as error:
                reason = reason or last_line(error, 200)
                continue
            try:
                wrong = self._difference(derived)
            except TypeError:  # a size that only the data decides has no number
                wrong = "a size depends on the data"
            if not wrong:
                return derived
            reason = reason or wrong
        raise RefusedError(f"the peak has no formula ({reason}); put all sizes in with at(...)")

    def _symbolic(self, shortcut: bool) -> _Derived:
        measured = self.measured
        base = measured.base()
        model = measured.model(base)
        hints = hints_of(measured, base, 0)
        symbols = Symbols(hints, measured.steps)
        timeline = Timeline()
        sizes, whole = {**base, **symbols.sizes}, measured.whole_numbers
        setting = PassSetting(sizes, devices(model)[0], symbols.mode, whole_numbers=whole)
        with three_of_equal_layers(model, timeline) if shortcut else nullcontext([]) as repeats:
            run_pass(model, measured.inputs, self.options, setting, timeline)
        if symbols.baked():
            raise RefusedError(
                "the model turns sizes into numbers, so the peak has no formula; put all sizes in"
            )
        events = expanded(timeline, repeats)
        if events is None:
            raise ValueError("equal layers do not run in turn")
        return _Derived(events, symbols, Validity.of(symbols.guards(), hints))

    def _difference(self, derived: _Derived) -> str:
        """Return where the events of all layers at concrete sizes have another peak, or nothing."""
        hints = derived.symbols.hints
        places = enumerate(hints.items())
        point = {n: s + (2 + i) * self.measured.steps.get(n, 1) for i, (n, s) in places}
        if derived.valid.broken(point):
            point = dict(hints)
        values = {sympy.Symbol(name): size for name, size in point.items()}
        plain = derived.symbols.plain
        formula = peak_at(derived.events, lambda size: int(plain(size).subs(values))).bytes
        counted = self.at({**self.measured.base(), **point}).bytes
        if formula == counted:
            return ""
        return f"at {listed(point)} it gives {formula}, and a pass of all layers {counted}"

    def _events_at(self, sizes: Mapping[str, int]) -> list[Event]:
        model, reason = self.measured.model(sizes), ""
        ways: list[tuple[str, Any]] = [(device, static_shapes()) for device in devices(model)]
        if devices(model)[0] == "cpu":
            ways.append(("cpu", nullcontext()))
        for device, mode in ways:
            timeline = Timeline()
            try:
                with random_state(0):
                    setting = PassSetting(sizes, device, mode)
                    run_pass(model, self.measured.inputs, self.options, setting, timeline)
            except CostError:
                raise
            except (Exception, SystemExit) as error:
                reason = reason or last_line(error, 200)
            else:
                return timeline.events
        raise CostError(f"the model does not run at {listed(sizes)} ({reason})")


def dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return the floating dtype that a name stands for."""
    known = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(known, torch.dtype) and known.is_floating_point):
        raise CostError(f"`{dtype}` is no floating dtype of torch, as bfloat16 is")
    return known


def largest_that(fits: Callable[[int], bool], valid: Validity, size: str) -> int:
    """Return the largest number for which `fits` is true: it is for all smaller ones too."""
    most = valid.upper_bounds().get(size, MOST)
    steps: list[Any] = [
        c.lhs.args[1] for c in valid.unbounded() if isinstance(c, sympy.Eq) and c.lhs.has(size)
    ]
    step = max((int(s) for s in steps), default=1)
    low, high = 0, max(1, -(-valid.lower_bound(size) // step))
    while high * step <= most and fits(high * step):
        low, high = high, 2 * high
    high = min(high, most // step + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle)
    return low * step
