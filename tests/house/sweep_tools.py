"""Good calls of every public name of `costs`, `targets` and `show`, which the sweep spoils."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tests.house import sweep
from tests.house.sweep import Good, array, linear

import querykey as qk
from querykey import costs, show, targets


@cache
def report() -> costs.CostReport:
    return qk.cost(linear(), qk.array("n", 3))


@cache
def view() -> Any:
    return costs.view_of(report())


@cache
def target() -> targets.Target:
    return targets.build("gpt")


def listed(output: Any) -> list[torch.Tensor]:
    return list(targets.floating(output))


def inside(context: Callable[..., Any]) -> Callable[..., str]:
    """Return a function that enters a context and leaves it."""

    def enter(**arguments: Any) -> str:
        with context(**arguments):
            return "entered"

    return enter


def described(target: Any) -> int:
    return len(targets.describe(target))


SIZES = {"n": 4}

# A good call of every public name. A name with a dot is a method of the object that is made.
GOOD: dict[str, Callable[[], Good]] = {
    "costs.CostReport.at": lambda: (report().at, {"n": 4}),
    "costs.CostReport.bottleneck": lambda: (
        report().bottleneck, {"growing": "n", "of": "flops.forward"}
    ),
    "costs.CostReport.compare": lambda: (
        report().compare, {"other": report(), "size": "n", "of": "flops.forward"}
    ),
    "costs.CostReport.largest": lambda: (
        report().largest, {"size": "n", "memory": "1 GB", "optimizer": "adamw"}
    ),
    "costs.CostReport.order": lambda: (
        report().order, {"name": "flops.forward", "given": {}, "serial": ()}
    ),
    "costs.CostReport.peak": lambda: (report().peak, {"phase": "train", "n": 4}),
    "costs.CostReport.span_with": lambda: (report().span_with, {"serial": ("sum",)}),
    "costs.CostReport.time": lambda: (
        report().time, {"device": "h200", "dtype": "bfloat16", "n": 4}
    ),
    "costs.CostReport.training_bytes": lambda: (
        report().training_bytes,
        {"optimizer": "adamw", "dtype": "bfloat16", "checkpointing": False, "sharding": 2},
    ),
    "costs.as_json": lambda: (costs.as_json, {"report": report(), "view": view()}),
    "costs.clock_of": lambda: (costs.clock_of, {"device": "cpu"}),
    "costs.cost": lambda: (
        costs.cost,
        {"model": linear(), "inputs": qk.array("n", 3), "backward": True, "attention": "flash",
         "phase": "train", "loss": torch.sum, "engine": "auto", "sizes": {"n": 4},
         "near": {"n": 4}, "formulas": {}, "over": None},
    ),
    "costs.cost_of_target": lambda: (
        costs.cost_of_target,
        {"name": "autoencoder", "fields": ["latent=4"], "inputs": ["x=array(n,64)"], "at": "n=4",
         "attention": "flash", "phase": "train", "over": ""},
    ),
    "costs.plotted": lambda: (
        costs.plotted,
        {"report": report(), "other": None, "names": ["a", "b"], "text": "n=1:8"},
    ),
    "costs.refuse_page": lambda: (costs.refuse_page, {"file": "a.html"}),
    "costs.tables": lambda: (costs.tables, {"report": report(), "view": view()}),
    "costs.totals": lambda: (costs.totals, {"report": report()}),
    "costs.view_of": lambda: (
        costs.view_of,
        {"report": report(), "modules": True, "full": True, "device": "", "dtype": "",
         "other": None, "predict": False},
    ),
    "costs.write_page": lambda: (
        costs.write_page,
        {"report": report(), "target": "a", "file": "a.html", "view": view(), "figures": ["<svg>"]},
    ),
    "targets.argument_names": lambda: (targets.argument_names, {"model": linear()}),
    "targets.by_name": lambda: (targets.by_name, {"name": "mask"}),
    "targets.takes_batch": lambda: (targets.takes_batch, {"model": linear()}),
    "targets.TakesBatch": lambda: (
        targets.TakesBatch,
        {"model": linear(), "argument": "batch", "inputs": target().inputs, "optional": ("mask",),
         "attributes": False},
    ),
    "targets.Input": lambda: (
        targets.Input,
        {"name": "x", "kind": "array", "axes": ("n", 3), "low": 0, "high": 5, "required": True,
         "real": 1},
    ),
    "targets.Input.make": lambda: (
        targets.Input("x", "array", ("n", 3)).make,
        {"sizes": {"n": 4}, "generator": torch.Generator().manual_seed(0)},
    ),
    "targets.Target.example": lambda: (target().example, {"batch": 2, "length": 7, "seed": 0}),
    "targets.Target.run": lambda: (target().run, {"example": target().example()}),
    "targets.build": lambda: (targets.build, {"name": "autoencoder", "seed": 0}),
    "targets.count_parameters": lambda: (targets.count_parameters, {"model": linear()}),
    "targets.describe": lambda: (described, {"target": target()}),
    "targets.field_of": lambda: (
        targets.field_of, {"model": target().model, "field": "layers"}
    ),
    "targets.find_inputs": lambda: (targets.find_inputs, {"model": linear()}),
    "targets.floating": lambda: (listed, {"output": [array(3), {"a": array(2)}]}),
    "targets.function_at": lambda: (targets.function_at, {"where": "nosuch.py:run"}),
    "targets.generates": lambda: (targets.generates, {"model": target().model}),
    "targets.is_hugging_face": lambda: (targets.is_hugging_face, {"model": linear()}),
    "targets.is_lazy": lambda: (targets.is_lazy, {"model": linear()}),
    "targets.outline": lambda: (targets.outline, {"name": "gpt", "fields": {"layers": 1}}),
    "targets.parse_fields": lambda: (targets.parse_fields, {"words": ["n_layer=2", "a=b"]}),
    "targets.rebuilt": lambda: (
        targets.rebuilt, {"model": target().model, "fields": {"layers": 1}}
    ),
    "targets.save_pretrained": lambda: (
        targets.save_pretrained, {"model": target().model, "folder": Path("saved")}
    ),
    "targets.seeded": lambda: (inside(targets.seeded), {"seed": 0}),
    "targets.seeded_outside_torch": lambda: (
        inside(targets.seeded_outside_torch), {"seed": 0}
    ),
    "targets.signature_of": lambda: (targets.signature_of, {"function": linear}),
    "targets.source_of": lambda: (targets.source_of, {"name": "gpt", "fields": {"layers": 1}}),
    "targets.stated_inputs": lambda: (
        targets.stated_inputs,
        {"texts": ["ids=tokens(batch,seq)"], "names": ["ids"], "words": 7},
    ),
    "targets.uncompiled": lambda: (targets.uncompiled, {"model": linear()}),
    "show.Series": lambda: (
        show.Series, {"name": "a", "points": [(1.0, 2.0), (2.0, 3.0)], "joined": True}
    ),
    "show.cell_chart": lambda: (
        show.cell_chart,
        {"values": [[1.0, 2.0]], "rows": ["a"], "columns": ["b", "c"], "title": "d"},
    ),
    "show.code": lambda: (show.code, {"words": "a < b"}),
    "show.figure": lambda: (show.figure, {"svg": "<svg/>", "caption": "a"}),
    "show.grid": lambda: (show.grid, {"columns": ["a", "b"], "rows": [[1, "x"]]}),
    "show.group_name": lambda: (show.group_name, {"names": ["h.0", "h.1"]}),
    "show.fold_numbered": lambda: (
        show.fold_numbered, {"names": ["h.0", "h.1"], "equal": lambda a, b: True}
    ),
    "show.heading": lambda: (show.heading, {"words": "a"}),
    "show.line_chart": lambda: (
        show.line_chart,
        {"series": [show.Series("a", [(1.0, 2.0), (2.0, 3.0)])], "x": "b", "y": "c",
         "title": "d", "log": True},
    ),
    "show.make_folder": lambda: (show.make_folder, {"path": Path("a")}),
    "show.number": lambda: (show.number, {"value": 3}),
    "show.page": lambda: (lambda title, body: show.page(title, body), {"title": "a", "body": "b"}),
    "show.print_table": lambda: (
        show.print_table, {"columns": ["a", "b"], "rows": [[1, "x"]], "title": "c"}
    ),
    "show.replacing": lambda: (inside(show.replacing), {"path": Path("nowhere") / "a"}),
    "show.table": lambda: (
        show.table, {"columns": ["a", "b"], "rows": [[1, "x"]], "title": "c"}
    ),
    "show.text": lambda: (show.text, {"words": "a"}),
    "show.unwritable": lambda: (show.unwritable, {"file": Path("a")}),
    "show.write_file": lambda: (show.write_file, {"path": "a.txt", "text": "b"}),
}  # fmt: skip
# Whose good call is refused: there is no such file or folder, or the model is not of transformers.
REFUSED = {"targets.save_pretrained", "targets.function_at", "show.replacing"}
# What may be anything, or is one thing of several.
TAKES: dict[tuple[str, str], Any] = {
    ("targets.floating", "output"): sweep.MUST_FAIL,  # whatever a model returns
}
APART = {
    "costs": {
        "Calibration", "CostError", "CostReport",  # made by calibrate and cost
        "array", "images", "tokens",  # swept as names of querykey
        "calibrate", "calibrated",  # which measure for a minute
    },
    "targets": {
        "MODEL_PRESETS", "PRESETS", "TORCH_PRESETS", "WAYS", "TargetError",
        "Target",  # made by build
        "pairs", "preload", "quiet",  # take nothing
        "greedy",  # of a model and an input that build has made
    },
    "show": {
        "Formula", "WriteError",
        "console", "stdout", "until_the_reader_leaves",  # take nothing
    },
}  # fmt: skip
ROOMS = {"costs": costs, "targets": targets, "show": show}
