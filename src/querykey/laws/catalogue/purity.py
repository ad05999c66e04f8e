"""A forward pass leaves its inputs as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import torch

from querykey.laws.blaming.recorder import WriteRecorder
from querykey.laws.catalogue import padding, sweeps
from querykey.laws.law import Law
from querykey.laws.run import PLAIN, Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome
from querykey.laws.understanding.signature import back, front


def purity(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Compare every tensor that is passed with a copy taken before, with padding as well."""
    inputs = runner.inputs(setting)
    yield _outcome(runner, inputs, setting)
    if setting == PLAIN and runner.signature.main.kind == "tokens":
        with suppress(Exception):  # the first and last ids may mean something to it
            yield _outcome(runner, with_ids_at_the_edges(runner, inputs), setting)
    if setting.mask:
        for axis in padding.padded_axes(runner):
            real = padding.real_tokens(runner, inputs, axis)
            masks = padding.arguments(runner, axis, real)
            yield _outcome(runner, {**inputs, **masks}, setting)


def with_ids_at_the_edges(runner: Runner, inputs: Inputs) -> Inputs:
    """Return inputs that hold the last ids of the vocabulary early, and the first ones late."""
    main = runner.signature.main
    value = front(main, inputs[main.name].clone())
    few = min(3, value.shape[1] // 2, main.high - main.low) if value.dim() == 2 else 0
    if few:
        value[:, 1 : 1 + few] = torch.arange(main.high - few, main.high)
        value[:, -few:] = torch.arange(main.low, main.low + few)
    return {**inputs, main.name: back(main, value)}


def _outcome(runner: Runner, inputs: Inputs, setting: Setting) -> Outcome:
    """Call once and compare; where an input changed, call again and record who wrote it."""
    complete = runner.copies.on_device(runner.complete(Run(inputs, setting)))
    before = {n: v for n, v in complete.items() if isinstance(v, torch.Tensor)}
    passed = {**complete, **{n: v.clone() for n, v in before.items()}}
    with torch.no_grad():
        runner.call(passed, setting, in_place=True)
    changed = [n for n, v in before.items() if not torch.equal(v, passed[n])]
    if not changed:
        return Outcome(0.0, setting=setting)
    again = {**complete, **{n: v.clone() for n, v in before.items()}}
    recorder = WriteRecorder(watched=[again[n] for n in changed])
    with torch.no_grad():
        runner.call(again, setting, recorder, in_place=True)
    cells = int((before[changed[0]] != passed[changed[0]]).sum())
    note = (
        f"forward changed its input `{changed[0]}` in place, in {cells} of "
        f"{before[changed[0]].numel()} numbers"
    )
    return Outcome(1.0, note, setting, evidence=Evidence(module=recorder.writer))


LAWS = (
    Law(
        "purity",
        says="A forward pass leaves its inputs as they are.",
        why="Otherwise the caller's data is wrong in the next call.",
        how="The tensors that were passed are compared with copies taken before the call.",
        trials=purity,
        sweep=sweeps.as_called,
    ),
)
