"""In a lower precision a model runs, and errs about as much as rounding does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import nn

from querykey.laws.blaming.blame import blame_exception
from querykey.laws.catalogue import padding, sweeps
from querykey.laws.catalogue.batch import whole_rows
from querykey.laws.catalogue.determinism import is_deterministic
from querykey.laws.catalogue.far_positions import (
    COUNTINGS,
    FAR,
    CountedFarOn,
    from_far_on,
    tables_that_repeat,
)
from querykey.laws.law import Law
from querykey.laws.run import Conditions, Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome
from querykey.laws.understanding.float64 import duplicate, randomise, rounded
from querykey.words import last_line

ROOM = 16.0  # the budget: so many times what rounding the output of every module does,
SLACK = {torch.float32: 2e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}  # plus this


def casts(runner: Runner) -> str:
    """Return why the law does not apply: no weights, no float64 to judge by, or no determinism."""
    if not any(p.is_floating_point() for p in runner.copies.model.parameters()):
        return "it has no weights to cast"
    if any(isinstance(m, torch.jit.ScriptModule) for m in runner.copies.model.modules()):
        return "the modules of TorchScript cannot be watched, so their rounding is not known"
    if not runner.facts.rounding.wide:
        return "it does not run in float64, so there is nothing to compare with"
    if not is_deterministic(runner):
        return "the same call gives another answer, which looks like an error of rounding"
    return ""


def precisions(runner: Runner) -> list[torch.dtype]:
    """Return the model's own low precision; else float32, and bfloat16 as users cast to."""
    held = {p.dtype for p in runner.copies.model.parameters() if p.is_floating_point()}
    low = [dtype for dtype in SLACK if dtype in held and dtype is not torch.float32]
    return low[:1] or [torch.float32, torch.bfloat16]


def precision(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Compare a copy in lower precision with the same weights in float64."""
    inputs = runner.inputs(setting)
    for dtype in precisions(runner):
        model, exact = copies(runner, dtype)
        name, cast = str(dtype).removeprefix("torch."), cast_inputs(inputs, dtype)
        try:
            low = _answer(runner, model, cast, setting)
        except Exception as error:
            if dtype is torch.float32:
                continue
            note = f"cast to {name} it raises {last_line(error)[:120]}"
            evidence = Evidence(module=_where_it_raises(runner, model, cast, setting))
            # An exception is loud, so it is no breach; and the owner may never cast the model.
            yield Outcome(math.inf, note, setting, evidence=evidence, advice=True)
            continue
        yield _compared(runner, LowAndExact(model, exact, dtype), cast, low, setting)
        if dtype is not torch.float32:
            with suppress(Exception):  # its positions end before
                yield from _far_positions(runner, LowAndExact(model, exact, dtype), cast, setting)
    yield from tables_that_repeat(runner, setting)


@dataclass(frozen=True)
class LowAndExact:
    """A copy in low precision, and the same weights in float64."""

    low: nn.Module
    exact: nn.Module
    dtype: torch.dtype


def _far_positions(
    runner: Runner, pair: LowAndExact, inputs: Inputs, setting: Setting
) -> Iterator[Outcome]:
    """Ask whether positions far on, and these rounded to half precision, are all the same to it."""
    far = from_far_on(runner, inputs, pair.dtype)
    if far is None:
        yield from _counted_far_on(runner, pair, inputs, setting)
        return
    low, rounded_low = (_answer(runner, pair.low, values, setting) for values in far)
    high, rounded_high = (
        _answer(runner, pair.exact, cast_inputs(values, torch.float64), setting, wide=True)
        for values in far
    )
    told_apart = _rms(rounded_high, high)
    if told_apart > torch.finfo(pair.dtype).eps:  # they matter more than rounding does
        broken = float(torch.equal(low, rounded_low))
        yield Outcome(broken, _counted_in(pair.dtype, told_apart), setting)


def _counted_far_on(
    runner: Runner, pair: LowAndExact, inputs: Inputs, setting: Setting
) -> Iterator[Outcome]:
    """Ask the same of a model that is not told positions and counts them in its own precision."""
    if runner.copies.device.type != "cpu":
        return
    length, wide = runner.length(setting), cast_inputs(inputs, torch.float64)
    for place in range(COUNTINGS):
        with CountedFarOn(length, place) as counting, suppress(Exception):  # positions end before
            _answer(runner, pair.low, inputs, setting)
        if counting.counted_in is None:
            return
        if counting.counted_in is not pair.dtype:
            continue
        with CountedFarOn(length, place):
            high = _answer(runner, pair.exact, wide, setting, wide=True)
        with CountedFarOn(length, place, pair.dtype):
            rounded_high = _answer(runner, pair.exact, wide, setting, wide=True)
        told_apart = _rms(rounded_high, high)
        if told_apart > torch.finfo(pair.dtype).eps:
            yield Outcome(1.0, _counted_in(pair.dtype, told_apart), setting)
            return


def _counted_in(dtype: torch.dtype, told_apart: float) -> str:
    name = str(dtype).removeprefix("torch.")
    return (
        f"in {name} positions from {FAR} on give the answers of these positions rounded to "
        f"{name}, which differ by {told_apart:.1e} where nothing is rounded: positions are "
        f"counted in {name}"
    )


def _compared(
    runner: Runner, pair: LowAndExact, inputs: Inputs, low: torch.Tensor, setting: Setting
) -> Outcome:
    """Compare an answer in low precision with those in float64, of which one rounds all outputs."""
    wide = cast_inputs(inputs, torch.float64)
    high = _answer(runner, pair.exact, wide, setting, wide=True)
    with rounding(pair.exact, pair.dtype):
        near = _answer(runner, pair.exact, wide, setting, wide=True)
    error, budget = _rms(low, high), ROOM * _rms(near, high) + SLACK[pair.dtype]
    note = (
        f"in {str(pair.dtype).removeprefix('torch.')} answers are off by {error:.1e}; rounding "
        f"the output of every module explains at most {budget:.1e}"
    )
    return Outcome(_scaled(runner, error, budget), note, setting)


def fused(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Compare fused attention with torch's plain one, in the low precisions that it takes.

    The fused path may err at most twice what the plain one does, and a rounding step.
    """
    inputs, axis = runner.inputs(setting), runner.signature.axis
    every = whole_rows(runner, setting, range(runner.signature.batch_of(inputs)))
    cases = [(inputs, every, "")]
    if runner.facts.masks_over(axis):
        real = padding.real_tokens(runner, inputs, axis)
        keep = padding.protected(runner, inputs, axis, real)
        padded = {**inputs, **padding.arguments(runner, axis, real)}
        cases.append((padded, keep, ", with right padding"))
    for dtype in precisions(runner):
        model, exact = copies(runner, dtype)
        for case, keep, padded in cases:
            case = cast_inputs(case, dtype)
            high = _answer(runner, exact, cast_inputs(case, torch.float64), setting, wide=True)
            plain = _answer(runner, model, case, replace(setting, attention="math"))
            fast = _answer(runner, model, case, setting)
            high, plain, fast = (keep.of(answer) for answer in (high, plain, fast))
            step = torch.finfo(dtype).eps * float(high.abs().max() / high.pow(2).mean().sqrt())
            error, budget = _rms(fast, high), 2 * _rms(plain, high) + step
            note = (
                f"fused attention in {str(dtype)[6:]} is off by {error:.1e}{padded}; the error of "
                f"torch's plain attention explains at most {budget:.1e}"
            )
            yield Outcome(_scaled(runner, error, budget), note, setting)


def _scaled(runner: Runner, error: float, budget: float) -> float:
    """Return an error on the scale of the common threshold, which a budget just kept reaches."""
    return error / budget * runner.facts.threshold


def copies(runner: Runner, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """Return a copy in this precision with weights drawn anew, and the same weights in float64."""
    model = duplicate(runner.copies.model, wide=False)
    randomise(model, runner.copies.recipe.seed)
    model = model.to(dtype)
    return model, duplicate(model)


def cast_inputs(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Return the inputs with floating tensors in this precision."""
    return {
        n: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for n, v in inputs.items()
    }


def _answer(
    runner: Runner, model: nn.Module, inputs: Inputs, setting: Setting, wide: bool = False
) -> torch.Tensor:
    """Return the model's answer in its own precision; `wide` also widens what it casts inside."""
    with torch.no_grad():
        run = Run(inputs, replace(setting, conditions=Conditions(bare=not wide)))
        return runner.using(model, setting).answer(run).double()


def _where_it_raises(runner: Runner, model: nn.Module, inputs: Inputs, setting: Setting):
    """Return the deepest module in which the copy raises."""
    run = Run(inputs, replace(setting, conditions=Conditions(bare=True)))
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return blame_exception(runner.using(model, setting), run, dtype)


class rounding:  # noqa: N801
    """Rounds the floating output of every module to `dtype` inside this context."""

    def __init__(self, model: nn.Module, dtype: torch.dtype):
        self.model, self.dtype, self.handles = model, dtype, []

    def __enter__(self) -> None:
        def hook(module: nn.Module, args: tuple, output):
            if isinstance(output, torch.Tensor) and output.is_floating_point():
                return rounded(output, self.dtype)
            return None

        self.handles = [m.register_forward_hook(hook) for m in self.model.modules()]

    def __exit__(self, *reason: object) -> None:
        for handle in self.handles:
            handle.remove()


def _rms(first: torch.Tensor, second: torch.Tensor) -> float:
    size = float(second.pow(2).mean().sqrt()) or 1.0
    gap = float((first - second).pow(2).mean().sqrt()) / size
    return gap if math.isfinite(gap) else math.inf


LAWS = (
    Law(
        "dtype.agree",
        says="In a lower precision a model runs, and errs as rounding does.",
        why="Otherwise a float32 island raises, or a half-precision sum loses what was learned.",
        how="A copy is cast; its error may be 16 times that of rounding every module's output. "
        "Positions from 4096 on must not be rounded, neither in a call nor in a table of angles.",
        trials=precision,
        applies=casts,
        sweep=sweeps.once,
    ),
)
