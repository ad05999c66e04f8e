"""The kinds of torch module that need special care: lazy, compiled, scripted, Hugging Face's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from querykey.targets.errors import TargetError
from querykey.words import checked


@checked
def is_lazy(model: nn.Module) -> bool:
    """Return whether the first run decides the sizes of some layer."""
    return any(isinstance(p, nn.UninitializedParameter) for p in model.parameters())


@checked
def is_hugging_face(model: nn.Module) -> bool:
    """Return whether it is a `transformers` model, without importing `transformers` to ask."""
    return any(base.__module__ == "transformers.modeling_utils" for base in type(model).__mro__)


@checked
def uncompiled(model: nn.Module) -> nn.Module:
    """Return the module inside what torch.compile returned; hooks and copies need that one."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


@checked
def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the arguments of a function; those of TorchScript keep them in a schema."""
    schema = getattr(function, "schema", None)
    if not isinstance(schema, torch.FunctionSchema):
        try:
            return inspect.signature(function)
        except ValueError:
            raise TargetError(f"{function!r} does not say what arguments it takes") from None
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(
            argument.name,
            kind,
            default=argument.default_value
            if argument.has_default_value()
            else inspect.Parameter.empty,
        )
        for argument in schema.arguments
        if argument.name != "self"
    ]
    return inspect.Signature(parameters)


def is_embedding(module: nn.Module) -> bool:
    """Return whether a module is an Embedding, TorchScript's as well."""
    return isinstance(module, nn.Embedding) or (
        isinstance(module, torch.jit.ScriptModule) and module.original_name == "Embedding"
    )
