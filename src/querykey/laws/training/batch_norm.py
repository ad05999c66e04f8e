"""Accumulated batches give the answers of one large batch; batch norm is why they do not."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn

from querykey.laws.blaming.guilty_module import source_of
from querykey.laws.finding import Finding
from querykey.laws.private import BATCH_NORMS
from querykey.laws.training.events import Forward
from querykey.laws.training.law import TrainingLaw
from querykey.laws.training.recording import Recording
from querykey.laws.training.weighting import accumulated
from querykey.laws.understanding.float64 import lifted
from querykey.laws.understanding.outputs import answers

NAME = "training.batch-norm"
APART = 1e-6  # relative: what float64 leaves of a lawful difference is far smaller


def batch_norm(recording: Recording) -> Finding:
    """Judge whether the accumulated batches of the first step answer as one batch of all would."""
    group = next(iter(accumulated(recording)), None)
    if group is None:
        note = "no step adds up the gradients of several batches"
        return Finding(NAME, "not-applicable", note=note)
    forwards = [f for p in group.passes for f in p.forwards if f.inputs is not None]
    modules = {id(f.module): f.module for f in forwards}
    if len(modules) != 1 or len(forwards) < 2:
        note = "no one model answers for every batch of the first step"
        return Finding(NAME, "not-applicable", note=note)
    model = next(iter(modules.values()))
    try:
        joined = _joined([forward.inputs for forward in forwards])
        with lifted():
            apart = _difference(model, forwards, joined, still=())
    except Exception as error:
        note = f"the batches of a step cannot be joined to one: {type(error).__name__}"
        return Finding(NAME, "not-applicable", note=note)
    if apart <= APART:
        return Finding(NAME, "holds", apart)
    sizes = f"({forwards[0].rows}, {len(forwards)}) and ({sum(f.rows for f in forwards)}, 1)"
    with lifted():
        frozen = _difference(model, forwards, joined, still=BATCH_NORMS)
    if math.isnan(apart):
        note = "the same call gives another answer each time, so no comparison means anything"
        return Finding(NAME, "not-applicable", note=note)
    if frozen <= APART:
        path, module = next(
            (p, m) for p, m in model.named_modules() if isinstance(m, BATCH_NORMS) and m.training
        )
        note = (
            f"(rows, batches) of {sizes} give answers that are {apart:.2g} apart, relative to "
            f"their size, because of batch norm, which takes its statistics from each batch alone. "
            f"With fixed statistics they agree; a layer or group norm does not see the batch"
        )
        return Finding(
            NAME, "violated", apart, module=path or "(model)", source=source_of(module), note=note
        )
    note = (
        f"(rows, batches) of {sizes} give answers that are {apart:.2g} apart, and not because of "
        f"batch norm: something else mixes rows; qk.check names it"
    )
    return Finding(NAME, "advice", apart, note=note)


def _joined(calls: list[Any]) -> tuple[Any, Any]:
    """Return the arguments of several calls as those of one, joined along the first axis."""
    args = tuple(_joint(values) for values in zip(*(args for args, _ in calls), strict=True))
    names = calls[0][1].keys()
    return args, {name: _joint([kwargs[name] for _, kwargs in calls]) for name in names}


def _joint(values: Any) -> Any:
    values = list(values)
    if isinstance(values[0], torch.Tensor):
        return torch.cat(values) if values[0].dim() else values[0]
    if isinstance(values[0], dict):
        return {key: _joint([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple | list):
        return type(values[0])(_joint(parts) for parts in zip(*values, strict=True))
    return values[0]


def _difference(
    model: nn.Module, forwards: list[Forward], joined: Any, still: tuple[type, ...]
) -> float:
    """Return how far the answers of batches are from those of one, relative to their size.

    A copy answers, with what is `still` in evaluation mode; NaN where it answers by chance.
    """
    twin = copy.deepcopy(model).double().train()
    for copied, module in zip(twin.modules(), model.modules(), strict=True):
        copied.training = module.training and not isinstance(copied, still)
    with torch.no_grad():
        parts = [_answer(twin, forward.inputs) for forward in forwards]
        whole = _answer(twin, joined)
        if not torch.allclose(_answer(twin, joined), whole, rtol=APART, atol=APART):
            return math.nan
    apart = (torch.cat(parts) - whole).abs().max()
    return float(apart / whole.abs().max().clamp(min=1e-30))


def _answer(model: nn.Module, inputs: Any) -> torch.Tensor:
    """Return the first answer of a model that has rows."""
    args, kwargs = inputs
    output = model(*_doubled(args), **_doubled(kwargs))
    return next(tensor for _, tensor in answers(output) if tensor.dim())


def _doubled(value: Any) -> Any:
    """Return arguments with every floating tensor in float64."""
    if isinstance(value, torch.Tensor):
        return value.detach().double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: _doubled(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_doubled(part) for part in value)
    return value


LAWS = (
    TrainingLaw(
        NAME,
        says="Accumulated batches give the answers of one large batch: no batch norm sees them.",
        why="Otherwise the batch size that fits into memory changes what is trained (mmcv 1869).",
        how="A copy of the model answers to the batches of one step and to all of them joined, "
        "with batch norm as it is and with fixed statistics.",
        judge=batch_norm,
    ),
)
