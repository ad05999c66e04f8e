"""Two models that are meant to be one give the same answers with the same weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from querykey.laws.blaming.guilty_module import guilty_part
from querykey.laws.blaming.pairwise import first_difference
from querykey.laws.blaming.recorder import Recorder
from querykey.laws.catalogue import padding
from querykey.laws.catalogue.derivatives import trained
from querykey.laws.law import Law, RefusalError
from querykey.laws.run import PLAIN, Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Cells, Evidence, Outcome, deviation
from querykey.laws.understanding.float64 import duplicate
from querykey.laws.understanding.understand import understand
from querykey.words import last_line

AGREEMENT = "agreement"


def has_a_counterpart(runner: Runner) -> str:
    """Return why the law does not apply where there is no other model."""
    return "" if runner.subject.like else "no other model was given: check(model, like=other)"


@dataclass(frozen=True)
class Paired:
    """The names of one model's weights by those of another, and whether only order paired some."""

    names: dict[str, str]
    by_order: bool = False


def paired(source: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> Paired:
    """Return which weight is the one that another model wants, by name and shape.

    First come equal names, then names that end alike, then shapes that only one weight has, and at
    last weights of one shape in their order.
    """
    left = dict(source)
    pairs: dict[str, str] = {}

    def pair(name: str, its: str) -> None:
        pairs[name] = its
        del left[its]

    for name, tensor in wanted.items():
        if name in left and left[name].shape == tensor.shape:
            pair(name, name)
    for name in [n for n in wanted if n not in pairs]:
        alike = {n: _alike(n, name) for n, t in left.items() if t.shape == wanted[name].shape}
        most = max(alike.values(), default=0)
        best = [n for n, size in alike.items() if size == most]
        if most and len(best) == 1:
            pair(name, best[0])
    by_order = False
    by_shape: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name in [n for n in wanted if n not in pairs]:
        by_shape[tuple(wanted[name].shape)].append(name)
    for shape, names in by_shape.items():
        rest = [n for n, t in left.items() if tuple(t.shape) == shape]
        if len(rest) == len(names):
            by_order |= len(names) > 1
            for name, its in zip(names, rest, strict=True):
                pair(name, its)
    return Paired(pairs, by_order)


def _alike(first: str, second: str) -> int:
    """Return how many parts at the end of two names are equal."""
    count = 0
    for a, b in zip(reversed(first.split(".")), reversed(second.split(".")), strict=False):
        if a != b:
            break
        count += 1
    return count


def agreement(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Give the other model the weights of this one, and compare their answers."""
    assert runner.subject.like is not None
    subject, mapping = runner.subject.like
    theirs = understand(subject, runner.copies.recipe.seed)
    model = runner.copies.of(setting)
    copied = duplicate(theirs.copies.of(setting), wide=False)
    by_order = _load(model, copied, mapping)
    other = theirs.using(copied, setting)
    for run, keep, what in cases(runner, setting):
        inputs = inputs_of_other(runner, theirs, run.inputs)
        if inputs is None:
            continue
        recorders = Recorder(), Recorder()
        with torch.no_grad():
            first = runner.answer(run, recorders[0])
            try:
                second = other.answer(Run(inputs, run.setting), recorders[1])
            except Exception as error:
                raise RefusalError(f"the other model raised {last_line(error)[:160]}") from error
        if keep is not None and first.shape == second.shape:
            first, second = keep.of(first), keep.of(second)
        limit = max(runner.facts.threshold, theirs.facts.threshold)
        far, index = deviation(first, second)
        guilty = None
        if far > limit:
            guilty = first_difference(*recorders, limit) or guilty_part(runner.copies.model, "")
        where = {} if keep is None else {"sample": keep.rows[index]}
        note = (
            f"answers are {far:.2g} apart from those of {subject.name} with the same weights{what}"
        )
        if by_order:
            note += "; some weights were paired by order alone, unlike with like=(other, function)"
        scaled = far if far > limit else min(far, runner.facts.threshold)
        yield Outcome(scaled, note, run.setting, None, Evidence(where, module=guilty), by_order)


def _load(model: nn.Module, other: nn.Module, mapping: Any) -> bool:
    """Put one model's weights into the other; return whether only their order paired some."""
    wanted = other.state_dict()
    if mapping is not None:
        weights, by_order = dict(mapping(model.state_dict())), False
    else:
        pairs = paired(model.state_dict(), wanted)
        state = model.state_dict()
        weights = {name: state[its] for name, its in pairs.names.items()}
        by_order = pairs.by_order
    missing = [n for n, _ in trained(other) if n not in weights]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RefusalError(
            f"no weight was found for `{missing[0]}`{more} of the other model; say where they come "
            "from with like=(other, function), which takes one state dict and returns the other"
        )
    try:
        other.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise RefusalError(f"its weights do not fit: {last_line(error)[:160]}") from error
    return by_order


def cases(runner: Runner, setting: Setting) -> Iterator[tuple[Run, Cells | None, str]]:
    """Yield plain rows, longer ones, and rows with padding: runs and what must agree."""
    yield Run(runner.inputs(setting), setting), None, ""
    axis, spans = runner.signature.axis, runner.facts.spans
    if axis and spans:
        longer = Setting(length=min(max(spans) + 5, 40), weights=setting.weights)
        if runner.attempt(runner.inputs(longer), longer) is not None:
            yield Run(runner.inputs(longer), longer), None, f" at {longer.length} tokens"
    if axis and runner.facts.masks_over(axis):
        for left in (False, True):
            if left and padding.takes_left_padding(runner):
                continue
            inputs = runner.inputs(setting)
            real = padding.real_tokens(runner, inputs, axis, left=left)
            keep = padding.protected(runner, inputs, axis, real)
            padded = {**inputs, **padding.arguments(runner, axis, real)}
            yield Run(padded, setting), keep, f", with {'left' if left else 'right'} padding"


def inputs_of_other(runner: Runner, theirs: Runner, inputs: Inputs) -> Inputs | None:
    """Return the same inputs by the names of the other model; None where it takes no such mask."""
    ours, their_inputs = runner.signature, {}
    for mine, its in zip(ours.inputs, theirs.signature.inputs, strict=False):
        if mine.kind == its.kind == "tokens" and its.high < mine.high:
            raise RefusalError(f"the other reads {its.high} ids, and this one {mine.high}")
        their_inputs[its.name] = inputs[mine.name]
    if len(their_inputs) != len(theirs.signature.inputs):
        raise RefusalError("the other model takes more inputs than this one")
    axis = ours.axis
    masks = [mask for mask in runner.facts.masks_over(axis) if mask.name in inputs] if axis else []
    if not masks:
        return their_inputs
    real = masks[0].real(inputs[masks[0].name], ours.length_of(inputs))
    if not theirs.facts.masks_over(theirs.signature.axis):
        return None
    return their_inputs | padding.arguments(theirs, theirs.signature.axis, real)


def both_weights(runner: Runner) -> Iterator[Setting]:
    """Try random weights, and the model's own."""
    yield PLAIN
    yield Setting(weights="own")


LAWS = (
    Law(
        AGREEMENT,
        says="A model answers as another one does that is meant to be the same.",
        why="Otherwise a port has another order of heads, sign of a bias or scale.",
        how="With check(model, like=other) the other model gets the same weights, by name and "
        "shape or by a function of yours, and answers are compared, with padding too.",
        trials=agreement,
        applies=has_a_counterpart,
        sweep=both_weights,
    ),
)
