"""Weights that are NaN or infinite, and the answers that they spoil."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from querykey.laws.blaming.guilty_module import guilty_part
from querykey.laws.run import Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome
from querykey.laws.understanding.copies import not_finite
from querykey.laws.understanding.float64 import duplicate
from querykey.words import plural

OWN = Setting(weights="own")


def spoiled(runner: Runner) -> list[tuple[str, torch.Tensor]]:
    """Return the weights that are not finite, where more answers are finite with zeros instead."""
    weights = runner.copies.not_finite
    if not weights:
        return []
    answer = runner.attempt(runner.inputs(), OWN)
    if answer is None or bool(answer.isfinite().all()):
        return []
    mended = duplicate(runner.copies.of(OWN), wide=False)
    with torch.no_grad():
        for _, tensor in list(not_finite(mended)):
            tensor.nan_to_num_(0.0, 0.0, 0.0)
    other = runner.using(mended, OWN).attempt(runner.inputs(), OWN)
    helped = other is None or int(other.isfinite().sum()) > int(answer.isfinite().sum())
    return weights if helped else []


def own_where_spoiled(runner: Runner) -> Iterator[Setting]:
    """Yield the call with the model's own weights, where these are not finite."""
    if spoiled(runner):
        yield OWN


def told(runner: Runner, weights: list[tuple[str, torch.Tensor]]) -> Outcome:
    """Return the breach of a model whose own weights are not finite."""
    name, tensor = weights[0]
    count = int((~tensor.isfinite()).sum())
    more = f", and of {plural(len(weights) - 1, 'more tensor')}" if len(weights) > 1 else ""
    note = (
        f"{count} of {tensor.numel()} numbers of {name}{more} are not finite, and so are answers "
        "with the model's own weights: nothing can be trained"
    )
    owner = guilty_part(runner.copies.model, name.rpartition(".")[0])
    return Outcome(1.0, note, OWN, evidence=Evidence(module=owner))
