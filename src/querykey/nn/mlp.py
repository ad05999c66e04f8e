"""The part of a block that looks at each token alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.nn.config import MLPConfig


def activate(name: str, x: Tensor) -> Tensor:
    """Return the activation of that name, one of `config.ACTIVATIONS`."""
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
    raise ValueError(f"there is no activation {name!r}")


class MLP(nn.Module):
    """down(activation(up x)); gated: down(activation(gate x) * up x)."""

    def __init__(self, width: int, config: MLPConfig):
        super().__init__()
        self.activation = config.activation
        self.gate = nn.Linear(width, config.hidden, bias=config.bias) if config.gated else None
        self.up = nn.Linear(width, config.hidden, bias=config.bias)
        self.down = nn.Linear(config.hidden, width, bias=config.bias)
        self.fused = ("both", ("gate", "up"))  # in a lean twin, one product for two
        self.both: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Turn (..., width) into (..., width), each token alone."""
        if self.gate is None:
            return self.down(activate(self.activation, self.up(x)))
        gate, up = (self.gate(x), self.up(x)) if self.both is None else self.both(x).chunk(2, -1)
        return self.down(activate(self.activation, gate) * up)

    def extra_repr(self) -> str:
        """Name what no submodule shows."""
        return self.activation
