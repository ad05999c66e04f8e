"""Functions inside a copied model, bound to the copy; deepcopy leaves them to the original."""

from __future__ import annotations

import copy
import types
from typing import Any

from torch import nn

from querykey.laws.private import MACHINERY, hooks_of
from querykey.laws.understanding.reachable import closure


def bind_functions(copied: nn.Module, memo: dict[int, Any]) -> None:
    """Rebind every function that a copy holds, as an attribute, in a container or as a hook.

    `memo` is what deepcopy remembered: the copies by the ids of the originals.
    """
    todo: list[Any] = [copied]
    seen: set[int] = set()
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            todo += [vars(value), *hooks_of(value), *value.children()]
            continue
        for key, held in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if isinstance(held, types.FunctionType):
                value[key] = bound(held, memo)
            elif isinstance(held, dict | list | nn.Module) and key not in MACHINERY:
                todo.append(held)


def bound(function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
    """Return a function whose closure holds copies; itself where it closes over nothing."""
    if not closure(function):
        return function
    if id(function) in memo:
        return memo[id(function)]
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    new = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )
    new.__kwdefaults__, new.__qualname__ = function.__kwdefaults__, function.__qualname__
    vars(new).update(vars(function))
    memo[id(function)] = new  # a function may close over itself
    variables = closure(function)
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        if name in variables:
            cell.cell_contents = _copied(variables[name], memo)
    return new


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """Return the copy's counterpart of a value that a closure holds."""
    if isinstance(value, types.FunctionType):
        return bound(value, memo)
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # what cannot be copied is shared
        return value
