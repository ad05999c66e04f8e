"""Without positions, shuffled tokens give shuffled answers."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from querykey.laws.law import Law
from querykey.laws.run import Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Trial, every_cell
from querykey.laws.understanding.source_code import sign_of_order


def is_unordered(runner: Runner) -> str:
    """Return why the law does not apply: it is for encoders in which nothing knows positions."""
    if not runner.signature.sequential or runner.facts.causal:
        return "it is not an encoder"
    ordered = runner.subject.ordered
    if ordered is not None:
        return "order matters, as you said" if ordered else ""
    if runner.signature.only:
        return "order enters: it takes one number of tokens and no other"
    sign = sign_of_order(runner.copies.model)
    return f"order enters: {sign}" if sign else ""


def equivariance(runner: Runner, setting: Setting) -> Iterator[Trial]:
    """Shuffle the tokens: the answers are shuffled alike."""
    inputs, length = runner.inputs(setting), setting.length
    order = torch.randperm(length, generator=torch.Generator().manual_seed(3)).tolist()
    shuffled = runner.signature.edit(inputs, lambda value: value[:, order])
    first = every_cell(range(setting.batch), order)
    second = every_cell(range(setting.batch), range(length))
    yield Trial(
        Run(inputs, setting),
        Run(shuffled, setting),
        (first, second),
        (second, second),
        "the tokens were shuffled, and nothing in the model seems to know positions",
        # What knows positions can be hard to see, so only the owner's word makes it a breach.
        advice=runner.subject.ordered is None,
    )


LAWS = (
    Law(
        "equivariance",
        says="Without positions, shuffled tokens give shuffled answers.",
        why="Otherwise heads, axes or rows are mixed up.",
        how="The tokens of an encoder in which nothing knows positions are shuffled.",
        trials=equivariance,
        applies=is_unordered,
    ),
)
