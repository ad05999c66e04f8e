"""What is in an optimizer gets a gradient and moves."""

from __future__ import annotations

import math

import torch
from torch import nn

from querykey.laws.finding import Finding
from querykey.laws.training.coverage import blamed, keys_of, uncovered
from querykey.laws.training.graph import nodes_behind
from querykey.laws.training.law import TrainingLaw
from querykey.laws.training.ledger import mark_of
from querykey.laws.training.recording import Recording
from querykey.words import and_more

UPDATE = "training.update"
HALF = (torch.bfloat16, torch.float16)


def update(recording: Recording) -> Finding:
    """Judge whether all parameters of the optimizers move."""
    if not recording.steps:
        return _never_stepped(recording)
    findings = [f for f in (_unmoved(recording), _cleared(recording), _cut(recording)) if f]
    findings.sort(key=lambda finding: finding.verdict != "violated")
    return findings[0] if findings else Finding(UPDATE, "holds")


def _never_stepped(recording: Recording) -> Finding:
    """Judge a loop in which no optimizer takes a step."""
    leaves = recording.leaves
    moved = any(mark_of(leaf) != recording.values.get(key) for key, leaf in leaves.items())
    if moved or len(recording.backwards) < 2:
        note = "no optimizer of torch took a step"
        return Finding(UPDATE, "not-applicable", note=note)
    count = len(recording.backwards)
    note = f"{count} backward passes were made and no optimizer took a step: nothing moves"
    return Finding(UPDATE, "violated" if count > 4 else "advice", 1.0, note=note)


def _unmoved(recording: Recording) -> Finding | None:
    """Return the finding on parameters that steps with a gradient leave as they are."""
    still: dict[str, list[int]] = {}
    for key, steps in _steps_by_parameter(recording).items():
        parameter = recording.ledger.parameters[key]
        if len(steps) < 2 or mark_of(parameter) != recording.values.get(key):
            continue
        rates = [rate for rate, _ in steps]
        largest = max(rate * min(size, 1.0) for rate, size in steps)
        if not any(rates):
            still.setdefault("rate", []).append(key)
        elif parameter.dtype in HALF:
            still.setdefault("rounding", []).append(key)
        elif largest > 1e-5 * max(float(parameter.detach().abs().max()), 1e-30):
            still.setdefault("put back", []).append(key)
    for cause, keys in still.items():
        name, dtype = recording.name_of(keys[0]), recording.ledger.parameters[keys[0]].dtype
        more = and_more(len(keys) - 1, "parameter")
        note = (
            f"{name}{more} have a gradient and do not move in any step: "
            + {
                "rate": "their learning rate is 0",
                "rounding": f"the steps are too small for {str(dtype).removeprefix('torch.')}, "
                f"whose rounding takes them; keep the weights in float32",
                "put back": "something puts the old values back",
            }[cause]
        )
        every = len(keys) == len(recording.trained())
        verdict = "violated" if cause != "rate" or every else "advice"
        return blamed(UPDATE, verdict, note, recording.uses.owner(keys[0]), recording)
    return None


def _steps_by_parameter(recording: Recording) -> dict[int, list[tuple[float, float]]]:
    """Return the rate and the gradient's norm of all steps with a gradient, by parameter."""
    steps: dict[int, list[tuple[float, float]]] = {}
    for step in recording.steps:
        for group, rate in zip(step.optimizer.param_groups, step.rates, strict=True):
            for parameter in group["params"]:
                size = step.gradients.get(id(parameter), 0.0)
                if size > 0 and not math.isnan(rate):
                    steps.setdefault(id(parameter), []).append((rate, size))
    return steps


def _cleared(recording: Recording) -> Finding | None:
    """Return the finding on gradients that are gone when the optimizer takes its step."""
    steps = recording.steps
    if len(steps) < 2 or any(step.gradients.get(k) for step in steps for k in step.gradients):
        return None
    leaves = recording.leaves.keys()
    lost = [key for step in steps for key in keys_of(step.optimizer) if key in leaves]
    if not lost:
        return None
    note = (
        f"{steps[0].name} finds no gradient at any of its {len(steps)} steps, though backward() "
        f"makes them: they are cleared between backward() and step() ({steps[0].site})"
    )
    return Finding(UPDATE, "violated", 1.0, note=note, source=steps[0].source)


def _cut(recording: Recording) -> Finding | None:
    """Return the finding on parameters of an optimizer that never get a gradient."""
    leaves = recording.leaves.keys()
    if not any(keys_of(step.optimizer) & leaves for step in recording.steps):
        return _apart(recording)
    keys = dict.fromkeys(
        id(p)
        for step in recording.steps
        for group in step.optimizer.param_groups
        for p in group["params"]
        if p.requires_grad and p.numel() and id(p) not in leaves
    )
    used = {key: use for key in keys if (use := recording.uses.owner(key))}
    if uncovered(recording):  # what is in their place is what another law tells of
        keys = used
    if not keys:
        return None
    cut = _upstream(recording)
    for key, use in used.items():
        name = recording.name_of(key)
        more = and_more(len(keys) - 1, "parameter")
        beginning = f"{name}{more} are in the optimizer and never get a gradient: "
        if key in cut:
            note = f"{beginning}{cut[key]}"
            return blamed(UPDATE, "violated", note, use, recording)
        if use.without_graph and not use.with_graph:
            note = f"{beginning}their module only runs under no_grad"
            return blamed(UPDATE, "violated", note, use, recording)
    first = next(iter(keys))
    note = (
        f"{recording.name_of(first)} is in the optimizer and gets no gradient in "
        f"{len(recording.backwards)} backward passes: is it used, and cut off nowhere?"
    )
    return blamed(UPDATE, "advice", note, recording.uses.owner(first), recording)


def _apart(recording: Recording) -> Finding | None:
    """Return the breach of losses that do not depend on any parameter of an optimizer."""
    steps, count = recording.steps, len(recording.backwards)
    parameters = any(isinstance(leaf, nn.Parameter) for leaf in recording.leaves.values())
    if parameters or uncovered(recording) or any(step.gradients for step in steps) or count < 2:
        return None  # the law of optimizers tells of it, or the loop sets gradients itself
    first = recording.backwards[0]
    note = (
        f"no parameter of {steps[0].name} gets a gradient in {count} backward passes: the loss is "
        f"cut off from them, as by item(), numpy() or a new tensor ({first.site})"
    )
    return Finding(UPDATE, "violated", 1.0, note=note, source=first.source)


def _upstream(recording: Recording) -> dict[int, str]:
    """Return the parameters behind a detach() or .data, and what cuts them off, with its line."""
    return {
        id(variable): line
        for cut, line in recording.detached
        for node in nodes_behind([cut])
        if (variable := getattr(node, "variable", None)) is not None
    }


LAWS = (
    TrainingLaw(
        UPDATE,
        says="Every parameter of an optimizer gets a gradient and moves.",
        why="Otherwise a part of the model stays as it began: cut off, cleared, or rounded away.",
        how="Values before the first and after the last step are compared, and the parameters of "
        "the optimizers with those that the graph of a loss ends in.",
        judge=update,
    ),
)
