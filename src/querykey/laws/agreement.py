"""The same model computed otherwise: another implementation or precision, a row of nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from querykey.laws import padding, sweeps
from querykey.laws.batch import whole_rows
from querykey.laws.bench import Inputs, Setting
from querykey.laws.blame import Blame, blame_exception, describe
from querykey.laws.derivative import score
from querykey.laws.law import Law
from querykey.laws.lift import duplicate, randomise, rounded
from querykey.laws.recorder import Recorder
from querykey.laws.specimen import Specimen
from querykey.laws.trial import Outcome, Run, Trial, cells
from querykey.targets.target import last_line

FUSED = {"scaled_dot_product_attention", "multi_head_attention_forward"}
ROOM = 16.0  # times what rounding every module's output does
PRECISIONS = {torch.float32: 2e-5, torch.bfloat16: 5e-2}  # and this much on top


def has_a_choice(specimen: Specimen) -> str:
    """To models that compute attention in more than one way."""
    if len(specimen.implementations) > 1:
        return ""
    if specimen.implementations == ("math",) and specimen.bench.seen & FUSED:
        return ""
    return "it computes attention in one way only"


def backends(specimen: Specimen, setting: Setting) -> Iterator[Trial]:
    """Each implementation against the first, without padding and with it."""
    if specimen.implementations == ("math",):
        others = [replace(setting, bare=True)]
        first = replace(setting, attention="math")
    else:
        first, *others = [replace(setting, attention=name) for name in specimen.implementations]
    inputs = specimen.inputs(setting)
    every = whole_rows(specimen, setting, list(range(specimen.batch_of(inputs))))
    for other in others:
        yield Trial(Run(inputs, first), Run(inputs, other), (every, every), None, _versus(other))
        # torch's own fast path is no place for rows that begin with padding: it gives NaN.
        for left in (False, True) if specimen.causal and not other.bare else (False,):
            axis = specimen.anatomy.axis
            if specimen.mask_for(axis):
                real = padding.reality(specimen, inputs, axis, left)
                told = {**inputs, **padding.given(specimen, axis, real)}
                keep = padding.protected(specimen, inputs, axis, real)
                words = f"{_versus(other)}, with {'left' if left else 'right'} padding"
                yield Trial(Run(told, first), Run(told, other), (keep, keep), None, words)


def _versus(setting: Setting) -> str:
    return f"attention was computed by {setting.attention or 'torch as it comes'}"


def masked_row(specimen: Specimen, setting: Setting) -> Iterator[Outcome]:
    """No padding; a row that is all padding; queries before the first real token."""
    every = list(range(specimen.batch_of(specimen.inputs(setting))))
    yield _finite(specimen, specimen.inputs(setting), setting, every, "nothing was hidden")
    for axis in padding.padded_axes(specimen):
        inputs = specimen.inputs(setting)
        real = specimen.all_real(inputs, axis)
        real[1] = False
        others = [r for r in range(setting.batch) if r != 1]
        told = {mask.name: mask.value(real) for mask in specimen.mask_for(axis)}
        yield _finite(specimen, {**inputs, **told}, setting, others, "a row was all padding")
        if specimen.causal and axis == specimen.anatomy.axis:
            real = padding.reality(specimen, inputs, axis, left=True)
            told = padding.given(specimen, axis, real)
            yield _finite(specimen, {**inputs, **told}, setting, others, "rows were left-padded")


def _finite(
    specimen: Specimen, inputs: Inputs, setting: Setting, others: list[int], note: str
) -> Outcome:
    """Zero where answers and the other rows' gradients are finite, infinity where not."""
    run = Run(inputs, setting)
    twin = specimen.bench.twin(setting)
    twin.zero_grad(set_to_none=True)
    answer = specimen.answer(run)
    if not specimen.anatomy.sequential:
        answer = answer[others]  # a row of padding alone has no mean, and nobody reads its answer
        others = list(range(len(others)))
    if not answer.isfinite().all():
        row = int((~answer.isfinite()).flatten(1).any(1).nonzero()[0])
        guilty = _first_not_finite(specimen, run)
        words = f"{note}: answers are not finite"
        return Outcome(math.inf, None, setting, {"sample": row}, None, words, guilty)
    score(answer[others]).backward()
    bad = [
        n for n, p in twin.named_parameters() if p.grad is not None and not p.grad.isfinite().all()
    ]
    twin.zero_grad(set_to_none=True)
    if bad:
        words = f"{note}: the gradient of {bad[0]} is not finite"
        return Outcome(math.inf, None, setting, {}, None, words)
    return Outcome(0.0, None, setting, {}, None, note)


def _first_not_finite(specimen: Specimen, run: Run) -> Blame | None:
    recorder = Recorder()
    with torch.no_grad():
        specimen.answer(run, recorder)
    for call in recorder.done:
        floats = [t for t in call.inputs if t.is_floating_point()]
        fine = all(not t.isnan().any() for t in floats)
        if fine and any(not t.isfinite().all() for t in call.outputs if t.is_floating_point()):
            return describe(call)
    return None


def precision(specimen: Specimen, setting: Setting) -> Iterator[Outcome]:
    """In float32 and bfloat16 it runs, and errs about as much as rounding its modules does."""
    inputs = specimen.inputs(setting)
    for dtype, slack in PRECISIONS.items():
        model = duplicate(specimen.bench.model, wide=False)
        randomise(model, specimen.bench.seed)
        model = model.to(dtype)
        exact = duplicate(model)
        cast = _cast(inputs, dtype)
        try:
            low = _answer(specimen, model, cast, setting)
        except Exception as error:
            if dtype is torch.float32:
                continue
            words = f"cast to {str(dtype)[6:]} it raises {last_line(error)[:120]}"
            guilty = _where_it_raises(specimen, model, cast, setting)
            # Loud, so no breach; and its owner may never cast it.
            yield Outcome(math.inf, None, setting, {}, None, words, guilty, advice=True)
            continue
        high = _answer(specimen, exact, _cast(cast, torch.float64), setting, lift=True)
        with rounding(exact, dtype):
            near = _answer(specimen, exact, _cast(cast, torch.float64), setting, lift=True)
        error, budget = _rms(low, high), ROOM * _rms(near, high) + slack
        # Reported on the scale of the common threshold, at which a budget just kept is 1.
        words = f"in {str(dtype)[6:]} it errs by {error:.1e}, where {budget:.1e} is its budget"
        ratio = error / budget * specimen.threshold
        yield Outcome(ratio, None, setting, {}, None, words)


def _cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return {
        n: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for n, v in inputs.items()
    }


def _answer(
    specimen: Specimen, model: nn.Module, inputs: Inputs, setting: Setting, lift: bool = False
) -> torch.Tensor:
    bench = replace(specimen.bench, twins={(setting.weights, setting.train): model})
    other = replace(specimen, bench=bench)
    with torch.no_grad():
        return other.answer(Run(inputs, replace(setting, bare=not lift)))


def _where_it_raises(specimen: Specimen, model: nn.Module, inputs: Inputs, setting: Setting):
    bench = replace(specimen.bench, twins={(setting.weights, setting.train): model})
    return blame_exception(replace(specimen, bench=bench), Run(inputs, replace(setting, bare=True)))


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
    first, second = first.double(), second.double()
    size = float(second.pow(2).mean().sqrt()) or 1.0
    gap = float((first - second).pow(2).mean().sqrt()) / size
    return gap if math.isfinite(gap) else math.inf


def casts(specimen: Specimen) -> str:
    """To models that can be cast: whose weights are float32 or wider."""
    parameters = list(specimen.bench.model.parameters())
    if not parameters:
        return "it has no weights to cast"
    if not specimen.bench.wide:
        return "it refuses float64, so there is nothing to compare with"
    if any(p.dtype not in (torch.float32, torch.float64) for p in parameters):
        return "its weights are not float32"
    return ""


def unordered(specimen: Specimen) -> str:
    """To encoders that know nothing of positions, by their owner's word or their code."""
    if not specimen.anatomy.sequential or specimen.causal:
        return "it is not an encoder"
    said = specimen.bench.subject.ordered
    if said is not None:
        return "order enters, as told" if said else ""
    from querykey.laws.order import sign_of_order

    sign = sign_of_order(specimen)
    return f"order enters: {sign}" if sign else ""


def equivariance(specimen: Specimen, setting: Setting) -> Iterator[Trial]:
    """Shuffle the tokens: the answers are shuffled alike."""
    inputs, length = specimen.inputs(setting), setting.length
    order = torch.randperm(length, generator=torch.Generator().manual_seed(3)).tolist()
    shuffled = specimen.edit(inputs, lambda value: value[:, order])
    first = cells([(r, order[i]) for r in range(setting.batch) for i in range(length)])
    second = cells([(r, i) for r in range(setting.batch) for i in range(length)])
    yield Trial(
        Run(inputs, setting),
        Run(shuffled, setting),
        (first, second),
        (second, second),
        "the tokens were shuffled, and nothing in the model seems to know positions",
        # What knows positions can be hard to see, so only its owner's word makes it a breach.
        advice=specimen.bench.subject.ordered is None,
    )


LAWS = (
    Law(
        "backend.agree",
        "every implementation of attention gives the same answers",
        "another implementation",
        "answers at real positions",
        has_a_choice,
        backends,
        sweeps.once,
    ),
    Law(
        "masked-row",
        "a query that sees nothing makes nothing infinite or NaN",
        "hide all tokens of a row",
        "all answers, and the other rows' gradients",
        lambda specimen: "",
        masked_row,
        sweeps.once,
    ),
    Law(
        "equivariance",
        "without positions, shuffled tokens give shuffled answers",
        "shuffle the tokens",
        "all answers",
        unordered,
        equivariance,
        sweeps.plain,
    ),
    Law(
        "dtype.agree",
        "cast to a lower precision it runs, and errs as rounding does",
        "cast the model",
        "all answers",
        casts,
        precision,
        sweeps.once,
    ),
)
