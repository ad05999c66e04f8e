"""Describe a built target in tables: its class, inputs and outputs, and its modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from querykey.show import fold_numbered, group_name, table
from querykey.targets.kinds import is_lazy
from querykey.targets.target import Target
from querykey.targets.trial import evaluating
from querykey.words import checked, last_line

if TYPE_CHECKING:
    from rich.console import RenderableType

DEPTH = 3  # how many levels of modules a description shows


@checked
def describe(target: Target) -> list[RenderableType]:
    """Return tables for a terminal: the facts, then the modules with equal layers in one row."""
    return [
        table(("target", target.name), facts(target).items()),
        table(("module", "class", "parameters"), modules(target.model)),
    ]


def facts(target: Target) -> dict[str, str]:
    """Return facts about a target by name, each in one line."""
    model = target.model
    lines = {
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "source": _source(model),
        "parameters": f"{count:,}" if isinstance(count := _parameters(model), int) else count,
        "built in": f"{target.built_in:.2f} s",
    }
    if target.note:
        lines["note"] = target.note
    for one in target.inputs:
        lines[f"takes {one.name}"] = f"{one}{'' if one.required else ' (optional)'}"
    if target.inputs:
        with evaluating(model):
            lines["gives"] = _or_error(lambda: _outline(target.run(target.example())))
    return lines


def modules(model: nn.Module) -> list[tuple[str, str, int | str]]:
    """Return (path, class, parameters) down to DEPTH; equal siblings share one row, as `h.0-11`."""
    rows = [("(all)", type(model).__name__, _parameters(model))]
    _add_children(model, "", DEPTH, rows)
    return rows


@checked
def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters, trainable or not, a shared one counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _parameters(model: nn.Module) -> int | str:
    return "not yet known" if is_lazy(model) else count_parameters(model)


def _add_children(
    module: nn.Module, path: str, depth: int, rows: list[tuple[str, str, int | str]]
) -> None:
    if depth == 0:
        return
    children = dict(module.named_children())
    for names in fold_numbered(children, lambda a, b: _equal(children[a], children[b])):
        name, child = group_name(names), children[names[0]]
        rows.append((f"{path}{name}", _one_line(child), _parameters(child)))
        # A list of layers is a grouping, not a level of its own.
        inner = depth if isinstance(child, nn.ModuleList) else depth - 1
        _add_children(child, f"{path}{name}.", inner, rows)


def _equal(first: nn.Module, second: nn.Module) -> bool:
    if is_lazy(first) or is_lazy(second):
        return False
    shapes = [[(n, p.shape) for n, p in module.named_parameters()] for module in (first, second)]
    return type(first) is type(second) and shapes[0] == shapes[1]


def _one_line(module: nn.Module) -> str:
    details = _or_error(module.extra_repr)
    if "\n" in details or len(details) > 60:
        details = "..."
    return f"{type(module).__name__}({details})" if details else type(module).__name__


def _or_error(describe: Callable[[], str]) -> str:
    """Return the result of a function, or the error that the user's code raised."""
    try:
        return describe()
    except (Exception, SystemExit) as error:
        return f"raised {last_line(error)}"


def _source(model: nn.Module) -> str:
    try:
        file, line = inspect.getsourcefile(type(model)), inspect.getsourcelines(type(model))[1]
    except (OSError, TypeError):
        return "not found"
    return f"{Path(file or '').name}:{line}"


def _outline(output: Any) -> str:
    """Return the tensors of an output by name and shape, and other values by their class."""
    if isinstance(output, torch.Tensor):
        return f"{tuple(output.shape)} {str(output.dtype).removeprefix('torch.')}"
    if isinstance(output, dict):
        return ", ".join(f"{name} {_outline(value)}" for name, value in output.items())
    if isinstance(output, tuple | list) and output:
        shown = [_outline(value) for value in output[:3]]
        return ", ".join([*shown, *(["..."] if len(output) > 3 else [])])
    return type(output).__name__
