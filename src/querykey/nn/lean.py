"""A module's own code without nn.Module's machinery around it, for decoding small models.

Calling a module and looking up its parts takes torch longer than a small matrix product. A lean
twin runs the very same `forward`, with plain attributes and plain calls, on the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it


def lean(module: nn.Module) -> Any:
    """Return a twin that shares the module's tensors, for use while these stay where they are.

    Modules that somebody watches through hooks, and those of torch that are not listed here, stay
    themselves.
    """
    if _is_watched(module):
        return module
    if type(module) is nn.Linear:
        return _linear(module)
    if type(module) is nn.LayerNorm:
        return _layer_norm(module)
    if type(module) is nn.RMSNorm:
        return _rms_norm(module)
    if type(module) is nn.ModuleList:
        return [lean(each) for each in module]
    if not type(module).__module__.startswith("querykey.") or not _is_plain(type(module)):
        return module
    twin = object.__new__(_twin_of(type(module)))
    parts = {name: part and lean(part) for name, part in module._modules.items()}
    own = {name: value for name, value in vars(module).items() if name not in _MACHINERY}
    twin.__dict__.update(own | module._parameters | module._buffers | parts)
    return twin


_MACHINERY = frozenset(vars(nn.Module()))


def _is_watched(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    return any(hooks) or "forward" in vars(module)


def _is_plain(kind: type) -> bool:
    """Whether a class is nn.Module and its own functions: a twin can then run these."""
    return kind.__bases__ == (nn.Module,)


@cache
def _twin_of(kind: type) -> type:
    own = {name: value for name, value in vars(kind).items() if name not in _NOT_SHARED}
    return type(kind.__name__, (), own | {"__call__": vars(kind)["forward"]})


_NOT_SHARED = ("__dict__", "__weakref__", "__init__")


def _linear(module: nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    weight, bias, product = module.weight, module.bias, F.linear
    return lambda x: product(x, weight, bias)


def _layer_norm(module: nn.LayerNorm) -> Callable[[torch.Tensor], torch.Tensor]:
    shape, weight, bias = module.normalized_shape, module.weight, module.bias
    epsilon, norm = module.eps, torch.layer_norm
    return lambda x: norm(x, shape, weight, bias, epsilon)


def _rms_norm(module: nn.RMSNorm) -> Callable[[torch.Tensor], torch.Tensor]:
    shape, weight, epsilon, norm = (
        module.normalized_shape,
        module.weight,
        module.eps,
        torch.rms_norm,
    )
    return lambda x: norm(x, shape, weight, epsilon)
