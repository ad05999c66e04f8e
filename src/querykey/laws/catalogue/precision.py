"""The same model in a lower precision, on the path that its users take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from querykey.laws.blaming.blame import blame_exception
from querykey.laws.catalogue import padding, sweeps
from querykey.laws.catalogue.batch import whole_rows
from querykey.laws.catalogue.purity import determinism
from querykey.laws.law import Law
from querykey.laws.runner import Specimen
from querykey.laws.trial import Outcome, Run, conduct
from querykey.laws.understanding.copies import Inputs, Setting
from querykey.laws.understanding.float64 import duplicate, randomise, rounded
from querykey.words import last_line

ROOM = 16.0  # times what rounding every module's output does
SLACK = {torch.float32: 2e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}  # and this much on top


def casts(specimen: Specimen) -> str:
    """To models with weights that answer alike twice, where float64 can judge."""
    if not any(p.is_floating_point() for p in specimen.bench.model.parameters()):
        return "it has no weights to cast"
    if not specimen.bench.wide:
        return "it refuses float64, so there is nothing to compare with"
    if any(
        not conduct(specimen, trial).deviation <= specimen.threshold
        for trial in determinism(specimen, Setting())
    ):
        return "the same call gives another answer, which looks like an error of rounding"
    return ""


def precisions(specimen: Specimen) -> list[torch.dtype]:
    """What it is held in, if that is low; else float32, and bfloat16 as users cast to."""
    held = {p.dtype for p in specimen.bench.model.parameters() if p.is_floating_point()}
    low = [dtype for dtype in SLACK if dtype in held and dtype is not torch.float32]
    return low[:1] or [torch.float32, torch.bfloat16]


def precision(specimen: Specimen, setting: Setting) -> Iterator[Outcome]:
    """In a lower precision it runs, and errs about as much as rounding its modules does."""
    inputs = specimen.inputs(setting)
    for dtype in precisions(specimen):
        model, exact = copies(specimen, dtype)
        name, cast = str(dtype).removeprefix("torch."), _cast(inputs, dtype)
        try:
            low = _answer(specimen, model, cast, setting)
        except Exception as error:
            if dtype is torch.float32:
                continue
            words = f"cast to {name} it raises {last_line(error)[:120]}"
            guilty = _where_it_raises(specimen, model, cast, setting)
            # Loud, so no breach; and its owner may never cast it.
            yield Outcome(math.inf, None, setting, {}, None, words, guilty, advice=True)
            continue
        cast = _cast(cast, torch.float64)
        high = _answer(specimen, exact, cast, setting, lift=True)
        with rounding(exact, dtype):
            near = _answer(specimen, exact, cast, setting, lift=True)
        error, budget = _rms(low, high), ROOM * _rms(near, high) + SLACK[dtype]
        words = f"in {name} it errs by {error:.1e}, where {budget:.1e} is its budget"
        yield Outcome(_against(specimen, error, budget), None, setting, {}, None, words)


def fused(specimen: Specimen, setting: Setting) -> Iterator[Outcome]:
    """On a GPU, in low precision, which is all that fused kernels take: they against the equation.

    The fused path may err at most twice what torch's plain one does, and a rounding step.
    """
    inputs, axis = specimen.inputs(setting), specimen.anatomy.axis
    every = whole_rows(specimen, setting, list(range(specimen.batch_of(inputs))))
    cases = [(inputs, every, "")]
    if specimen.mask_for(axis):
        real = padding.reality(specimen, inputs, axis)
        keep = padding.protected(specimen, inputs, axis, real)
        told = {**inputs, **padding.given(specimen, axis, real)}
        cases.append((told, keep, ", with right padding"))
    for dtype in precisions(specimen):
        model, exact = copies(specimen, dtype)
        for given, keep, padded in cases:
            given = _cast(given, dtype)
            high = _answer(specimen, exact, _cast(given, torch.float64), setting, lift=True)
            plain = _answer(specimen, model, given, replace(setting, attention="math"))
            fast = _answer(specimen, model, given, setting)
            high, plain, fast = (keep.of(answer) for answer in (high, plain, fast))
            step = torch.finfo(dtype).eps * float(high.abs().max() / high.pow(2).mean().sqrt())
            error, budget = _rms(fast, high), 2 * _rms(plain, high) + step
            words = (
                f"fused attention in {str(dtype)[6:]} errs by {error:.1e}, where torch's plain one "
                f"allows {budget:.1e}{padded}"
            )
            yield Outcome(_against(specimen, error, budget), None, setting, {}, None, words)


def _against(specimen: Specimen, error: float, budget: float) -> float:
    """On the scale of the common threshold, at which a budget just kept is 1."""
    return error / budget * specimen.threshold


def copies(specimen: Specimen, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """A copy in this precision with weights drawn anew, and the same weights in float64."""
    model = duplicate(specimen.bench.model, wide=False)
    randomise(model, specimen.bench.seed)
    model = model.to(dtype)
    return model, duplicate(model)


def _cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return {
        n: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for n, v in inputs.items()
    }


def _held(specimen: Specimen, model: nn.Module, setting: Setting) -> Specimen:
    bench = replace(specimen.bench, twins={(setting.weights, setting.train): model})
    return replace(specimen, bench=bench)


def _answer(
    specimen: Specimen, model: nn.Module, inputs: Inputs, setting: Setting, lift: bool = False
) -> torch.Tensor:
    with torch.no_grad():
        run = Run(inputs, replace(setting, bare=not lift))
        return _held(specimen, model, setting).answer(run).double()


def _where_it_raises(specimen: Specimen, model: nn.Module, inputs: Inputs, setting: Setting):
    run = Run(inputs, replace(setting, bare=True))
    return blame_exception(_held(specimen, model, setting), run)


class rounding:  # noqa: N801
    """While inside, every module's floating output is rounded as `dtype` would."""

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
        "in a lower precision it runs, and errs as rounding does",
        "cast the model",
        "all answers",
        casts,
        precision,
        sweeps.once,
    ),
)
