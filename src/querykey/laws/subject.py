"""What is checked: a model, and what its owner says about it; the rest is found out by trying."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Subject:
    """A model with what its owner says about it; None means: find out by trying.

    `forward` is a module, a method of one, or a function that calls one (`lambda ids: net(ids)`);
    the module in it is found, and a copy of it is called in its place. A module says for itself
    what it breaks by design with an attribute of that form, `breaks_laws`.
    """

    forward: Callable[..., Any]
    example: Any = None  # a tensor, or a tuple or dict of them: (batch, positions, ...)
    causal: bool | None = None
    padding: str | None = None  # the argument that is 1 (or True) for real tokens
    cache: Callable[..., Any] | None = None  # step(model, inputs, cache or None) -> output, cache
    ordered: bool | None = None  # False: nothing in it knows positions
    breaks: Mapping[str, str] = field(default_factory=dict)  # laws it breaks by design, and why
    name: str = ""

    @property
    def model(self) -> nn.Module:
        """The module that `forward` runs."""
        found = list(modules_of(self.forward))
        if not found:
            raise ValueError(
                "no torch.nn.Module is found in `forward`; pass the module, one of its methods, or "
                "a function that holds it in a variable of its own"
            )
        return found[0]

    def on(self, twin: nn.Module) -> Callable[..., Any]:
        """`forward`, run on this copy of the model."""
        return rebound(self.forward, self.model, twin)


def modules_of(function: Any) -> list[nn.Module]:
    """The modules that a callable is, belongs to, closes over or names."""
    if isinstance(function, nn.Module):
        return [function]
    owner = getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        return [owner]
    if not isinstance(function, types.FunctionType):
        return []
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    return [value for value in [*cells, *named] if isinstance(value, nn.Module)]


def rebound(function: Any, model: nn.Module, twin: nn.Module) -> Callable[..., Any]:
    """The same callable with `twin` wherever it holds `model`."""
    if function is model:
        return twin
    if isinstance(function, types.MethodType):
        return getattr(twin, function.__name__)
    cells = tuple(
        types.CellType(twin) if cell.cell_contents is model else cell
        for cell in function.__closure__ or ()
    )
    world = {k: twin if v is model else v for k, v in function.__globals__.items()}
    made = types.FunctionType(
        function.__code__, world, function.__name__, function.__defaults__, cells or None
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made
