"""What gets a gradient is in an optimizer, is registered, and moves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from querykey.laws.blaming.guilty_module import source_of
from querykey.laws.finding import Finding
from querykey.laws.training.graph import nodes_behind
from querykey.laws.training.law import TrainingLaw
from querykey.laws.training.ledger import mark_of
from querykey.laws.training.objects import alive
from querykey.laws.training.recording import Recording
from querykey.laws.training.uses import Use

OPTIMIZER, REGISTRATION, UPDATE = "training.optimizer", "training.registration", "training.update"
HALF = (torch.bfloat16, torch.float16)


def _keys(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _uncovered(recording: Recording) -> dict[int, torch.Tensor]:
    """Return what gets gradients and is in no optimizer, by id; it is looked for once."""
    if recording.uncovered is None:
        recording.uncovered = _find_uncovered(recording)
    return recording.uncovered


def _find_uncovered(recording: Recording) -> dict[int, torch.Tensor]:
    """Return what gets gradients and is in no optimizer, by id.

    A tensor that is no parameter counts where several passes meet it: others are inputs.
    """
    met: dict[int, list[torch.Tensor]] = {}
    for backward in recording.backwards:
        for key, leaf in backward.leaves.items():
            met.setdefault(key, []).append(leaf)
    several = len(recording.backwards) > 1
    trained = {
        key: leaves[0]
        for key, leaves in met.items()
        if isinstance(leaves[0], nn.Parameter) or (several and len(leaves) > 1)
    }
    known = {key for optimizer in recording.optimizers for key in _keys(optimizer)}
    missing = {key: leaf for key, leaf in trained.items() if key not in known}
    if missing:  # an optimizer may exist whose turn has not come
        every = [*alive(torch.optim.Optimizer), *recording.made_of(torch.optim.Optimizer)]
        others = {key for other in every for key in _keys_of_any(other)}
        missing = {key: leaf for key, leaf in missing.items() if key not in others}
    return missing


def _keys_of_any(optimizer: Any) -> set[int]:
    """Return the parameters of an optimizer, also of one that is not made to its end."""
    try:
        return _keys(optimizer)
    except Exception:
        return set()


def optimizer(recording: Recording) -> Finding:
    """Judge whether all that gets a gradient is in an optimizer."""
    if not recording.steps:
        return Finding(OPTIMIZER, "not-applicable", note="no optimizer took a step")
    hidden = {key for key, _, _ in _hidden(recording)}
    missing = {k: p for k, p in _uncovered(recording).items() if k not in hidden}
    if recording.models:
        own = {id(p) for model in recording.models for p in model.parameters()}
        missing = {key: p for key, p in missing.items() if key in own}
    if not missing:
        return Finding(OPTIMIZER, "holds")
    leaves = {key for backward in recording.backwards for key in backward.leaves}
    stepped = {key for step in recording.steps for key in _keys(step.optimizer)}
    first = next(iter(missing))
    name, use = recording.name_of(first), recording.uses.owner(first)
    more = f" and {len(missing) - 1} more parameters" if len(missing) > 1 else ""
    if not stepped & leaves:
        note = (
            f"no parameter of {recording.steps[0].name} gets a gradient, and {name}{more} get "
            f"theirs outside of it: it was made for other tensors, before the model was copied, "
            f"moved or changed"
        )
        return _blamed(OPTIMIZER, "violated", note, use, recording)
    note = f"{name}{more} get a gradient and are in no optimizer, so they never move"
    if _may_be_meant(recording, missing):
        note += "; where they are to stay as they are, requires_grad_(False) says so, and is faster"
        return _blamed(OPTIMIZER, "advice", note, use, recording)
    return _blamed(OPTIMIZER, "violated", note, use, recording)


def _may_be_meant(recording: Recording, missing: Iterable[int]) -> bool:
    """Return whether what no optimizer has may be frozen on purpose.

    So may a model in evaluation mode, and the first layers of one whose last ones are trained.
    """
    uses = [recording.uses.owner(key) for key in missing]
    if any(use is None for use in uses) or recording.models:
        return False
    known = [use for use in uses if use is not None]
    if all(not use.module.training for use in known):
        return True
    trained = [recording.uses.owner(key) for key in recording.trained()]
    beginning = min((use.order for use in trained if use is not None), default=-1)
    return all(use.order < beginning for use in known)


def _blamed(
    law: str, verdict: str, note: str, use: Use | None, recording: Recording, path: str = ""
) -> Finding:
    """Return a finding that names a module."""
    if use is None:
        return Finding(law, verdict, 1.0, note=note)
    for root in recording.roots():
        for name, module in root.named_modules():
            if module is use.module:
                path = path or name
    return Finding(
        law, verdict, 1.0, module=path or "(model)", source=source_of(use.module), note=note
    )


def _hidden(recording: Recording) -> Iterator[tuple[int, str, Use | None]]:
    """Yield what learns inside a model and is not registered there: its id, place and use."""
    missing = _uncovered(recording)
    if not missing:
        return
    places = dict(_unregistered(recording))
    for key in missing:
        use = recording.uses.owner(key)
        if use is not None and not use.module.training:
            continue
        for holder in (key, *_around(recording, use)):
            if holder in places:
                yield key, places[holder], use
                break


def _around(recording: Recording, use: Use | None) -> list[int]:
    """Return the ids of a module and of all that hold it."""
    if use is None:
        return []
    holders = [u.module for u in recording.uses.all.values()]
    return [id(use.module), *(id(m) for m in holders if any(p is use.module for p in m.modules()))]


def _unregistered(recording: Recording) -> Iterator[tuple[int, str]]:
    """Yield modules and tensors in attributes that modules do not register, and their places."""
    ran = {id(use.module) for use in recording.uses.all.values()}
    leaves = {key for backward in recording.backwards for key in backward.leaves}
    for owner in recording.modules or alive(nn.Module):
        registered = {id(m) for m in owner.modules()} | {id(p) for p in owner.parameters()}
        for name, value in list(vars(owner).items()):
            if name.startswith("_") and name in vars(nn.Module()):
                continue
            for member, place in _held(value, f"{type(owner).__name__}.{name}"):
                if id(member) in ran | leaves and id(member) not in registered:
                    yield id(member), place


def _held(value: Any, place: str, depth: int = 0) -> Iterator[tuple[Any, str]]:
    """Yield the modules and tensors of an attribute: itself, or what a list or dict of it holds."""
    if isinstance(value, nn.Module | torch.Tensor):
        yield value, place if not depth else f"{place}, a plain list or dict"
    elif depth < 3 and isinstance(value, list | tuple | dict):
        for item in list(value.values()) if isinstance(value, dict) else value:
            yield from _held(item, place, depth + 1)


def registration(recording: Recording) -> Finding:
    """Judge whether all modules that learn are registered in the model that runs them."""
    hidden = list(_hidden(recording))
    if not hidden:
        return Finding(REGISTRATION, "holds")
    _, place, use = hidden[0]
    more = f" and {len(hidden) - 1} more parameters" if len(hidden) > 1 else ""
    what = type(use.module).__name__ if use else "a tensor"
    note = (
        f"{what} in {place}, is used and not registered, so model.parameters() and every "
        f"optimizer miss its weights{more}: keep modules in an nn.ModuleList or nn.ModuleDict, and "
        f"tensors in an nn.Parameter"
    )
    return _blamed(REGISTRATION, "violated", note, use, recording, path=place.split(",")[0])


def update(recording: Recording) -> Finding:
    """Judge whether all parameters of the optimizers move."""
    if not recording.steps:
        return _never_stepped(recording)
    findings = [f for f in (_unmoved(recording), _cleared(recording), _cut(recording)) if f]
    findings.sort(key=lambda finding: finding.verdict != "violated")
    return findings[0] if findings else Finding(UPDATE, "holds")


def _never_stepped(recording: Recording) -> Finding:
    """Judge a loop in which no optimizer takes a step."""
    leaves = {k: leaf for backward in recording.backwards for k, leaf in backward.leaves.items()}
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
        more = f" and {len(keys) - 1} more parameters" if len(keys) > 1 else ""
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
        return _blamed(UPDATE, verdict, note, recording.uses.owner(keys[0]), recording)
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
    leaves = {key for backward in recording.backwards for key in backward.leaves}
    lost = [key for step in steps for key in _keys(step.optimizer) if key in leaves]
    if not lost:
        return None
    note = (
        f"{steps[0].name} finds no gradient at any of its {len(steps)} steps, though backward() "
        f"makes them: they are cleared between backward() and step() ({steps[0].site})"
    )
    return Finding(UPDATE, "violated", 1.0, note=note, source=steps[0].source)


def _cut(recording: Recording) -> Finding | None:
    """Return the finding on parameters of an optimizer that never get a gradient."""
    leaves = {key for backward in recording.backwards for key in backward.leaves}
    if not any(_keys(step.optimizer) & leaves for step in recording.steps):
        return None  # the law of optimizers tells of that
    keys = dict.fromkeys(
        id(p)
        for step in recording.steps
        for group in step.optimizer.param_groups
        for p in group["params"]
        if p.requires_grad and p.numel() and id(p) not in leaves
    )
    used = {key: use for key in keys if (use := recording.uses.owner(key))}
    if _uncovered(recording):  # what is in their place is what another law tells of
        keys = used
    if not keys:
        return None
    cut = _upstream(recording)
    for key, use in used.items():
        name = recording.name_of(key)
        more = f" and {len(keys) - 1} more parameters" if len(keys) > 1 else ""
        beginning = f"{name}{more} are in the optimizer and never get a gradient: "
        if key in cut:
            note = f"{beginning}detach() cuts them off ({cut[key]})"
            return _blamed(UPDATE, "violated", note, use, recording)
        if use.without_graph and not use.with_graph:
            note = f"{beginning}their module only runs under no_grad"
            return _blamed(UPDATE, "violated", note, use, recording)
    first = next(iter(keys))
    note = (
        f"{recording.name_of(first)} is in the optimizer and gets no gradient in "
        f"{len(recording.backwards)} backward passes: is it used, and cut off nowhere?"
    )
    return _blamed(UPDATE, "advice", note, recording.uses.owner(first), recording)


def _upstream(recording: Recording) -> dict[int, str]:
    """Return the parameters behind a detach(), with its line."""
    return {
        id(variable): line
        for cut, line in recording.detached
        for node in nodes_behind([cut])
        if (variable := getattr(node, "variable", None)) is not None
    }


LAWS = (
    TrainingLaw(
        OPTIMIZER,
        says="Every parameter that gets a gradient is in an optimizer.",
        why="Otherwise it never moves: it was forgotten, or replaced after the optimizer was made.",
        how="The parameters that the graph of a loss ends in are looked up in all optimizers; what "
        "may be frozen on purpose is advice.",
        judge=optimizer,
    ),
    TrainingLaw(
        REGISTRATION,
        says="Every module that learns is registered in the model that runs it.",
        why="Otherwise model.parameters(), state_dict() and to() miss it: a plain list hides it.",
        how="What gets a gradient and is in no optimizer is looked for in plain attributes, lists "
        "and dicts of modules.",
        judge=registration,
    ),
    TrainingLaw(
        UPDATE,
        says="Every parameter of an optimizer gets a gradient and moves.",
        why="Otherwise a part of the model stays as it began: cut off, cleared, or rounded away.",
        how="Values before the first and after the last step are compared, and the parameters of "
        "the optimizers with those that the graph of a loss ends in.",
        judge=update,
    ),
)
