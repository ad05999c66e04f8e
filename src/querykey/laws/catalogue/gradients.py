"""Every parameter that is used gets a gradient, and so does every row and column of a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from querykey.laws.blaming.guilty_module import guilty_part
from querykey.laws.blaming.limitations import by_design
from querykey.laws.blaming.recorder import Recorder
from querykey.laws.catalogue import sweeps
from querykey.laws.catalogue.derivatives import backward, score, trained
from querykey.laws.catalogue.unreached import UnreachedLines
from querykey.laws.law import Law
from querykey.laws.run import Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome
from querykey.laws.understanding.outputs import answers

NAME = "gradient.reaches"


def has_weights(runner: Runner) -> str:
    """Return why the law does not apply to a model without anything to train."""
    return "" if trained(runner.copies.model) else "it has no trained parameters"


@dataclass
class Reached:
    """What a few backward passes reached: parameters, modules that ran, and lines of weights."""

    parameters: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    order: list[str] = field(default_factory=list)  # of the last pass, as modules ended
    lines: UnreachedLines = field(default_factory=UnreachedLines)


def reaches(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Differentiate all outputs by all parameters, on two inputs and in training mode."""
    if setting.weights == "own":  # a branch that begins at zero learns after the first step
        copies = runner.copies.by(replace(runner.copies.recipe, noisy=True))
        runner = replace(runner, copies=copies, answers={})
    reached = _reached(runner, setting)
    names = [name for name, _ in trained(runner.copies.model)]
    used = [n for n in names if n.rpartition(".")[0] in reached.modules]
    dead = [name for name in used if name not in reached.parameters]
    unexcused = [n for n in dead if not by_design(runner.subject, NAME, n.rpartition(".")[0])]
    dead = unexcused or dead  # what nobody calls a design comes first
    if not dead:
        yield _in_part(runner, setting, reached.lines)
        return
    owner = _last_dead(dead, reached)
    note = (
        f"{dead[0]} is used but gets no gradient, as {len(dead)} of {len(names)} parameters do not"
    )
    guilty = guilty_part(runner.copies.of(setting), owner)
    yield Outcome(1.0, note, setting, evidence=Evidence(module=guilty))


def _reached(runner: Runner, setting: Setting) -> Reached:
    """Return what three backward passes reach: two inputs, and one of them in training mode."""
    reached = Reached()
    for seed, train in ((0, False), (1, False), (0, True)):
        recorder = Recorder()
        setting = replace(setting, train=train)
        model = runner.copies.of(setting)
        inputs = runner.complete(Run(runner.inputs(setting, seed), setting))
        model.zero_grad(set_to_none=True)
        output = runner.call(inputs, setting, recorder)
        reached.order = [call.path for call in recorder.done]
        parts = [score(t) for _, t in answers(output) if t.requires_grad]
        if parts:
            backward(torch.stack([part.double() for part in parts]).sum())
            reached.parameters |= {
                n for n, p in trained(model) if p.grad is not None and bool((p.grad != 0).any())
            }
            reached.lines.note(model)
            reached.modules |= {c.path for c in recorder.done if any(t.numel() for t in c.inputs)}
        model.zero_grad(set_to_none=True)
    return reached


def _in_part(runner: Runner, setting: Setting, unreached: UnreachedLines) -> Outcome:
    """Judge the rows and columns of parameters that are reached as a whole."""
    lines = [
        (name.rpartition(".")[0], what) for name, what in unreached.that_matter(runner, setting)
    ]
    # What nobody calls a design comes first.
    lines.sort(key=lambda line: bool(by_design(runner.subject, NAME, line[0])))
    if not lines:
        return Outcome(0.0, setting=setting)
    owner, what = lines[0]
    evidence = Evidence(module=guilty_part(runner.copies.model, owner))
    return Outcome(1.0, f"{what} are used but get no gradient", setting, evidence=evidence)


def _last_dead(dead: list[str], reached: Reached) -> str:
    """Return, of the first branch that is dead as a whole, the part that ran last."""

    def whole(owner: str) -> str:
        while "." in owner:
            above = owner.rpartition(".")[0]
            if any(name.startswith(f"{above}.") for name in reached.parameters):
                break
            owner = above
        return owner

    branches = list(dict.fromkeys(whole(name.rpartition(".")[0]) for name in dead))
    above = branches[0].rpartition(".")[0]
    beside = [b for b in branches if b.rpartition(".")[0] == above and b in reached.order]
    return max(beside, key=reached.order.index, default=branches[0])


LAWS = (
    Law(
        NAME,
        says="Every parameter that is used gets a gradient, and so does every row of a matrix.",
        why="Otherwise a branch of the model never learns.",
        how="All outputs are differentiated by all parameters, on two inputs and in training mode.",
        trials=reaches,
        applies=has_weights,
        sweep=sweeps.once,
    ),
)
