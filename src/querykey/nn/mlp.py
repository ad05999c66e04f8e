"""MLP: the part of a block that treats each token alone, with its activations."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.errors import QuerykeyError
from querykey.nn.config import MLPConfig
from querykey.nn.tensors import cast_once, check_floats, one_product
from querykey.words import checked, room_for, whole


def activate(name: str, x: Tensor) -> Tensor:
    """Apply the activation of that name, one of `config.ACTIVATIONS`, to every entry of x."""
    match name:
        case "relu":
            return F.relu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu-tanh":
            return F.gelu(x, approximate="tanh")
        case "silu":
            return F.silu(x)
        case "quick-gelu":
            return x * torch.sigmoid(1.702 * x)
        case "tanh":
            return torch.tanh(x)
        case "identity":
            return x
    raise QuerykeyError(f"there is no activation {name!r}")


class MLP(nn.Module):
    """down(activation(up x)); gated: down(activation(gate x) * up x)."""

    @checked
    def __init__(self, width: int, config: MLPConfig | int):
        """Make the layers for `width` features; a number for config is the hidden size."""
        super().__init__()
        whole("width", width)
        config = config if isinstance(config, MLPConfig) else MLPConfig(config)
        self.width, self.activation = width, config.activation
        with room_for(f"an MLP of width {width} and {config.hidden} hidden features"):
            self.gate = nn.Linear(width, config.hidden, bias=config.bias) if config.gated else None
            self.up = nn.Linear(width, config.hidden, bias=config.bias)
            self.down = nn.Linear(config.hidden, width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Turn (..., width) into (..., width), each token alone."""
        check_floats("x", x, self.width, self.up)
        return self.down(self.hidden(x))

    def hidden(self, x: Tensor) -> Tensor:
        """Return the activated hidden layer, (..., hidden)."""
        if self.gate is None:
            return activate(self.activation, self.up(x))
        gate, up = one_product(cast_once(x), (self.gate, self.up))
        return activate(self.activation, gate) * up

    def extra_repr(self) -> str:
        """Return what the module prints of itself beside its submodules."""
        return self.activation
