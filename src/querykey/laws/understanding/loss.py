"""Finding out how a model's own loss is asked for, and which answer it compares with which label.

A derivative tells it: that of a cross-entropy by the scores at one place is lowest at the label
that these scores are compared with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from querykey.laws.blaming.recorder import Recorder
from querykey.laws.run import PLAIN, Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.understanding.facts import LossInterface
from querykey.laws.understanding.outputs import tensors

LABELS = re.compile(
    r"^((lm_|token_|decoder_|masked_lm_)?labels?|targets?|y|label_ids|gold|(gold_)?tags?|tag_ids)$"
)
IGNORED = (-100, -1)
ROWS, LENGTH = 3, 6


@dataclass(frozen=True)
class Asked:
    """One call with labels: the loss, the scores that it was computed from, and its derivative."""

    loss: torch.Tensor
    scores: torch.Tensor | None = None  # (batch, positions, words)
    gradient: torch.Tensor | None = None  # of the loss, by these scores


def find_loss(runner: Runner) -> LossInterface | None:
    """Return the argument by which a model that reads tokens returns its own loss, or None.

    Labels are words; where these are not taken, they are as many as a place has scores.
    """
    main = runner.signature.main
    if main.kind != "tokens" or main.axes[0] != "batch":
        return None
    setting = Setting(batch=ROWS, length=LENGTH)
    inputs = runner.inputs(setting)
    taken = {entry.name for entry in runner.signature.inputs}
    names = [n for n in runner.copies.parameters if LABELS.match(n) and n not in taken]
    for tags in (None, _scores(runner)) if names else ():
        if tags == 0:
            break
        labels = distinct_labels(runner, inputs, tags)
        for name in names:
            losses = []
            for value in (labels, labels.roll(1, 1)):
                try:
                    losses.append(loss_of(runner, {**inputs, name: value}, setting))
                except Exception:  # it takes labels of another kind
                    break
            if len(losses) == 2 and None not in losses and losses[0] != losses[1]:
                return LossInterface(name, _ignored(runner, inputs, name, labels, setting), tags)
    return None


def _scores(runner: Runner) -> int:
    """Return how many scores every token has, where these are fewer than words; else 0."""
    answer = runner.attempt(runner.inputs(), PLAIN) if runner.signature.sequential else None
    count = 0 if answer is None else answer.shape[-1]
    return count if 1 < count < runner.signature.main.high else 0


def distinct_labels(runner: Runner, inputs: Inputs, tags: int | None = None) -> torch.Tensor:
    """Return labels of which no two are the same, where the vocabulary allows it.

    Of few tags no two in a row are the same, where that is possible.
    """
    main = runner.signature.main
    shape = inputs[main.name].shape
    count = shape.numel()
    tags = tags or (runner.facts.loss.tags if runner.facts.loss else None)
    if tags:
        generator = torch.Generator().manual_seed(5)
        rounds = -(-shape[1] // tags)
        rows = [
            torch.cat([torch.randperm(tags, generator=generator) for _ in range(rounds)])
            for _ in range(shape[0])
        ]
        return torch.stack(rows)[:, : shape[1]]
    if main.high - main.low < count:
        return inputs[main.name].clone()
    generator = torch.Generator().manual_seed(5)
    drawn = torch.randperm(main.high - main.low, generator=generator)[:count] + main.low
    return drawn.reshape(shape)


def _ignored(
    runner: Runner, inputs: Inputs, name: str, labels: torch.Tensor, setting: Setting
) -> int | None:
    """Return the label that says that a place does not count: one that is no word, and is taken."""
    model: Any = runner.copies.model
    declared = [
        value
        for module in model.modules()
        for key, value in vars(module).items()
        if key in ("ignore_index", "pad_id", "pad_idx", "pad_token_id") and type(value) is int
    ]
    for value in dict.fromkeys([*IGNORED, *(v for v in declared if v < 0)]):
        hidden = labels.clone()
        hidden[:, 2] = value
        try:
            loss = loss_of(runner, {**inputs, name: hidden}, setting)
        except Exception:
            continue
        if loss is not None and loss.isfinite():
            return value
    return None


def loss_of(runner: Runner, inputs: Inputs, setting: Setting = PLAIN) -> torch.Tensor | None:
    """Return the one number among the outputs of a call, or None where there is none."""
    with torch.no_grad():
        output = runner.call(runner.complete(Run(inputs, setting)), setting)
    number = number_of(output)
    return None if number is None else number.cpu().double()


def number_of(output: Any) -> torch.Tensor | None:
    """Return the loss among the outputs: the one called so, else the only single number."""
    numbers = [
        (path, t.squeeze())
        for path, t in tensors(output)
        if t.numel() == 1 and t.is_floating_point()
    ]
    called = [(path, t) for path, t in numbers if path and path[-1] == "loss"]
    numbers = called or numbers
    return numbers[0][1] if len(numbers) == 1 else None


def asked(runner: Runner, inputs: Inputs, setting: Setting) -> Asked | None:
    """Return what one call with labels shows; None where it returns no loss."""
    recorder = Recorder(live=True)
    output = runner.call(runner.complete(Run(inputs, setting)), setting, recorder)
    loss = number_of(output)
    if loss is None:
        return None
    for scores in scores_of(runner, output, recorder, inputs):
        if not (scores.requires_grad and loss.requires_grad):
            continue
        [gradient] = torch.autograd.grad(loss, [scores], retain_graph=True, allow_unused=True)
        if gradient is not None and bool((gradient != 0).any()):
            shape = (*_places(runner, inputs), scores.shape[-1])
            return Asked(
                loss.detach().cpu(),
                scores.detach().cpu().reshape(shape),
                gradient.cpu().reshape(shape),
            )
    return Asked(loss.detach().cpu())


def _places(runner: Runner, inputs: Inputs) -> tuple[int, int]:
    return runner.signature.batch_of(inputs), runner.signature.length_of(inputs)


def scores_of(
    runner: Runner, output: Any, recorder: Recorder, inputs: Inputs
) -> Iterator[torch.Tensor]:
    """Yield the tensors of scores of labels: those that are returned, then those of modules."""
    batch, length = _places(runner, inputs)
    tags = runner.facts.loss.tags if runner.facts.loss else None
    produced = [t for call in reversed(recorder.done) if call.path for t in call.outputs]
    for tensor in [*(t for _, t in tensors(output)), *produced]:
        wide = tensor.dim() >= 2 and (
            tensor.shape[-1] == tags if tags else tensor.shape[-1] >= runner.signature.main.high
        )
        placed = tensor.shape[:-1] in ((batch, length), (batch * length,))
        if wide and placed and tensor.is_floating_point():
            yield tensor


@dataclass(frozen=True)
class LossSums:
    """Sums of cross-entropies over a batch: all, by row, and of how many labels."""

    rows: list[float]
    counted: list[int]  # by row: labels that are compared with an answer
    held: int  # labels that count, compared or not

    def promises(self) -> dict[str, float]:
        """Return what a loss may promise to be, each with its value here."""
        total = sum(self.rows)
        return {
            "the mean over counted labels": total / max(sum(self.counted), 1),
            "the sum over counted labels": total,
            "the sum over counted labels by rows": total / len(self.rows),
            "the mean over labels before they are shifted": total / max(self.held, 1),
        }

    def mean_of_means(self) -> float:
        """Return the mean over rows of the means over their labels."""
        pairs = [(s, n) for s, n in zip(self.rows, self.counted, strict=True) if n]
        return sum(s / n for s, n in pairs) / max(len(pairs), 1)
