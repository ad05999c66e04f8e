"""Every implementation of attention gives the same answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from querykey.laws.catalogue import padding, sweeps
from querykey.laws.catalogue.batch import whole_rows
from querykey.laws.catalogue.precision import fused
from querykey.laws.law import Law
from querykey.laws.run import Conditions, Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Cells, Outcome, Trial

WHOLE_LAYER = "multi_head_attention_forward"
FUSED = {"scaled_dot_product_attention", WHOLE_LAYER}


def has_a_choice(runner: Runner) -> str:
    """Return why the law does not apply to a model that computes attention in one way only."""
    names = runner.facts.arguments.implementations
    if len(names) > 1:
        return ""
    if "math" in names and runner.copies.functions & FUSED:
        return ""
    return "it computes attention in one way only"


def backends(runner: Runner, setting: Setting) -> Iterator[Trial | Outcome]:
    """Compare every implementation with the first, without padding and with it."""
    uses_fused = bool(runner.copies.functions & FUSED)
    if runner.copies.device.type == "cuda" and runner.facts.rounding.wide and uses_fused:
        yield from fused(runner, setting)
    inputs = runner.inputs(setting)
    every = whole_rows(runner, setting, range(runner.signature.batch_of(inputs)))
    for first, other in _choices(runner, setting, inputs):
        what = f"attention was computed by {other.attention or 'torch as it comes'}"
        yield Trial(Run(inputs, first), Run(inputs, other), (every, every), None, what)
        if not runner.facts.masks_over(runner.signature.axis):
            continue
        # torch's own fast path is no place for rows that begin with padding: it gives NaN.
        bare = other.conditions.bare
        for left in (
            (False, True) if not padding.takes_left_padding(runner) and not bare else (False,)
        ):
            trial = _with_padding(runner, inputs, (first, other), left)
            if len(trial.keep[0]):
                yield replace(trial, what=f"{what}, with {'left' if left else 'right'} padding")


def _choices(runner: Runner, setting: Setting, inputs: Inputs) -> Iterator[tuple[Setting, Setting]]:
    """Yield the settings of two implementations that must agree."""
    names = runner.facts.arguments.implementations
    yield from (
        (setting, replace(setting, attention=name)) for name in names if "=" in name
    )  # attributes that are turned round
    if "math" not in names:
        first, *others = [replace(setting, attention=name) for name in names]
        yield from ((first, other) for other in others)
        return
    yield replace(setting, attention="math"), setting
    # torch takes its fast path through a whole layer only where nothing is intercepted. Code that
    # asks for float32 gets it there, so both runs are bare: what it rounds, it rounds in both.
    bare = replace(setting, conditions=Conditions(bare=True))
    if WHOLE_LAYER in runner.copies.functions and _repeats(runner, inputs, bare):
        yield replace(bare, attention="math"), bare


def _with_padding(
    runner: Runner, inputs: Inputs, settings: tuple[Setting, Setting], left: bool
) -> Trial:
    """Return the comparison of two implementations on padded rows, at real tokens."""
    axis = runner.signature.axis
    real = padding.real_tokens(runner, inputs, axis, left)
    padded = {**inputs, **padding.arguments(runner, axis, real)}
    keep = padding.protected(runner, inputs, axis, real)
    first, second = (Run(padded, setting) for setting in settings)
    if settings[1].conditions.bare:
        keep = _finite(runner, (first, second), keep)
    return Trial(first, second, (keep, keep))


def _repeats(runner: Runner, inputs: Inputs, bare: Setting) -> bool:
    """Return whether the model answers alike again; the law of determinism finds dropout."""
    again = replace(bare, conditions=replace(bare.conditions, reseeded=True))
    first, second = (runner.remembered(Run(inputs, setting)) for setting in (bare, again))
    return torch.allclose(first, second, rtol=runner.facts.threshold, equal_nan=True)


def _finite(runner: Runner, runs: Iterable[Run], keep: Cells) -> Cells:
    """Return the cells that are finite in every run: torch's ways differ on an empty query.

    The laws of padding find a mask that leaves a query with nothing to see.
    """
    finite = torch.ones(len(keep), dtype=torch.bool)
    for run in runs:
        finite &= keep.of(runner.remembered(run)).isfinite().flatten(1).all(1)
    return keep.where(finite.tolist())


LAWS = (
    Law(
        "backend.agree",
        says="Every implementation of attention gives the same answers.",
        why="Otherwise a switch that is meant for speed changes the model.",
        how="The same inputs, padded and not, are run with every implementation.",
        trials=backends,
        applies=has_a_choice,
        sweep=sweeps.once,
    ),
)
