"""Gradients and losses of rows add up to those of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import nn

from querykey.laws.blaming.blame import blame
from querykey.laws.blaming.guilty_module import GuiltyModule, guilty_part
from querykey.laws.catalogue import sweeps
from querykey.laws.catalogue.batch import alone, has_rows
from querykey.laws.catalogue.derivatives import backward, magnitude, parameter_gradients, trained
from querykey.laws.catalogue.gradients import has_weights
from querykey.laws.law import Law
from querykey.laws.private import is_of_library
from querykey.laws.run import Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome, conduct
from querykey.laws.understanding.loss import loss_of

COUNT = "num_items_in_batch"
Gradients = dict[str, torch.Tensor | None]


def accumulation(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Compare the gradient of a batch with the sum over its rows, and its loss likewise."""
    inputs = runner.inputs(setting)
    whole, answer = parameter_gradients(runner, Run(inputs, setting))
    weights = torch.randn(
        answer.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64
    )
    model = runner.copies.of(setting)
    model.zero_grad(set_to_none=True)
    for row in range(setting.batch):
        own = runner.answer(Run(runner.signature.take_rows(inputs, [row]), setting))
        backward((own[0] * weights[row].to(own.dtype)).sum())
    sums: Gradients = {n: p.grad for n, p in trained(model)}
    worst, name = _worst(whole, sums, runner.facts.rounding.wide)
    guilty = None
    if worst > runner.facts.threshold:
        guilty = _mixer(runner, setting) or _owner(model, name)
    note = (
        f"the gradient of {name} for {setting.batch} rows is not the sum over the rows: it differs "
        f"by {worst:.2g}"
    )
    yield Outcome(worst, note, setting, evidence=Evidence(module=guilty))
    model.zero_grad(set_to_none=True)
    yield from _contract(runner, setting)


def _worst(first: Gradients, second: Gradients, wide: bool) -> tuple[float, str]:
    """Return the largest relative difference of two sets of gradients, and the parameter."""
    least = 1e-6 if wide else 1e-2  # of the largest gradient: what is below is rounding
    sizes = [magnitude(g) for g in first.values() if g is not None and g.numel()]
    # Some gradients are zero but for rounding, as that of a key's bias under softmax.
    largest = max(sizes, default=1.0)
    worst, name = 0.0, next(iter(first), "")
    for parameter, gradient in first.items():
        other = second[parameter]
        if gradient is None or other is None or not gradient.numel():
            continue
        far = float((gradient - other).abs().max())
        gap = far / max(magnitude(gradient), least * largest, 1e-30)
        if gap > worst:
            worst, name = gap, parameter
    return worst, name


def _mixer(runner: Runner, setting: Setting) -> GuiltyModule | None:
    """Return the module in which rows mix, where answers show it as gradients do."""
    for trial in alone(runner, setting):
        if conduct(runner, trial).deviation > runner.facts.threshold:
            with suppress(Exception):
                return blame(runner, trial)
    return None


def _owner(model: nn.Module, name: str) -> GuiltyModule:
    return guilty_part(model, name.rpartition(".")[0])


def _contract(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Yield whether the loss divides by the number of tokens that a trainer tells it.

    Trainers that accumulate tell it the number in all their batches, and divide no more; they take
    a head that accepts any keyword for one that does.
    """
    model = runner.copies.model
    if runner.facts.loss is None or not accepts_the_count(runner):
        return
    try:
        values = [loss_of(runner, call, setting) for call in counted_calls(runner, setting)]
    except Exception:
        return  # its labels are something else
    whole, twice, *parts = (float("nan") if value is None else float(value) for value in values)
    rows = sum(parts)
    evidence = Evidence(module=guilty_part(model, ""))
    explicit = COUNT in runner.copies.parameters
    advice = not (explicit or is_of_library(model))  # somebody's own may never meet such a trainer
    size = abs(whole) or 1.0
    note = (
        f"its loss is not divided by num_items_in_batch, which trainers pass when they accumulate "
        f"gradients: the losses of 3 rows add up to {rows:.4g}, but that of their batch is "
        f"{whole:.4g}, so accumulating 3 rows trains with {rows / whole:.3g} times the loss"
    )
    yield Outcome(abs(rows - whole) / size, note, setting, evidence=evidence, advice=advice)
    note = (
        f"its loss takes num_items_in_batch but is not divided by it: with twice the number it is "
        f"{twice:.4g}, {twice / whole:.3g} times the {whole:.4g} that it was"
    )
    yield Outcome(abs(2 * twice - whole) / size, note, setting, evidence=evidence, advice=advice)


def counted_calls(runner: Runner, setting: Setting) -> list[Inputs]:
    """Return calls that are told the count: of 3 rows, of these with twice the count, of each."""
    loss, inputs = runner.facts.loss, runner.inputs(setting)
    assert loss is not None
    labels = inputs[runner.signature.main.name].clone()
    if loss.ignored is not None:
        labels[1, 4:] = loss.ignored
    shift = 1 if runner.facts.causal and not runner.signature.others() else 0
    count = (labels[:, shift:] != loss.ignored).sum()
    calls = (([0, 1, 2], count), ([0, 1, 2], 2 * count), ([0], count), ([1], count), ([2], count))
    return [
        {
            **runner.signature.take_rows(inputs, rows),
            loss.name: labels[rows],
            COUNT: number,
        }
        for rows, number in calls
    ]


def accepts_the_count(runner: Runner) -> bool:
    """Return whether Hugging Face's Trainer takes a head for one that accepts the count."""
    parameters = runner.copies.parameters.values()
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    explicit = any(p.name == COUNT for p in parameters)
    return bool(getattr(runner.copies.model, "accepts_loss_kwargs", open_ended or explicit))


LAWS = (
    Law(
        "accumulation",
        says="Gradients and losses of rows add up to those of the batch.",
        why="Otherwise accumulating gradients trains another model (transformers 34191).",
        how="A batch is split into rows and the sums of their gradients are compared; so are those "
        "of the losses, given num_items_in_batch as Hugging Face's Trainer does (47688).",
        trials=accumulation,
        applies=lambda runner: has_rows(runner) or has_weights(runner),
        sweep=sweeps.once,
    ),
)
