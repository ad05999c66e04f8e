"""Under autocast a model runs, and answers and gradients err about as much as rounding does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import attrgetter

import torch
from torch import nn

from querykey.laws.catalogue import sweeps
from querykey.laws.catalogue.derivatives import backward, score, trained
from querykey.laws.catalogue.precision import ROOM, SLACK, cast_inputs, casts, copies, rounding
from querykey.laws.law import Law
from querykey.laws.run import Conditions, Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Outcome
from querykey.laws.understanding.float64 import duplicate
from querykey.words import last_line

LOW = torch.bfloat16
BARE = Conditions(bare=True)
DRAWS = 3  # of inputs; what one of them does not show is chance


def autocast(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Compare a float32 copy under autocast with the same weights in float64.

    A gradient jumps where what enters a unit is nearly 0, so only what several inputs show counts.
    """
    outcomes = _outcomes(runner, setting, 0)
    for seed in range(1, DRAWS):
        if not any(runner.facts.threshold < outcome.deviation < math.inf for outcome in outcomes):
            break
        both = zip(outcomes, _outcomes(runner, setting, seed), strict=False)
        outcomes = [min(pair, key=attrgetter("deviation")) for pair in both]
    yield from outcomes


def _outcomes(runner: Runner, setting: Setting, seed: int) -> list[Outcome]:
    """Return the errors of answers and of gradients for one draw of inputs, or what is raised."""
    inputs, device = runner.inputs(setting, seed), runner.copies.device.type
    model, exact = copies(runner, torch.float32)
    narrow, wide = cast_inputs(inputs, torch.float32), cast_inputs(inputs, torch.float64)
    high = _trained(runner, exact, wide, setting)
    again = duplicate(model)  # what the model keeps from a pass may hold the graph of that pass
    with rounding(again, LOW):
        near = _trained(runner, again, wide, setting)
    bare = Setting(batch=setting.batch, length=setting.length, conditions=BARE)
    try:
        with torch.autocast(device, LOW):
            low = _trained(runner, model, narrow, bare)
    except Exception as raised:
        error = raised.__cause__ or raised
        note = f"under autocast to bfloat16 it raises {last_line(error)[:160]}"
        # An exception is loud, so it is no breach.
        return [Outcome(math.inf, note, setting, advice=True)]
    outcomes = []
    for index, what in enumerate(("answers", "gradients")):
        error, budget = (_error(part[index], high[index]) for part in (low, near))
        budget = ROOM * budget + SLACK[LOW]
        note = (
            f"under autocast to bfloat16 {what} are off by {error:.1e}; rounding the output of "
            f"every module explains at most {budget:.1e}"
        )
        outcomes.append(Outcome(error / budget * runner.facts.threshold, note, setting))
    return outcomes


Answers = tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]


def _trained(runner: Runner, model: nn.Module, inputs: Inputs, setting: Setting) -> Answers:
    """Return the answer of a copy, and the gradient of every parameter."""
    model.zero_grad(set_to_none=True)
    answer = runner.using(model, setting).answer(Run(inputs, setting))
    backward(score(answer.double()))
    gradients = {n: _real(p.grad) for n, p in trained(model) if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return {"answer": answer.detach().double()}, gradients


def _real(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient in float64, a complex one as its two parts."""
    parts = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    return parts.double().cpu()


def _error(first: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """Return the error of all parts together, relative to their size; infinite where not finite."""
    if set(first) != set(exact):
        return math.inf
    far = sum(float((first[n] - value).pow(2).sum()) for n, value in exact.items())
    size = sum(float(value.pow(2).sum()) for value in exact.values())
    error = math.sqrt(far / size) if size else math.sqrt(far)
    return error if math.isfinite(error) else math.inf


LAWS = (
    Law(
        "paths.autocast",
        says="Under autocast a model runs, and answers and gradients err as rounding does.",
        why="Otherwise mixed precision trains a worse model: a sum or a mask left its range.",
        how="A float32 copy runs under torch.autocast to bfloat16; its error may be 16 times that "
        "of rounding every module's output (dtype.agree casts the weights, and asks for no "
        "gradients).",
        trials=autocast,
        applies=casts,
        sweep=sweeps.once,
    ),
)
