"""What a torch model costs, as exact formulas in named sizes.

    report = cost(model, tokens("batch", "seq"))
    report.flops.forward, report.flops.backward, report.params, report.saved_bytes
    report.at(batch=8, seq=1024).flops.forward
    report.order("flops.forward")
    report.modules["layers.0"].flops.backward

Two engines check each other: symbolic sizes that go through the model on tensors without values,
and exact interpolation of counts at concrete sizes.
"""

from querykey.costs.command import (
    as_json,
    calibrated,
    cost_of_target,
    plotted,
    refuse_page,
    view_of,
    write_page,
)
from querykey.costs.inputs import CostError, array, images, tokens
from querykey.costs.measure import cost
from querykey.costs.render import tables, totals
from querykey.costs.report import CostReport
from querykey.costs.timing.calibration import Calibration, calibrate
from querykey.costs.timing.measuring import clock_of

__all__ = [
    "Calibration",
    "CostError",
    "CostReport",
    "array",
    "as_json",
    "calibrate",
    "calibrated",
    "clock_of",
    "cost",
    "cost_of_target",
    "images",
    "plotted",
    "refuse_page",
    "tables",
    "tokens",
    "totals",
    "view_of",
    "write_page",
]
