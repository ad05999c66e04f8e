"""Activation checkpointing: what is computed again in the backward pass is what was computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from querykey.laws.catalogue.gradients import has_weights
from querykey.laws.catalogue.paths import compared, gradients, some_padded
from querykey.laws.catalogue.precision import cast_inputs
from querykey.laws.law import Law, RefusalError
from querykey.laws.private import is_of_library, is_pretrained
from querykey.laws.run import Conditions, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Outcome
from querykey.laws.understanding.copies import turn_dropout_on
from querykey.laws.understanding.facts import NARROW
from querykey.laws.understanding.float64 import duplicate, randomise
from querykey.words import last_line

FLAGS = re.compile(
    r"^_?(use_|do_|grad_|gradient_|activation_)?(grad_|gradient_|activation_)?"
    r"(checkpoint(ing|s)?|ckpt|remat)$"
)
SWITCHES = ("gradient_checkpointing_enable", "set_grad_checkpointing", "enable_checkpointing")
TRAINING = Setting(train=True, conditions=Conditions(bare=True))


def switch(model: nn.Module) -> Callable[[nn.Module], None] | None:
    """Return what turns a model's own activation checkpointing on, or None where it has none."""
    for name in SWITCHES:
        if callable(getattr(model, name, None)):
            if is_pretrained(model) and not getattr(model, "supports_gradient_checkpointing", True):
                return None
            return lambda m, name=name: _called(m, name)
    held = [(m, n) for m in holders(model) for n, v in vars(m).items()
               if FLAGS.match(n) and isinstance(v, bool)]  # fmt: skip
    return _flagged if held else None


def holders(model: nn.Module) -> Iterator[Any]:
    """Yield what may hold a flag: modules and their configurations."""
    for module in model.modules():
        yield module
        for name in ("config", "cfg", "args"):
            held = getattr(module, name, None)
            if hasattr(held, "__dict__") and not isinstance(held, nn.Module):
                yield held


def _called(model: Any, name: str) -> None:
    if is_pretrained(model):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        getattr(model, name)()


def _flagged(model: nn.Module) -> None:
    for holder in holders(model):
        for name, value in list(vars(holder).items()):
            if FLAGS.match(name) and isinstance(value, bool):
                object.__setattr__(holder, name, True)


def can_checkpoint(runner: Runner) -> str:
    """Return why the law does not apply: no weights, or no switch for checkpointing."""
    if runner.copies.device.type != "cpu":
        return "on a GPU what is recomputed runs in another thread, where nothing is intercepted"
    with suppress(Exception):
        if switch(runner.copies.model):
            return has_weights(runner)
    return "it has no switch for activation checkpointing"


def checkpoint(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Turn activation checkpointing on: training gives the same answers and gradients.

    What a backward pass computes again is not intercepted, so both runs are bare, in float32, with
    dropout at work: the same operations on the same random numbers.
    """
    inputs, keep = some_padded(runner, setting)
    run = Run(cast_inputs(inputs, torch.float32), setting)
    model = duplicate(runner.copies.model, wide=False).float()
    randomise(model, runner.copies.recipe.seed)
    turn_dropout_on(model)
    other = duplicate(model, wide=False)
    turn_on = switch(other)
    assert turn_on is not None
    turn_on(other)
    try:
        plain = gradients(runner.using(model.train(), setting), run, keep)
    except Exception as error:
        raise RefusalError(f"the model raised {last_line(error)[:160]}") from error
    try:
        recomputed = gradients(runner.using(other.train(), setting), run, keep)
    except Exception as error:
        note = f"with activation checkpointing it raises {last_line(error)[:160]}"
        yield Outcome(float("inf"), note, setting, advice=True)  # an exception is loud
        return
    what = "when activations are checkpointed"
    outcome = compared(runner, what, plain, recomputed, keep, setting, NARROW)
    # transformers' own layers may draw which of them are left out, and in another order.
    yield replace(outcome, advice=is_of_library(runner.copies.model))


def training(runner: Runner) -> Iterator[Setting]:
    """Try training mode alone, in which activations are recomputed."""
    yield TRAINING


LAWS = (
    Law(
        "paths.checkpoint",
        says="Activation checkpointing changes neither answers nor gradients.",
        why="Otherwise saving memory trains another model: a second path loses an argument.",
        how="The model's own switch is turned on in training mode, on padded rows where there is a "
        "mask; answers and the gradient of every parameter are compared.",
        trials=checkpoint,
        applies=can_checkpoint,
        sweep=training,
    ),
)
