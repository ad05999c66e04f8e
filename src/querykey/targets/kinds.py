"""The kinds of torch module that need special care: lazy, compiled, and Hugging Face's."""

from __future__ import annotations

from torch import nn


def is_lazy(model: nn.Module) -> bool:
    """Return whether the first run decides the sizes of some layer."""
    return any(isinstance(p, nn.UninitializedParameter) for p in model.parameters())


def is_hugging_face(model: nn.Module) -> bool:
    """Return whether it is a `transformers` model, without importing `transformers` to ask."""
    return any(base.__module__ == "transformers.modeling_utils" for base in type(model).__mro__)


def uncompiled(model: nn.Module) -> nn.Module:
    """Return the module inside what torch.compile returned; hooks and copies need that one."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model
