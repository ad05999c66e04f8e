"""A built target in tables: what it is, what it takes and gives, and what it is made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from querykey.targets.inputs import evaluating, is_lazy
from querykey.targets.target import Target
from querykey.words import last_line

if TYPE_CHECKING:
    from rich.console import RenderableType

DEPTH = 3  # how far down the tree of modules a description goes


def describe(target: Target) -> list[RenderableType]:
    """Tables for a terminal: the facts, then the modules with repeated layers folded."""
    from querykey.show import table

    return [
        table(("target", target.name), facts(target).items()),
        table(("module", "class", "parameters"), modules(target.model)),
    ]


def facts(target: Target) -> dict[str, str]:
    """What it is, as one line each."""
    model = target.model
    said = {
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "source": _source(model),
        "parameters": f"{count:,}" if isinstance(count := _parameters(model), int) else count,
        "built in": f"{target.built_in:.2f} s",
    }
    if target.note:
        said["note"] = target.note
    for each in target.inputs:
        said[f"takes {each.name}"] = f"{each}{'' if each.required else ' (optional)'}"
    if target.inputs:
        with evaluating(model):
            said["gives"] = _or_why_not(lambda: _outline(target.run(target.example())))
    return said


def modules(model: nn.Module) -> list[tuple[str, str, int | str]]:
    """(path, class, parameters) down to DEPTH; equal siblings share one row, as `h.0-11`."""
    rows = [("(all)", type(model).__name__, _parameters(model))]
    _add_children(model, "", DEPTH, rows)
    return rows


def count_parameters(model: nn.Module) -> int:
    """Trainable or not, each shared one once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _parameters(model: nn.Module) -> int | str:
    return "not yet known" if is_lazy(model) else count_parameters(model)


def _add_children(
    module: nn.Module, path: str, depth: int, rows: list[tuple[str, str, int | str]]
) -> None:
    if depth == 0:
        return
    for names, child in _runs(module):
        name = names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}"
        rows.append((f"{path}{name}", _one_line(child), _parameters(child)))
        # A list of layers is a grouping, not a level of its own.
        inner = depth if isinstance(child, nn.ModuleList) else depth - 1
        _add_children(child, f"{path}{name}.", inner, rows)


def _runs(module: nn.Module) -> list[tuple[list[str], nn.Module]]:
    """Children in order, with numbered neighbours that print alike joined."""
    runs: list[tuple[list[str], nn.Module]] = []
    for name, child in module.named_children():
        last = runs[-1] if runs else None
        if last and name.isdigit() and last[0][-1].isdigit() and _alike(last[1], child):
            last[0].append(name)
        else:
            runs.append(([name], child))
    return runs


def _alike(first: nn.Module, second: nn.Module) -> bool:
    if is_lazy(first) or is_lazy(second):
        return False
    shapes = [[(n, p.shape) for n, p in each.named_parameters()] for each in (first, second)]
    return type(first) is type(second) and shapes[0] == shapes[1]


def _one_line(module: nn.Module) -> str:
    details = _or_why_not(module.extra_repr)
    if "\n" in details or len(details) > 60:
        details = "..."
    return f"{type(module).__name__}({details})" if details else type(module).__name__


def _or_why_not(say: Callable[[], str]) -> str:
    """What it says, or what the user's code raised instead."""
    try:
        return say()
    except (Exception, SystemExit) as error:
        return f"raised {last_line(error)}"


def _source(model: nn.Module) -> str:
    try:
        file, line = inspect.getsourcefile(type(model)), inspect.getsourcelines(type(model))[1]
    except (OSError, TypeError):
        return "not found"
    return f"{Path(file or '').name}:{line}"


def _outline(output: Any) -> str:
    """The tensors of an output by name and shape; anything else by its class."""
    if isinstance(output, torch.Tensor):
        return f"{tuple(output.shape)} {str(output.dtype).removeprefix('torch.')}"
    if isinstance(output, dict):
        return ", ".join(f"{name} {_outline(value)}" for name, value in output.items())
    if isinstance(output, tuple | list) and output:
        shown = [_outline(value) for value in output[:3]]
        return ", ".join([*shown, *(["..."] if len(output) > 3 else [])])
    return type(output).__name__
