"""The norms of torch that a config can ask for."""

from __future__ import annotations

from torch import Tensor, nn

from querykey.nn.config import NormConfig


class TokenBatchNorm(nn.BatchNorm1d):
    """torch's BatchNorm1d over the features of tokens (batch, tokens, width)."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each feature over all tokens of the batch."""
        return super().forward(input.flatten(end_dim=-2)).view_as(input)


def make_norm(config: NormConfig, width: int) -> nn.Module:
    """Return the norm that a config asks for, or Identity where it asks for none."""
    match config.kind:
        case "layer":
            return nn.LayerNorm(width, eps=config.epsilon)
        case "rms":
            return nn.RMSNorm(width, eps=config.epsilon)
        case "batch":
            return TokenBatchNorm(width, eps=config.epsilon)
        case _:
            return nn.Identity()
