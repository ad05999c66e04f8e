"""Every parameter that is used gets a gradient, and so does every row and column of a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from querykey.laws.blaming.gradient_cut import who_cuts
from querykey.laws.blaming.guilty_module import GuiltyModule, guilty_part
from querykey.laws.blaming.limitations import by_design, limitation
from querykey.laws.blaming.recorder import Recorder
from querykey.laws.catalogue import sweeps
from querykey.laws.catalogue.derivatives import backward, score, trained
from querykey.laws.catalogue.not_finite import own_where_spoiled, spoiled, told
from querykey.laws.catalogue.rounding import Roundings, ends_at_rounding
from querykey.laws.catalogue.unreached import UnreachedLines
from querykey.laws.catalogue.uses import Uses, hidden_parameters
from querykey.laws.catalogue.zero_weights import own_where_zero, stuck
from querykey.laws.law import Law
from querykey.laws.report import Finding
from querykey.laws.run import Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome
from querykey.laws.understanding.loss import distinct_labels
from querykey.laws.understanding.outputs import answers, tensors
from querykey.laws.understanding.reachable import submodule
from querykey.words import and_more, last_line

NAME = "gradient.reaches"
PASSES = ((0, False), (1, False), (0, True))  # seeds of inputs, and whether in training mode
LONGER = (60, 300, 1500)  # lengths at which what nothing has reached is tried again


def has_weights(runner: Runner) -> str:
    """Return why the law does not apply to a model without anything to train."""
    return "" if trained(runner.copies.model) else "it has no trained parameters"


@dataclass
class Reached:
    """What a few backward passes reached: parameters, modules that ran, and lines of weights."""

    parameters: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)  # parameters that some operation has read
    order: list[str] = field(default_factory=list)  # of the last pass, as modules ended
    lines: UnreachedLines = field(default_factory=UnreachedLines)
    by_loss: set[str] = field(default_factory=set)  # tables, by a loss that is returned
    unregistered: dict[str, str] = field(default_factory=dict)  # what it is, by its path
    rounded: list[GuiltyModule] = field(default_factory=list)  # where a derivative ends
    differentiable: bool = False  # some output of some pass is
    refused: str = ""  # what the model raised in training mode


def reaches(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Differentiate all outputs by all parameters, on two inputs and in training mode."""
    if setting.weights == "own" and (weights := spoiled(runner)):
        yield told(runner, weights)
        return
    if setting.weights == "own":
        yield from stuck(runner, setting)
    if setting.weights == "own":  # a branch that begins at zero learns after the first step
        copies = runner.copies.by(replace(runner.copies.recipe, noisy=True))
        runner = replace(runner, copies=copies, answers={})
    reached = _reached(runner, setting)
    if not reached.differentiable:
        yield _nothing(runner, setting)
        return
    yield from _unregistered(runner, setting, reached)
    names = [name for name, p in trained(runner.copies.model) if p.numel()]
    dead = _dead(runner, setting, names, reached)
    unexcused = [n for n in dead if not by_design(runner.subject, NAME, n.rpartition(".")[0])]
    dead = unexcused or dead  # what nobody calls a design comes first
    if dead:
        owner = guilty_part(runner.copies.of(setting), _last_dead(dead, reached))
        note = (
            f"{dead[0]} is used but gets no gradient; {len(dead)} of {len(names)} parameters get "
            "none"
        )
        if not limitation(runner.copies.model, _finding(owner, note)):
            owner = who_cuts(runner, setting, owner)
        yield Outcome(1.0, note, setting, evidence=Evidence(module=owner))
        return
    yield _in_part(runner, setting, reached.lines)
    if reached.rounded:
        yield ends_at_rounding(setting, reached.rounded)
    unused = [name for name in names if name not in reached.used]
    if unused:
        by_loss = _by_its_loss(runner, setting)
        unused = [name for name in unused if name not in by_loss]
    if unused:
        more = and_more(len(unused) - 1, "parameter")
        note = f"no operation reads {unused[0]}{more}, so it never learns: is it needed?"
        yield Outcome(1.0, note, setting, advice=True)
    if reached.refused:
        note = (
            f"it was tried in evaluation mode alone; in training mode it raises {reached.refused}"
        )
        yield Outcome(1.0, note, setting, advice=True)


def once_or_spoiled(runner: Runner) -> Iterator[Setting]:
    """Try weights drawn anew, and the model's own where they are not finite, or zeros."""
    yield from sweeps.once(runner)
    yield from own_where_spoiled(runner)
    yield from own_where_zero(runner)


def _dead(runner: Runner, setting: Setting, names: list[str], reached: Reached) -> list[str]:
    """Return the parameters that are used and get no gradient, on much longer sequences as well.

    What carries a state from one segment to the next is reached only where there are two; behind
    strided convolutions two steps are many samples.
    """
    learning = reached.parameters | reached.by_loss
    dead = [name for name in names if name in reached.used and name not in learning]
    for length in LONGER if runner.signature.varies else ():
        if not dead:
            break
        try:
            passed = _reached(runner, replace(setting, length=length), seeds=((0, False),))
        except Exception:  # the model takes no such length
            continue
        dead = [name for name in dead if name not in passed.parameters]
    return dead


def _by_its_loss(runner: Runner, setting: Setting) -> set[str]:
    """Return the parameters that are read where the model is asked for its own loss."""
    if runner.facts.loss is None:
        return set()
    inputs, uses = runner.inputs(setting), Uses()
    labels = {runner.facts.loss.name: distinct_labels(runner, inputs)}
    model = runner.copies.of(setting)
    with suppress(Exception), torch.no_grad(), uses:
        runner.call(runner.complete(Run({**inputs, **labels}, setting)), setting)
    return {name for name, p in trained(model) if id(p) in uses.ids}


def _finding(owner: GuiltyModule, note: str) -> Finding:
    return Finding(NAME, "violated", module=owner.path, source=owner.source, note=note)


def _nothing(runner: Runner, setting: Setting) -> Outcome:
    """Return the breach of a model that gives nothing which could be differentiated."""
    guilty = who_cuts(runner, setting, guilty_part(runner.copies.of(setting), ""))
    note = (
        "no output can be differentiated, so nothing can be trained: is it run under no_grad or "
        "inference_mode, or detached at the end?"
    )
    return Outcome(1.0, note, setting, evidence=Evidence(module=guilty))


def _unregistered(runner: Runner, setting: Setting, reached: Reached) -> Iterator[Outcome]:
    """Yield a breach for what learns by its derivative and is hidden from every optimizer."""
    if not reached.unregistered:
        return
    path, what = next(iter(reached.unregistered.items()))
    model = runner.copies.of(setting)
    names = [name for name, _ in model.named_modules()]
    holder = max((n for n in names if path.startswith(f"{n}.") or not n), key=len, default="")
    note = (
        f"{what} is used and not registered, so model.parameters() and every optimizer miss it: "
        "keep modules in an nn.ModuleList or nn.ModuleDict, and tensors in an nn.Parameter"
    )
    yield Outcome(1.0, note, setting, evidence=Evidence(module=guilty_part(model, holder)))


def _reached(
    runner: Runner, setting: Setting, seeds: tuple[tuple[int, bool], ...] = PASSES
) -> Reached:
    """Return what some backward passes reach: two inputs, and one of them in training mode."""
    reached = Reached()
    for seed, train in seeds:
        recorder, uses = Recorder(), Uses()
        setting = replace(setting, train=train)
        model = runner.copies.of(setting)
        inputs = runner.complete(Run(runner.inputs(setting, seed), setting))
        hidden = hidden_parameters(model)
        roundings = Roundings(model, recorder)
        model.zero_grad(set_to_none=True)
        try:
            with uses, roundings:
                output = runner.call(inputs, setting, recorder)
        except Exception as error:
            if not train:
                raise
            reached.refused = last_line(error)
            continue
        reached.order = [call.path for call in recorder.done]
        ran = {c.path for c in recorder.done if any(t.numel() for t in c.inputs)}
        reached.used |= {
            n for n, p in trained(model)
            if id(p) in uses.ids or _runs_unseen(model, n, ran)
        }  # fmt: skip
        parts = [score(t) for _, t in answers(output) if t.requires_grad]
        if parts:
            reached.differentiable = True
            reached.by_loss |= _tables_by_loss(model, output, uses)
            backward(torch.stack([part.double() for part in parts]).sum())
            reached.parameters |= {
                n for n, p in trained(model) if p.grad is not None and bool((p.grad != 0).any())
            }
            reached.lines.note(model)
            reached.rounded += roundings.ending
            reached.unregistered |= {
                path: what for path, (what, tensor) in hidden.items() if tensor.grad is not None
            }
        model.zero_grad(set_to_none=True)
        for _, tensor in hidden.values():
            tensor.grad = None
    return reached


def _tables_by_loss(model: torch.nn.Module, output: Any, uses: Uses) -> set[str]:
    """Return the tables that learn by a loss among the outputs.

    A row that was chosen by its number takes the place of what it is near, and lets the derivative
    pass to that: the loss alone moves the row.
    """
    losses = [t for _, t in tensors(output) if t.numel() == 1 and t.requires_grad]
    looked_up = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    tables = [(n, p) for n, p in trained(model) if id(p) in looked_up | uses.looked_up]
    if not losses or not tables:
        return set()
    weights = [p for _, p in tables]
    total = torch.stack([loss.double().squeeze() for loss in losses]).sum()
    gradients = torch.autograd.grad(total, weights, retain_graph=True, allow_unused=True)
    return {n for (n, _), g in zip(tables, gradients, strict=True) if g is not None and g.any()}


def _runs_unseen(model: torch.nn.Module, name: str, ran: set[str]) -> bool:
    """Return whether a parameter was read out of sight: by a kernel of torch's, or TorchScript."""
    path = name.rpartition(".")[0]
    owner = submodule(model, path)
    if isinstance(owner, torch.jit.ScriptModule):
        return True
    return type(owner).__module__.startswith("torch.") and path in ran


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
        why="Otherwise a branch of the model never learns, or nothing of it does.",
        how="All outputs are differentiated by all parameters, on two inputs and in training mode; "
        "modules that a plain list or dict hides from every optimizer count as breaches, and so do "
        "weights that are NaN.",
        trials=reaches,
        applies=has_weights,
        sweep=once_or_spoiled,
    ),
)
