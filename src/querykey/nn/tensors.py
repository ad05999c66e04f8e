"""What layers do with the tensors that they take: check them, cast them once, multiply them once.

A layer takes dense floats of its width, in the precision of its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it
from torch.nn.modules.module import _has_any_global_hook

from querykey.errors import QuerykeyError, WrongTypeError


def check_floats(name: str, x: Any, width: int, layer: nn.Module) -> None:
    """Refuse what is no tensor of floats (..., width) that the weights of a layer can meet."""
    if not isinstance(x, Tensor):
        raise WrongTypeError(f"{name} is a tensor of floats; got {type(x).__name__}")
    if x.ndim < 1 or x.shape[-1] != width or not x.is_floating_point():
        raise QuerykeyError(f"{name} is of floats (..., {width}); got {x.dtype} {tuple(x.shape)}")
    check_meets(name, x, layer)


def check_meets(name: str, x: Tensor, layer: nn.Module) -> None:
    """Refuse a tensor of another dtype, device or layout than the weights that it meets first.

    Only a layer of torch's is asked: what somebody put in its place may take what it likes.
    """
    if type(layer) not in (nn.Linear, nn.Conv2d):
        return
    weight: Any = layer.weight
    if x.layout is not torch.strided:
        raise WrongTypeError(f"{name} is a dense tensor, not a {_last(x.layout)} one")
    if x.device != weight.device:
        raise WrongTypeError(f"{name} is on {x.device} but the weights are on {weight.device}")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        dtypes = _last(x.dtype), _last(weight.dtype)
        raise WrongTypeError(f"{name} is {dtypes[0]} but the weights are {dtypes[1]}")


def check_whole(name: str, x: Any, shape: str) -> None:
    """Refuse what is no dense tensor of whole numbers or booleans, of axes that `shape` names."""
    if not isinstance(x, Tensor):
        raise WrongTypeError(f"{name} is a tensor {shape}; got {type(x).__name__}")
    if x.layout is not torch.strided or x.is_floating_point() or x.is_complex():
        kind = x.dtype if x.layout is torch.strided else x.layout
        raise WrongTypeError(
            f"{name} is a dense tensor {shape} of whole numbers; got {_last(kind)}"
        )


def check_generator(generator: Any) -> None:
    """Refuse what is neither None nor a generator of torch's."""
    if not (generator is None or isinstance(generator, torch.Generator)):
        raise WrongTypeError(
            f"generator is None or a torch.Generator; got {type(generator).__name__}"
        )


def _last(name: object) -> str:
    return str(name).removeprefix("torch.")


def cast_once(x: Tensor) -> Tensor:
    """Return x in the precision that autocast gives to matrix products.

    Layers that share x would else cast it once each, and each one's gradient back again.
    """
    kind = x.device.type
    if x.dtype != torch.float32 or not torch.amp.is_autocast_available(kind):
        return x
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def one_product(x: Tensor, layers: Sequence[nn.Linear]) -> Sequence[Tensor]:
    """Return what each layer makes of x: by one product while training under autocast.

    Autocast copies weights anyway, so that there it costs no memory to join the copies. Layers that
    are no plain Linear, or that somebody watches, are called one by one.
    """
    if x.dtype == torch.float32 or not _may_be_joined(x, layers):
        return [layer(x) for layer in layers]
    bias = None
    if layers[0].bias is not None:
        bias = torch.cat([layer.bias for layer in layers])
    out = F.linear(x, torch.cat([layer.weight for layer in layers]), bias)
    return out.split([layer.out_features for layer in layers], -1)


def is_watched(module: nn.Module) -> bool:
    """Whether calling the module does more than its class says: hooks, or a forward of its own."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    return any(hooks) or "forward" in vars(module) or bool(_has_any_global_hook())


def _may_be_joined(x: Tensor, layers: Sequence[nn.Linear]) -> bool:
    kind = x.device.type
    if not (torch.is_grad_enabled() and torch.amp.is_autocast_available(kind)):
        return False
    if not torch.is_autocast_enabled(kind):
        return False
    if any(type(layer) is not nn.Linear or is_watched(layer) for layer in layers):
        return False
    kinds = {(layer.bias is None, layer.in_features, layer.weight.dtype) for layer in layers}
    return len(kinds) == 1
