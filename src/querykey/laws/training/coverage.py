"""What gets a gradient is in an optimizer, and is registered in the model that runs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from querykey.laws.blaming.guilty_module import source_of
from querykey.laws.finding import Finding
from querykey.laws.training.law import TrainingLaw
from querykey.laws.training.objects import alive
from querykey.laws.training.recording import Recording
from querykey.laws.training.uses import Use
from querykey.words import and_more

OPTIMIZER, REGISTRATION = "training.optimizer", "training.registration"


def keys_of(optimizer: torch.optim.Optimizer) -> set[int]:
    """Return the ids of an optimizer's parameters."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def uncovered(recording: Recording) -> dict[int, torch.Tensor]:
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
    known = {key for optimizer in recording.optimizers for key in keys_of(optimizer)}
    missing = {key: leaf for key, leaf in trained.items() if key not in known}
    if missing:  # an optimizer may exist whose turn has not come
        every = [*alive(torch.optim.Optimizer), *recording.made_of(torch.optim.Optimizer)]
        others = {key for other in every for key in _keys_of_any(other)}
        missing = {key: leaf for key, leaf in missing.items() if key not in others}
    return missing


def _keys_of_any(optimizer: Any) -> set[int]:
    """Return the parameters of an optimizer, also of one that is not made to its end."""
    try:
        return keys_of(optimizer)
    except Exception:
        return set()


def optimizer(recording: Recording) -> Finding:
    """Judge whether all that gets a gradient is in an optimizer."""
    if not recording.steps:
        return Finding(OPTIMIZER, "not-applicable", note="no optimizer took a step")
    hidden = {key for key, _, _ in _hidden(recording)}
    missing = {k: p for k, p in uncovered(recording).items() if k not in hidden}
    if recording.models:
        own = {id(p) for model in recording.models for p in model.parameters()}
        missing = {key: p for key, p in missing.items() if key in own}
    leaves = recording.leaves.keys()
    stepped = {key for step in recording.steps for key in keys_of(step.optimizer)}
    if not missing and not stepped & leaves and not any(s.gradients for s in recording.steps):
        # Another optimizer has them, whose turn never came: the wrong one takes the steps.
        missing = {k: p for k, p in recording.leaves.items() if isinstance(p, nn.Parameter)}
    if not missing:
        return Finding(OPTIMIZER, "holds")
    first = next(iter(missing))
    name, use = recording.name_of(first), recording.uses.owner(first)
    more = and_more(len(missing) - 1, "parameter")
    if not stepped & leaves:
        note = (
            f"no parameter of {recording.steps[0].name} gets a gradient, and {name}{more} get "
            f"theirs outside of it: it was made for other tensors, before the model was copied, "
            f"moved or changed"
        )
        return blamed(OPTIMIZER, "violated", note, use, recording)
    note = f"{name}{more} get a gradient and are in no optimizer, so they never move"
    if _may_be_meant(recording, missing):
        note += "; where they are to stay as they are, requires_grad_(False) says so, and is faster"
        return blamed(OPTIMIZER, "advice", note, use, recording)
    return blamed(OPTIMIZER, "violated", note, use, recording)


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


def blamed(
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
    missing = uncovered(recording)
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
    leaves = recording.leaves.keys()
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
    more = and_more(len(hidden) - 1, "parameter")
    what = type(use.module).__name__ if use else "a tensor"
    note = (
        f"{what} in {place}, is used and not registered, so model.parameters() and every "
        f"optimizer miss its weights{more}: keep modules in an nn.ModuleList or nn.ModuleDict, and "
        f"tensors in an nn.Parameter"
    )
    return blamed(REGISTRATION, "violated", note, use, recording, path=place.split(",")[0])


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
)
