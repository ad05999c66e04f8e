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
from querykey.laws.catalogue.derivatives import backward, parameter_gradients, trained
from querykey.laws.catalogue.gradients import has_weights
from querykey.laws.law import Law
from querykey.laws.run import Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome, conduct, deviation

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
    yield from _loss(runner, setting)


def _worst(first: Gradients, second: Gradients, wide: bool) -> tuple[float, str]:
    """Return the largest relative difference of two sets of gradients, and the parameter."""
    least = 1e-6 if wide else 1e-2  # of the largest gradient: what is below is rounding
    sizes = [float(g.pow(2).mean().sqrt()) for g in first.values() if g is not None and g.numel()]
    # Some gradients are zero but for rounding, as that of a key's bias under softmax.
    largest = max(sizes, default=1.0)
    worst, name = 0.0, next(iter(first), "")
    for parameter, gradient in first.items():
        other = second[parameter]
        if gradient is None or other is None or not gradient.numel():
            continue
        gap = float((gradient - other).abs().max()) / max(
            float(gradient.pow(2).mean().sqrt()), least * largest, 1e-30
        )
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


def _loss(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Compare the loss of rows of unequal length with that of their batch.

    Every row is told the number of tokens of all rows, as trainers that accumulate do.
    """
    parameters = runner.copies.parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    main = runner.signature.main
    accepts = getattr(runner.copies.model, "accepts_loss_kwargs", open_ended)
    if "labels" not in parameters or not accepts or main.kind != "tokens":
        return
    inputs = runner.inputs(setting)
    labels = inputs[main.name].clone()
    labels[1, 4:] = -100
    shift = 0 if runner.signature.others() else 1
    count = (labels[:, shift:] != -100).sum()
    losses = []
    for rows in ([0, 1, 2], [0], [1], [2]):
        batch = {**runner.signature.take_rows(inputs, rows), "labels": labels[rows]}
        try:
            with torch.no_grad():
                output = runner.call({**batch, "num_items_in_batch": count}, setting)
        except Exception:
            return  # its labels are something else
        loss = getattr(output, "loss", None)
        if not isinstance(loss, torch.Tensor):
            return
        losses.append(loss.detach().double())
    total = torch.stack(losses[1:]).sum()
    gap = deviation(losses[0].reshape(1, 1), total.reshape(1, 1))[0]
    note = (
        f"the losses of 3 rows, each told the number of all tokens (num_items_in_batch), add up "
        f"to {float(total):.4g}, and the batch's loss is {float(losses[0]):.4g}: a trainer that "
        f"accumulates must divide by itself"
    )
    evidence = Evidence(module=guilty_part(runner.copies.model, ""))
    yield Outcome(gap, note, setting, evidence=evidence, advice=True)


LAWS = (
    Law(
        "accumulation",
        says="Gradients and losses of rows add up to those of the batch.",
        why="Otherwise accumulating gradients trains another model (transformers 34191).",
        how="A batch is split into rows; the sums of their gradients and losses are compared.",
        trials=accumulation,
        applies=lambda runner: has_rows(runner) or has_weights(runner),
        sweep=sweeps.once,
    ),
)
