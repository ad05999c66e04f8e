"""The experiments by name; each is the constant EXPERIMENT of its file in `experiments/`."""

from __future__ import annotations

from importlib import import_module

from querykey.errors import QuerykeyError
from querykey.lab.experiment import Experiment
from querykey.words import checked, suggest

# Name to file; a file is imported when its experiment is asked for.
EXPERIMENTS = {
    "block": "querykey.lab.experiments.block",
    "flops": "querykey.lab.experiments.flops",
    "overflow": "querykey.lab.experiments.overflow",
    "saturation": "querykey.lab.experiments.saturation",
    "receptive-field": "querykey.lab.experiments.receptive_field",
    "masks": "querykey.lab.experiments.masks",
    "complexity": "querykey.lab.experiments.complexity",
    "norms": "querykey.lab.experiments.norms",
    "heads": "querykey.lab.experiments.heads",
    "span": "querykey.lab.experiments.span",
    "grid": "querykey.lab.experiments.grid",
    "counts": "querykey.lab.experiments.counts",
    "equivariance": "querykey.lab.experiments.equivariance",
    "incremental": "querykey.lab.experiments.incremental",
    "pretraining": "querykey.lab.experiments.pretraining",
    "patches": "querykey.lab.experiments.patches",
    "davit": "querykey.lab.experiments.davit",
    "kernel": "querykey.lab.experiments.kernel",
    "sizes": "querykey.lab.experiments.sizes",
    "pca": "querykey.lab.experiments.pca",
    "orthonormal": "querykey.lab.experiments.orthonormal",
    "argmax": "querykey.lab.experiments.argmax",
    "crossover": "querykey.lab.experiments.crossover",
    "depth": "querykey.lab.experiments.depth",
    "autoencoder": "querykey.lab.experiments.autoencoder",
    "accumulation": "querykey.lab.experiments.accumulation",
    "zero-grad": "querykey.lab.experiments.zero_grad",
}


class NoExperimentError(QuerykeyError):
    """Says that no experiment has a name, and which do."""


@checked
def experiment(name: str) -> Experiment:
    """Return the experiment of a name."""
    if name not in EXPERIMENTS:
        raise NoExperimentError(
            f"there is no experiment `{name}`{suggest(name, EXPERIMENTS)} "
            f"({', '.join(EXPERIMENTS)})"
        )
    return import_module(EXPERIMENTS[name]).EXPERIMENT
