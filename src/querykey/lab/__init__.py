"""The lab: every claim of the five documents as a measured experiment with a verdict.

    from querykey.lab import Depth, experiment, judge
    measurement = experiment("saturation").measure(Depth("quick"))
    for claim in experiment("saturation").claims:
        print(judge(claim, measurement))

An experiment measures first and is judged after, so that a measurement can meet any claim, a wrong
one too. Begin with `experiments/argmax.py`, which is short; `claim.py` says how verdicts are made.
"""

from querykey.lab.claim import AtLeast, AtMost, Claim, Equal, Near, Part, judge
from querykey.lab.command import list_experiments, run_experiments, write_ledger
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.ledger import ledger_json, ledger_page
from querykey.lab.measurement import Chart, Grid, Measured, Measurement, exact, sampled, unmeasured
from querykey.lab.rows import DOCUMENTS, ROWS, Statement
from querykey.lab.store import measurements_below
from querykey.lab.table import EXPERIMENTS, experiment

__all__ = [
    "DOCUMENTS",
    "EXPERIMENTS",
    "ROWS",
    "AtLeast",
    "AtMost",
    "Chart",
    "Claim",
    "Depth",
    "Equal",
    "Experiment",
    "Grid",
    "Measured",
    "Measurement",
    "Near",
    "Part",
    "Statement",
    "exact",
    "experiment",
    "judge",
    "ledger_json",
    "ledger_page",
    "list_experiments",
    "measurements_below",
    "run_experiments",
    "sampled",
    "unmeasured",
    "write_ledger",
]
