"""Who cuts a derivative off: the module in whose own code it gets lost."""

from __future__ import annotations

import torch

from querykey.laws.blaming.guilty_module import ROOT, GuiltyModule, describe
from querykey.laws.blaming.recorder import ModuleCall, Recorder
from querykey.laws.run import Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.understanding.outputs import answers


def who_cuts(runner: Runner, setting: Setting, dead: GuiltyModule) -> GuiltyModule:
    """Return the module that loses the derivative on its way to a dead one; else the dead one.

    A module whose outputs get no derivative was cut off by its caller. One that was entered with
    gradients switched off was, too.
    """
    recorder = Recorder(live=True)
    inputs = runner.complete(Run(runner.inputs(setting), setting))
    try:
        output = runner.call(inputs, setting, recorder)
        reached = _reached(recorder, output)
    except Exception:
        return dead
    path = "" if dead.path == ROOT else dead.path
    call = next((call for call in reversed(recorder.done) if call.path == path), None)
    if call is None:
        return dead
    dead_outputs = [t for t in call.outputs if t.requires_grad]
    while call.parent is not None and id(call) not in reached:
        call = recorder.begun[call.parent]
    lost = (c for c in recorder.done if _loses(c) and _follows(c, dead_outputs))
    return describe(next(lost, call))


def _loses(call: ModuleCall) -> bool:
    """Return whether a module's own code switches gradients off, or detaches all that it gives."""
    floats = [t for t in call.outputs if t.is_floating_point()]
    could = any(p.requires_grad for p in call.module.parameters()) or any(
        t.requires_grad for t in call.inputs
    )
    return (
        call.differentiable and could and bool(floats) and not any(t.requires_grad for t in floats)
    )


def _follows(call: ModuleCall, dead: list[torch.Tensor]) -> bool:
    """Return whether what a module got depends on these tensors; without any, whatever it got."""
    if not dead:
        return True
    inputs = [t.double().sum() for t in call.inputs if t.requires_grad and t.is_floating_point()]
    if not inputs:
        return False
    gradients = torch.autograd.grad(
        torch.stack(inputs).sum(), dead, retain_graph=True, allow_unused=True
    )
    return any(gradient is not None for gradient in gradients)


def _reached(recorder: Recorder, output: object) -> set[int]:
    """Return the ids of the calls some of whose outputs the derivative of the answers reaches."""
    parts = [t.sum() for _, t in answers(output) if t.requires_grad]
    pairs = [(id(c), t) for c in recorder.done for t in c.outputs if t.requires_grad]
    if not parts or not pairs:
        return set()
    gradients = torch.autograd.grad(
        torch.stack([part.double() for part in parts]).sum(),
        [tensor for _, tensor in pairs],
        retain_graph=True,
        allow_unused=True,
    )
    return {
        call
        for (call, _), gradient in zip(pairs, gradients, strict=True)
        if gradient is not None and bool((gradient != 0).any())
    }
