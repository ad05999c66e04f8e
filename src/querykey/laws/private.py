"""Every private name of torch and transformers that the laws rely on, each with its purpose."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any

import torch
from torch import nn

SOFTMAXES = ("softmax", "_safe_softmax")  # that give weights of attention
GROUPED_PRODUCTS = ("grouped_mm", "_grouped_mm")  # the kernel of mixtures of experts
# Methods of models that take a cache, or nothing, and the rows of beams.
REORDERING_METHODS = (
    "_reorder_cache",
    "reorder_cache",
    "reorder_incremental_state",
    "reorder_state",
)
# The attributes of every module that hold its hooks, submodules, parameters and mode.
STANDARD = set(vars(nn.Module()))
MACHINERY = STANDARD - {"_buffers"}
CONVOLUTIONS = nn.modules.conv._ConvNd
DROPOUTS = (nn.modules.dropout._DropoutNd,)
BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
AVERAGE_POOLS = nn.modules.pooling._AvgPoolNd


def buffers_of(module: nn.Module) -> dict[str, Any]:
    """Return the module's own buffers by name, those that are None as well."""
    return module._buffers


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the module's own parameters by name, those that are None as well."""
    return module._parameters


def modules_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the module's own submodules by name, those that are None as well."""
    return module._modules


def parts_of(module: nn.Module) -> list[tuple[str, Any]]:
    """Return a module's own parameters, buffers and submodules by name, but for those of None."""
    parts = {**module._parameters, **module._buffers, **module._modules}
    return [(name, part) for name, part in parts.items() if part is not None]


def hooks_of(module: nn.Module) -> list[dict[Any, Any]]:
    """Return the tables of hooks that a call of the module runs."""
    return [module._forward_pre_hooks, module._forward_hooks]


def names_of_parts(module: nn.Module) -> list[str]:
    """Return the names of a module's own parameters, buffers and submodules, None or not."""
    return [*module._parameters, *module._buffers, *module._modules]


def is_persistent(module: nn.Module, name: str) -> bool:
    """Return whether a buffer belongs to the module's state dict."""
    return name not in module._non_persistent_buffers_set


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place."""
    return tensor._version


def without_vmap(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the axes that calls of torch.vmap around it hide."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def attention_implementation(model: Any) -> str | None:
    """Return the attention implementation that a transformers model uses, or None."""
    return getattr(getattr(model, "config", None), "_attn_implementation", None)


def saved(node: Any, name: str) -> Any:
    """Return what a node of the graph has kept for its derivative under a name, or None."""
    try:
        return getattr(node, f"_saved_{name}", None)
    except RuntimeError:  # it was freed
        return None


def clipping() -> list[tuple[Any, str]]:
    """Return the functions through which gradients are clipped: where they are, and their names.

    They are looked up when `clip_grad_norm_` runs, whoever has imported that before.
    """
    from torch.nn.utils import clip_grad

    places = [
        (clip_grad, "_clip_grads_with_norm_"),
        (clip_grad, "clip_grad_value_"),
        (nn.utils, "clip_grads_with_norm_"),
        (nn.utils, "clip_grad_value_"),
    ]
    return [(owner, name) for owner, name in places if hasattr(owner, name)]


def schedulers_in(scheduler: Any) -> list[Any]:
    """Return the schedulers that another one is made of."""
    return list(getattr(scheduler, "_schedulers", ()))


def is_stateful(model: Any) -> bool:
    """Return whether a transformers model says that no token can be taken out of its state."""
    return bool(getattr(model, "_is_stateful", False))


def is_pretrained(model: Any) -> bool:
    """Return whether a model's class derives from transformers' PreTrainedModel."""
    return any(
        base.__name__ == "PreTrainedModel" and base.__module__.startswith("transformers.")
        for base in type(model).__mro__
    )


def is_of_library(model: Any) -> bool:
    """Return whether a model's class is one of transformers itself."""
    return is_pretrained(model) and type(model).__module__.startswith("transformers.")


def offers_flex(model: Any) -> bool:
    """Return whether a transformers model says that it can compute attention by FlexAttention."""
    return is_pretrained(model) and bool(getattr(model, "_supports_flex_attn", False))


def preload_flex() -> None:
    """Import what FlexAttention loads at its first call, before workers are forked that need it."""
    with suppress(ImportError):
        import_module("torch._inductor.compile_fx")


def function_of(node: Any) -> Any:
    """Return the autograd Function that a node of the graph belongs to, or None for torch's own."""
    return getattr(type(node), "_forward_cls", None)


def remove_global_hook(handle: Any) -> None:
    """Remove a forward hook of all modules, with the note that torch leaves of its kwargs."""
    handle.remove()
    nn.modules.module._global_forward_hooks_with_kwargs.pop(handle.id, None)
