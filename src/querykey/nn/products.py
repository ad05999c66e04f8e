"""Linear layers that read the same tokens: one cast, and one product where that costs nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it
from torch.nn.modules.module import _has_any_global_hook


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
    if not (torch.is_grad_enabled() and torch.is_autocast_enabled(x.device.type)):
        return False
    if any(type(layer) is not nn.Linear or is_watched(layer) for layer in layers):
        return False
    kinds = {(layer.bias is None, layer.in_features, layer.weight.dtype) for layer in layers}
    return len(kinds) == 1
