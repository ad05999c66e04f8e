"""What is checked: a model, and what its owner says about it; trying it shows the rest."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from querykey.errors import QuerykeyError, WrongTypeError
from querykey.targets import TakesBatch


@dataclass(frozen=True)
class Subject:
    """A model with what its owner says about it; None means that trying finds out.

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
    like: tuple[Subject, Callable[..., Any] | None] | None = None  # a model that is to be the same

    def __post_init__(self):
        if not callable(self.forward):
            raise WrongTypeError(
                f"a Subject runs a module, a method of one or a function; got {self.forward!r}"
            )

    @property
    def model(self) -> nn.Module:
        """The module that `forward` runs."""
        modules = modules_of(self.forward)
        if not modules:
            raise QuerykeyError(
                "no torch.nn.Module is found in `forward`; pass the module, one of its methods, or "
                "a function that holds it in a variable of its own"
            )
        return modules[0]

    def on(self, copied: nn.Module) -> Callable[..., Any]:
        """Return `forward` with this copy in the place of the model."""
        return rebound(self.forward, self.model, copied)


def modules_of(function: Any) -> list[nn.Module]:
    """Return the modules that a callable is, belongs to, closes over or names."""
    if isinstance(function, nn.Module):
        return [function]
    if isinstance(function, TakesBatch):
        return [function.model]
    owner = getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        return [owner]
    if not isinstance(function, types.FunctionType):
        return []
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    return [value for value in [*cells, *named] if isinstance(value, nn.Module)]


def rebound(function: Any, model: nn.Module, copied: nn.Module) -> Callable[..., Any]:
    """Return the same callable with `copied` wherever it holds `model`."""
    if function is model:
        return copied
    if isinstance(function, TakesBatch):
        return replace(function, model=copied)
    if isinstance(function, types.MethodType):
        return getattr(copied, function.__name__)
    cells = tuple(
        types.CellType(copied) if cell.cell_contents is model else cell
        for cell in function.__closure__ or ()
    )
    world = {k: copied if v is model else v for k, v in function.__globals__.items()}
    bound = types.FunctionType(
        function.__code__, world, function.__name__, function.__defaults__, cells or None
    )
    bound.__kwdefaults__ = function.__kwdefaults__
    return bound
