"""What a model can reach: attributes, containers, closures, and modules hidden in them."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from querykey.laws.private import STANDARD, parts_of

MOST = 50_000  # values that are looked at, so that no odd object takes forever
DEPTH = 8  # of containers in containers
CONTAINERS = (dict, list, set, deque)


def walk(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of everything that a model reaches, its modules included.

    A closure's variable counts as reached, and so does a default value of an argument.
    """
    seen: set[int] = set()
    todo: deque[tuple[str, Any, int]] = deque([("", model, 0)])
    while todo and len(seen) < MOST:
        path, value, depth = todo.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield path, value
        if depth <= DEPTH:
            inner = 0 if isinstance(value, nn.Module) else depth + 1
            todo.extend((join(path, key), child, inner) for key, child in children(value))


def submodule(model: nn.Module, path: str) -> nn.Module:
    """Return the module at this path, in TorchScript as well."""
    for name in path.split(".") if path else ():
        model = getattr(model, name)
    return model


def join(path: str, key: str) -> str:
    """Return the path of a part: `blocks` and `[0]` give `blocks[0]`, `a` and `b` give `a.b`."""
    return f"{path}{key}" if key.startswith("[") or not path else f"{path}.{key}"


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds that may change or hold more, each with its name in it."""
    for key, child in _held(value):
        if not isinstance(child, str | int | float | bool | type | None | torch.dtype):
            yield key, child


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        yield from parts_of(value)
        yield from ((n, child) for n, child in attributes(value).items())
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", child) for key, child in list(value.items()))
    elif isinstance(value, list | tuple | set | deque):
        yield from ((f"[{index}]", child) for index, child in enumerate(list(value)))
    elif isinstance(value, types.FunctionType):
        yield from closure(value).items()
        yield from ((f"default {i}", child) for i, child in enumerate(value.__defaults__ or ()))
        yield from vars(value).items()
    elif isinstance(value, types.MethodType):
        yield from (("__self__", value.__self__), ("__func__", value.__func__))
    elif isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif is_plain_object(value):
        yield from list(vars(value).items())


def attributes(module: nn.Module) -> dict[str, Any]:
    """Return the attributes that a module's own code has set: no parts, hooks or modes."""
    return {n: v for n, v in vars(module).items() if n not in STANDARD}


def closure(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables that a function closes over, by name, as far as they are set."""
    variables = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            variables[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return variables


def is_plain_object(value: Any) -> bool:
    """Return whether a value is an instance of somebody's class, and not of torch or Python."""
    if isinstance(value, type | types.ModuleType | torch.Tensor) or not hasattr(value, "__dict__"):
        return False
    home = type(value).__module__.partition(".")[0]
    return home not in ("torch", "builtins", "logging", "threading", "weakref", "re", "inspect")


def hidden_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return, by path, the modules that no module has registered: those in a list or a dict.

    Only the outermost are named, and their parts belong to them.
    """
    known = {id(module) for module in model.modules()}
    hidden: dict[str, nn.Module] = {}
    for path, value in walk(model):
        if isinstance(value, nn.Module) and id(value) not in known:
            hidden[path] = value
            known |= {id(module) for module in value.modules()}
    return hidden


def every_module(model: nn.Module) -> list[nn.Module]:
    """Return all modules of a model, those that are not registered included."""
    hidden = hidden_modules(model).values()
    return [*model.modules(), *(part for module in hidden for part in module.modules())]
