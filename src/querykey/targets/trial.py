"""Run a model once on examples, quietly, in evaluation mode, and leave it as it was."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

from querykey.targets.inputs import Input, examples

Gather = Callable[[dict[str, Any]], Any]


def trial(model: nn.Module, inputs: tuple[Input, ...], gather: Gather | None = None) -> object:
    """Run forward once on examples of its inputs, the highest id among them; return the output."""
    values = examples(inputs, batch=2, length=7, seed=0)
    for one in inputs:
        if one.kind == "tokens" and one.required:
            values[one.name].view(-1)[0] = one.high - 1
    return run_quietly(model, values, gather)


def run_quietly(model: nn.Module, values: dict[str, Any], gather: Gather | None = None) -> object:
    """Run forward without gradients, on the model's device and in its precision.

    `gather` makes one argument of the values, for a model that takes them so.
    """
    values = {name: _like_weights(value, model) for name, value in values.items()}
    with evaluating(model), torch.no_grad(), quiet():
        return model(gather(values)) if gather else model(**values)


def _like_weights(value: Any, model: nn.Module) -> Any:
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None or not isinstance(value, torch.Tensor):
        return value
    return value.to(weight.device, weight.dtype if value.is_floating_point() else value.dtype)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress logs and warnings of torch and the model; a failure is one sentence anyway."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode, and afterwards each back into its own mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def floating(output: Any) -> Iterator[torch.Tensor]:
    """Yield every floating tensor in a model's output, in order."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from floating(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from floating(value)
    elif is_dataclass(output):
        yield from floating([getattr(output, field.name) for field in fields(output)])
