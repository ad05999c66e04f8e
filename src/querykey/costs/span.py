"""The parallel depth of a forward pass, as a formula in ceil(log2 n)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from typing import Any

from querykey.costs.counting.depths import Depths, formula
from querykey.costs.counting.passes import PassOptions, PassSetting, run_pass
from querykey.costs.formulas.concrete import devices
from querykey.costs.formulas.formula_set import RefusedError
from querykey.costs.formulas.symbolic import hints_of
from querykey.costs.inputs import CostError
from querykey.costs.measured_model import MeasuredModel
from querykey.costs.private import Symbols, symbolic_shapes
from querykey.words import last_line


class Span:
    """The depth of a forward pass, math attention; derived when it is first asked for."""

    def __init__(self, measured: MeasuredModel, options: PassOptions):
        self.measured = measured
        self.options = replace(
            options, backward=False, graph=False, attention="math", checkpointing=False
        )

    def formula(self, serial: Collection[str] = ()) -> Any:
        """Return the depth with sums as trees, serial over the sizes in `serial`."""
        for name in serial:
            if name not in self.measured.names:
                have = ", ".join(self.measured.names)
                raise CostError(f"there is no size `{name}` to sum over (the sizes: {have})")
        depths, symbols = self._derived
        return formula(depths.longest, symbols.plain, serial)

    @cached_property
    def _derived(self) -> tuple[Depths, Symbols]:
        if symbolic_shapes() is None:
            raise RefusedError("this torch has no symbolic shapes")
        measured = self.measured
        base = measured.base()
        model = measured.model(base)
        symbols = Symbols(hints_of(measured, base, 0), measured.steps)
        depths = Depths()
        sizes, whole = {**base, **symbols.sizes}, measured.whole_numbers
        setting = PassSetting(sizes, devices(model)[0], symbols.mode, whole_numbers=whole)
        try:
            run_pass(model, measured.inputs, self.options, setting, depths=depths)
        except CostError:
            raise
        except (Exception, SystemExit) as error:
            raise RefusedError(
                f"symbolic sizes did not get through the model, so the parallel depth has no "
                f"formula ({last_line(error, 200)})"
            ) from error
        if symbols.baked():
            raise RefusedError("the model turns sizes into numbers, so its depth has no formula")
        if depths.unknown:
            raise RefusedError(f"no depth is known for {', '.join(depths.unknown)}")
        return depths, symbols
