"""Good calls of every public name of `train`, `lab` and `laws`, which the sweep spoils."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.house import sweep
from tests.house.sweep import Good, array, linear

from querykey import lab, laws, train

CLAIM = lab.Claim("E5", "it is {value}", 2.0, of="it", within=lab.Equal(0.1))
MEASUREMENT = lab.Measurement({"it": lab.sampled([1.9, 2.1])}, {})
FINDING = laws.Finding("purity", "holds", 0.0, 0.0)
RESULT = {"folder": "runs/a", "step": 3, "finished": True, "evaluation": {"loss": 0.5}}
PAIRS = ((0, 1), (2, 3))
LAW = {"name": "a", "says": "b", "why": "c", "how": "d", "trials": lambda runner, setting: ()}


def data_fields() -> dict[str, Any]:
    return {
        "name": "copy", "path": "", "tokenizer": "bytes", "vocabulary": 512, "length": 8,
        "documents": False, "samples": 20, "queries": 1, "classes": 2, "unlabelled": False,
        "shift": 0, "source": "de", "target": "en",
    }  # fmt: skip


def small() -> train.TrainConfig:
    return train.TrainConfig("run", data=train.DataConfig("copy", length=8, samples=20))


def randomised(model: torch.nn.Module, seed: int) -> Any:
    return [p.detach() for p in laws.randomised(model, seed).parameters()]


def measured(names: list[str], depth: Any, again: bool) -> list[str]:
    """Measure nothing: the name of an experiment is refused before that."""
    return list(lab.run_experiments(names, depth, Path("out"), again, print))


# A good call of every public name. A name with a dot is a method of the object that is made.
GOOD: dict[str, Callable[[], Good]] = {
    "train.DataConfig": lambda: (train.DataConfig, data_fields()),
    "train.TrainConfig": lambda: (
        train.TrainConfig, {"folder": "runs/a", "data": train.DataConfig("copy")}
    ),
    "train.Progress": lambda: (
        train.Progress,
        {"step": 1, "loss": 0.5, "rate": 0.1, "norm": 1.0, "tokens": 5, "seconds": 0.5},
    ),
    "train.Result": lambda: (train.Result, dict(RESULT)),
    "train.load_data": lambda: (train.load_data, {"config": small()}),
    "train.load_digits": lambda: (
        train.load_digits, {"config": train.DataConfig("digits"), "seed": 0}
    ),
    "train.load_mnist": lambda: (
        train.load_mnist, {"config": train.DataConfig("mnist", path="nowhere"), "seed": 0}
    ),
    "train.read_config": lambda: (
        train.read_config, {"source": {"loop": {"steps": 3}}, "flags": {"steps": "5"}}
    ),
    "train.run": lambda: (
        train.run, {"config": train.read_config({"data": {"name": "nosuch"}}), "tell": print}
    ),
    "train.summary": lambda: (train.summary, {"result": train.Result(**RESULT)}),
    "train.check_command": lambda: (
        train.check_command, {"config": "nowhere.toml", "flags": {"data-name": "nosuch"}}
    ),
    "train.train_command": lambda: (
        train.train_command, {"config": "nowhere.toml", "flags": {"data-name": "nosuch"}}
    ),
    "train.write_report": lambda: (train.write_report, {"run": "nowhere", "html": "a.html"}),
    "lab.Chart": lambda: (
        lab.Chart, {"title": "a", "x": "b", "y": "c", "lines": {"d": [[1.0, 2.0]]}, "log": False}
    ),
    "lab.Claim": lambda: (
        lab.Claim,
        {"row": "E5", "says": "it is {value}", "value": 2.0, "of": "it", "within": lab.Equal(0.1),
         "right": "no"},
    ),
    "lab.Depth": lambda: (lab.Depth, {"name": "quick", "tell": print}),
    "lab.Depth.pick": lambda: (lab.Depth("quick").pick, {"quick": 1, "full": 2}),
    "lab.Equal": lambda: (lab.Equal, {"within": 0.1}),
    "lab.Near": lambda: (lab.Near, {"share": 0.1}),
    "lab.Experiment": lambda: (
        lab.Experiment,
        {"name": "a", "asks": "b", "claims": (CLAIM,), "measure": lambda depth: MEASUREMENT},
    ),
    "lab.Grid": lambda: (
        lab.Grid, {"title": "a", "values": [[1.0, 2.0]], "rows": ["b"], "columns": ["c", "d"]}
    ),
    "lab.Measured": lambda: (lab.Measured, {"samples": (1.0, 2.0), "reason": ""}),
    "lab.Measurement": lambda: (lab.Measurement, {"values": {"a": lab.exact(1)}, "figures": {}}),
    "lab.Part": lambda: (
        lab.Part, {"claim": CLAIM, "measured": lab.exact(2), "verdict": "open", "reason": "few"}
    ),
    "lab.Statement": lambda: (
        lab.Statement, {"document": "1", "place": "a", "about": "b", "experiment": "c"}
    ),
    "lab.exact": lambda: (lab.exact, {"value": 3}),
    "lab.experiment": lambda: (lab.experiment, {"name": "argmax"}),
    "lab.judge": lambda: (lab.judge, {"claim": CLAIM, "measurement": MEASUREMENT}),
    "lab.ledger_json": lambda: (lab.ledger_json, {"measurements": {}}),
    "lab.ledger_page": lambda: (lab.ledger_page, {"measurements": {}}),
    "lab.measurements_below": lambda: (lab.measurements_below, {"out": Path("nowhere")}),
    "lab.run_experiments": lambda: (
        measured, {"names": ["nosuch"], "depth": "quick", "again": False}
    ),
    "lab.sampled": lambda: (lab.sampled, {"values": [1.0, 2.0]}),
    "lab.unmeasured": lambda: (lab.unmeasured, {"reason": "no time"}),
    "laws.Cells": lambda: (laws.Cells, {"rows": (0, 1), "columns": (2, 3)}),
    "laws.Finding": lambda: (
        laws.Finding,
        {"law": "purity", "verdict": "holds", "deviation": 0.1, "floor": 0.1, "note": "a"},
    ),
    "laws.Law": lambda: (laws.Law, dict(LAW)),
    "laws.Limits": lambda: (laws.Limits, {"seconds": 3.0, "mebibytes": 100}),
    "laws.Outcome": lambda: (laws.Outcome, {"deviation": 0.1, "note": "a", "advice": False}),
    "laws.Report.law": lambda: (laws.Report("a", "decoder", [FINDING]).law, {"name": "purity"}),
    "laws.Setting": lambda: (
        laws.Setting, {"batch": 3, "length": 13, "weights": "random", "train": False}
    ),
    "laws.TrainingLaw": lambda: (
        laws.TrainingLaw,
        {"name": "a", "says": "b", "why": "c", "how": "d", "judge": lambda recording: FINDING},
    ),
    "laws.asked": lambda: (
        laws.asked, {"laws": ["purity"], "kind": "decoder", "inputs": [], "seed": 0}
    ),
    "laws.assert_lawful": lambda: (laws.assert_lawful, {"model": linear(), "laws": ["purity"]}),
    "laws.cells": lambda: (laws.cells, {"pairs": PAIRS}),
    "laws.check_all": lambda: (
        laws.check_all,
        {"targets": [], "laws": ["purity"], "seed": 0, "workers": 1, "limits": laws.Limits()},
    ),
    "laws.described": lambda: (laws.described, {"name": "purity"}),
    "laws.deviation": lambda: (laws.deviation, {"first": array(2, 3), "second": array(2, 3)}),
    "laws.duplicate": lambda: (laws.duplicate, {"model": linear(), "wide": True}),
    "laws.every_cell": lambda: (laws.every_cell, {"rows": [0, 1], "positions": [2]}),
    "laws.explained": lambda: (laws.explained, {"finding": FINDING, "known": False}),
    "laws.laws_named": lambda: (laws.laws_named, {"name": "causal"}),
    "laws.markdown_table": lambda: (laws.markdown_table, {"laws": laws.LAWS[:2]}),
    "laws.randomised": lambda: (randomised, {"model": linear(), "seed": 0}),
    "laws.rows": lambda: (laws.rows, {"indices": [0, 1]}),
    "laws.stream": lambda: (
        lambda targets, laws, seed: list(laws_stream(targets, laws, seed)),
        {"targets": [], "laws": ["purity"], "seed": 0},
    ),
    "laws.terminal_table": lambda: (laws.terminal_table, {"laws": laws.LAWS[:2]}),
}  # fmt: skip
laws_stream = laws.stream
# Whose good call is refused, for it would read or train.
REFUSED = {
    "train.load_mnist", "train.run", "train.check_command", "train.train_command",
    "train.write_report", "lab.run_experiments",
}  # fmt: skip
# What may be anything, or is one thing of several.
TAKES = {
    **dict.fromkeys(
        [("lab.Claim", "value"), ("lab.exact", "value"), ("lab.Depth.pick", "quick"),
         ("lab.Depth.pick", "full")],
        sweep.MUST_FAIL,
    ),
    ("lab.run_experiments", "names"): {"an empty list", "a dict"},  # nothing is run
    ("train.check_command", "config"): {"None"},  # reported as not built
}  # fmt: skip
APART = {
    "train": {
        "ConfigError", "DataError", "TrainError",
        "Data", "Trainer",  # made by load_data and run
        "listing",  # takes nothing
    },
    "lab": {
        "DOCUMENTS", "EXPERIMENTS", "ROWS", "AtLeast", "AtMost", "list_experiments",
        "write_ledger",  # writes wherever it is told; `qk lab --out` is tried with every text
    },
    "laws": {
        "LAWS", "LEAK", "TRAINING_LAWS", "BadCallError", "RefusalError", "leaky_model",
        "Report", "Subject", "check", "check_training",  # swept as names of querykey
        # What a law is handed, and hands back: made by us.
        "Evidence", "ModelFacts", "Run", "Runner", "Trial", "every_model", "everything", "once",
        "plain_settings", "lifted",
        "Outputs", "run_command", "run_training_command",  # of the command line, tried with texts
    },
}  # fmt: skip
ROOMS = {"train": train, "lab": lab, "laws": laws}
