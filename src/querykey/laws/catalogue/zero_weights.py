"""Weights that are zero at the start, and that no number of steps moves.

One factor of a product may begin at zero: it gets a gradient, and after its first step so does the
other. Where both are zero, neither ever gets one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from querykey.laws.blaming.guilty_module import guilty_part
from querykey.laws.catalogue.derivatives import backward, score, trained
from querykey.laws.catalogue.uses import Uses
from querykey.laws.run import Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome
from querykey.laws.understanding.outputs import tensors

OWN = Setting(weights="own")
STEPS = 4  # a last layer of zeros, then gates of zeros, then what is behind them, and one to spare
LONGER = 300  # tokens, so that each of several experts gets some
STEP = 0.01  # how far a step moves the weight with the largest derivative


def zeros(model: nn.Module) -> list[str]:
    """Return the trained matrices that hold nothing but zeros."""
    return [n for n, p in trained(model) if p.dim() > 1 and p.numel() and not bool(p.any())]


def own_where_zero(runner: Runner) -> Iterator[Setting]:
    """Yield the call with the model's own weights, where several of these are zero."""
    if len(zeros(runner.copies.model)) > 1:
        yield OWN


def stuck(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Take a few steps from the model's own weights: every matrix of zeros must move."""
    model = runner.copies.of(setting)
    still = set(zeros(model))
    if len(still) < 2:
        return
    kept = [p.detach().clone() for p in model.parameters()]
    try:
        still &= _never_moved(runner, setting, still)
    finally:
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), kept, strict=True):
                parameter.copy_(value)
    if not still:
        return
    first, *others = [name for name, _ in model.named_parameters() if name in still]
    more = f" and {len(others)} more" if others else ""
    note = (
        f"{first}{more} are zero at the start and get no gradient, after {STEPS} steps neither: "
        "a product of two zeros gives none to either, so they never learn"
    )
    owner = guilty_part(runner.copies.model, first.rpartition(".")[0])
    yield Outcome(1.0, note, setting, evidence=Evidence(module=owner))


def _never_moved(runner: Runner, setting: Setting, still: set[str]) -> set[str]:
    """Return which of these weights are read and get no gradient in any of some steps."""
    model, uses = runner.copies.of(setting), Uses()
    lengths = [setting.length] * STEPS + [LONGER] * runner.signature.varies
    with runner.copies.settling():
        for seed, length in enumerate(lengths):
            sized = replace(setting, length=length)
            model.zero_grad(set_to_none=True)
            try:
                inputs = runner.complete(Run(runner.inputs(sized, seed), sized))
                with uses:
                    output = runner.call(inputs, sized)
            except Exception:
                if length == setting.length:
                    raise
                break  # it takes no such length
            parts = [score(t).double() for _, t in tensors(output) if t.requires_grad]
            if not parts:
                return set()  # all of it is told of
            backward(torch.stack(parts).sum())
            still = still & _unmoved_after_a_step(model)
            if not still:
                break
    return {n for n, p in trained(model) if n in still and id(p) in uses.ids}


def _unmoved_after_a_step(model: nn.Module) -> set[str]:
    """Move every weight against its derivative, and return those that have none."""
    unmoved = set()
    with torch.no_grad():
        for name, weight in trained(model):
            if weight.grad is None or not bool(weight.grad.any()):
                unmoved.add(name)
            else:
                weight -= STEP * weight.grad / weight.grad.abs().max()
    return unmoved
