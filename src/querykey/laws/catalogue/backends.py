"""The same model computed otherwise: another implementation or precision, a row of nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from querykey.laws.blaming.blame import Blame, describe
from querykey.laws.blaming.recorder import Recorder
from querykey.laws.catalogue import padding, sweeps
from querykey.laws.catalogue.batch import whole_rows
from querykey.laws.catalogue.derivatives import backward, score
from querykey.laws.catalogue.precision import fused
from querykey.laws.law import Law
from querykey.laws.runner import Specimen
from querykey.laws.trial import Cells, Outcome, Run, Trial, cells
from querykey.laws.understanding.copies import Inputs, Setting

FUSED = {"scaled_dot_product_attention", "multi_head_attention_forward"}


def has_a_choice(specimen: Specimen) -> str:
    """To models that compute attention in more than one way."""
    if len(specimen.implementations) > 1:
        return ""
    if specimen.implementations == ("math",) and specimen.bench.seen & FUSED:
        return ""
    return "it computes attention in one way only"


def backends(specimen: Specimen, setting: Setting) -> Iterator[Trial | Outcome]:
    """Each implementation against the first, without padding and with it."""
    if specimen.bench.device.type == "cuda" and specimen.bench.wide and specimen.bench.seen & FUSED:
        yield from fused(specimen, setting)
    inputs = specimen.inputs(setting)
    if specimen.implementations == ("math",):
        bare = replace(setting, bare=True)
        others = [bare] if _steady(specimen, inputs, bare) else []
        first = replace(setting, attention="math")
    else:
        first, *others = [replace(setting, attention=name) for name in specimen.implementations]
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
                runs = Run(told, first), Run(told, other)
                if other.bare:
                    keep = _numbers(specimen, runs, keep)
                if len(keep):
                    yield Trial(*runs, (keep, keep), None, words)


def _steady(specimen: Specimen, inputs: Inputs, bare: Setting) -> bool:
    """Whether it answers alike again; dropout that was left on is for determinism to find."""
    runs = Run(inputs, bare), Run(inputs, replace(bare, again=True))
    first, again = (specimen.remembered(run) for run in runs)
    return torch.allclose(first, again, rtol=specimen.threshold, equal_nan=True)


def _numbers(specimen: Specimen, runs: Iterable[Run], keep: Cells) -> Cells:
    """The cells that are numbers in each run: torch's ways differ on a query that sees nothing.

    A mask that leaves one with nothing to see is for the laws of padding to find.
    """
    fine = torch.ones(len(keep), dtype=torch.bool)
    for run in runs:
        fine &= keep.of(specimen.remembered(run)).isfinite().flatten(1).all(1)
    return keep.where(fine.tolist())


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
    backward(score(answer[others]))
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


def unordered(specimen: Specimen) -> str:
    """To encoders that know nothing of positions, by their owner's word or their code."""
    if not specimen.anatomy.sequential or specimen.causal:
        return "it is not an encoder"
    said = specimen.bench.subject.ordered
    if said is not None:
        return "order enters, as told" if said else ""
    from querykey.laws.understanding.order import sign_of_order

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
)
