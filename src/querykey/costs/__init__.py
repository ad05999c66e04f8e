"""What a torch model costs, as exact formulas in named sizes.

    report = cost(model, tokens("batch", "seq"))
    report.flops.forward, report.flops.backward, report.params, report.saved_bytes
    report.at(batch=8, seq=1024).flops.forward
    report.order("flops.forward")
    report.modules["layers.0"].flops.backward

Two engines check each other: symbolic sizes that go through the model on tensors without values,
and exact interpolation of counts at concrete sizes.
"""

from querykey.costs.command import cost_of_target, refuse_page, write_page
from querykey.costs.inputs import CostError, array, images, tokens
from querykey.costs.measure import cost
from querykey.costs.render import tables, totals
from querykey.costs.report import CostReport

__all__ = [
    "CostError",
    "CostReport",
    "array",
    "cost",
    "cost_of_target",
    "images",
    "refuse_page",
    "tables",
    "tokens",
    "totals",
    "write_page",
]
