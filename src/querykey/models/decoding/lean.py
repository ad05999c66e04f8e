"""Twins of a model's modules for decoding: the same functions without nn.Module's machinery.

Calling a module and looking up its parts takes torch longer than a small matrix product. A lean
twin runs the functions of its module's class, with plain attributes and plain calls; `step` has
shorter ones for some. Its matrix products can be prepared for one token of every row at a time:
linear layers of one input become one product, and on a CPU on which MKL is slow the weights are
laid out so that they are read up to twice as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.models.decoding.step import SHORTER, joined_layers
from querykey.nn import is_watched

WIDE = (torch.float32, torch.float64)
Product = Callable[[Tensor], Tensor]


def lean(module: nn.Module, rows: int = 0) -> Any:
    """Return a twin of the module, for use while its tensors stay what they are.

    Its products are prepared for that many `rows`, 0 for not at all: preparing takes up to as much
    memory again as the weights. Modules with hooks, and modules of torch that are not listed here,
    stay themselves.
    """
    if is_watched(module):
        return module
    if type(module) is nn.Linear:
        return _product([module], rows)
    if type(module) is nn.Embedding and module.max_norm is None:
        return _Table(module.weight)
    if type(module) is nn.LayerNorm:
        return _layer_norm(module)
    if type(module) is nn.RMSNorm:
        return _rms_norm(module)
    if type(module) is nn.Dropout and not module.training:
        return None
    if type(module) is nn.ModuleList:
        return [lean(part, rows) for part in module]
    if not type(module).__module__.startswith("querykey.") or not _is_plain(type(module)):
        return module
    twin = object.__new__(_twin_of(type(module)))
    twin.__dict__.update(item for item in vars(module).items() if item[0] not in _MACHINERY)
    twin.__dict__.update(module._parameters | module._buffers)
    joined, product = _joined_product(module, rows)
    twin.__dict__.update(product)
    for name, part in module._modules.items():
        setattr(twin, name, part and lean(part, 0 if name in joined else rows))
    return twin


_MACHINERY = frozenset(vars(nn.Module()))


def _is_plain(kind: type) -> bool:
    """Whether a class adds its own functions to nn.Module alone, so that a twin can run them."""
    return kind.__bases__ == (nn.Module,)


def _twin_of(kind: type) -> type:
    """Return a class with the functions that a class has now, or the shorter ones of `step`."""
    own = (
        (name, SHORTER.get(value, value))
        for name, value in vars(kind).items()
        if name not in _NOT_SHARED
    )
    return _class_of(kind.__name__, tuple(own))


@cache
def _class_of(name: str, own: tuple[tuple[str, Any], ...]) -> type:
    return type(name, (), dict(own) | {"__call__": dict(own)["forward"]})


_NOT_SHARED = ("__dict__", "__weakref__", "__init__", "__annotations__")


def _joined_product(module: nn.Module, rows: int) -> tuple[tuple[str, ...], dict[str, Product]]:
    """Return which linear layers become one product, and that product by its name in the twin."""
    product_name, names = joined_layers(module)
    parts = [getattr(module, name) for name in names]
    layers = [part for part in parts if type(part) is nn.Linear and not is_watched(part)]
    inputs = {(layer.in_features, layer.bias is None) for layer in layers}
    if not (rows and layers) or len(layers) < len(names) or len(inputs) > 1:
        return (), {}
    return names, {product_name: _product(layers, rows)}


def _product(layers: Sequence[nn.Linear], rows: int) -> Product:
    """Return the product of an input with the weights of all layers, one below the other."""
    weights = [layer.weight for layer in layers]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    bias = _stacked(biases) if biases else None
    foreign = rows > 0 and weights[0].device.type == "cpu" and not _mkl_is_at_home()
    foreign = foreign and not torch.is_autocast_enabled("cpu")  # which wants other weights
    if foreign and rows > 1 and _can_be_packed(weights[0]):
        packed = torch.ops.mkldnn._reorder_linear_weight(_stacked(weights).contiguous(), rows)
        run = torch.ops.mkldnn._linear_pointwise.default
        return lambda x: run(x, packed, bias, "none", [], "")
    wide = sum(layer.out_features for layer in layers) > layers[0].in_features
    if foreign and rows == 1 and wide and weights[0].dtype in WIDE:
        # The entries of a column together: one token's product reads them up to twice as fast.
        weight = torch.cat([part.detach().t() for part in weights], 1).t()
    else:
        weight = _stacked(weights)
    linear = F.linear
    return lambda x: linear(x, weight, bias)


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach() for tensor in tensors]) if len(tensors) > 1 else tensors[0]


@cache
def _mkl_is_at_home() -> bool:
    """Whether MKL runs on a processor of Intel's, where no layout of ours is faster than it."""
    ask = getattr(torch.cpu, "get_capabilities", dict)
    return torch.backends.mkl.is_available() and ask().get("cpu_name", "").startswith("Intel")


def _can_be_packed(weight: Tensor) -> bool:
    ops = torch.ops.mkldnn
    return (
        weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(ops, "_reorder_linear_weight")
        and hasattr(ops, "_linear_pointwise")
    )


class _Table:
    """The lookup of an nn.Embedding, with its weight as a plain attribute."""

    def __init__(self, weight: Tensor):
        self.weight = weight

    def __call__(self, ids: Tensor) -> Tensor:
        return torch.embedding(self.weight, ids)


def _layer_norm(module: nn.LayerNorm) -> Product:
    shape, weight, bias = module.normalized_shape, module.weight, module.bias
    epsilon, norm = module.eps, torch.layer_norm
    return lambda x: norm(x, shape, weight, bias, epsilon)


def _rms_norm(module: nn.RMSNorm) -> Product:
    shape, weight, epsilon = module.normalized_shape, module.weight, module.eps
    if weight is None or epsilon is None or len(shape) > 1 or weight.dtype not in WIDE:
        return lambda x: torch.rms_norm(x, shape, weight, epsilon)
    # torch's own takes nine steps on a CPU; these are four.
    length, hypot, root = torch.linalg.vector_norm, torch.hypot, weight.numel() ** 0.5
    zero, least = weight.detach().new_tensor([0.0, root * epsilon**0.5])

    def norm(x: Tensor) -> Tensor:
        return torch.addcdiv(zero, x, hypot(length(x, 2, -1, True), least), value=root) * weight

    return norm
