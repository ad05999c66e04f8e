"""ClassScores: a head that scores classes, and how the weights of every model are drawn."""

from __future__ import annotations

from torch import Tensor, nn

from querykey.models.text.config import ClassHead
from querykey.nn import MultiHeadAttention, activate


class ClassScores(nn.Module):
    """Scores over classes from one vector per sequence: W x, or W activation(V x)."""

    def __init__(self, config: ClassHead, width: int):
        super().__init__()
        self.config = config
        self.transform = None if config.transform is None else nn.Linear(width, width)
        self.output = nn.Linear(width, config.classes)

    def forward(self, x: Tensor) -> Tensor:
        """Turn (batch, width) into (batch, classes)."""
        if self.transform is not None and self.config.transform is not None:
            x = activate(self.config.transform, self.transform(x))
        return self.output(x)


def initialise(model: nn.Module, std: float = 0.02) -> None:
    """Draw matrices from a normal distribution; biases are 0, as in BERT and GPT-2.

    Gates of decay are opened, so that a fresh model remembers.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.open_gates()
