"""A forward pass leaves its inputs as they are."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from querykey.laws.blaming.recorder import WriteRecorder
from querykey.laws.catalogue import padding, sweeps
from querykey.laws.law import Law
from querykey.laws.run import Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome


def purity(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Compare every tensor that is passed with a copy taken before, with padding as well."""
    inputs = runner.inputs(setting)
    yield _outcome(runner, inputs, setting)
    if setting.mask:
        for axis in padding.padded_axes(runner):
            real = padding.real_tokens(runner, inputs, axis)
            masks = padding.arguments(runner, axis, real)
            yield _outcome(runner, {**inputs, **masks}, setting)


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
