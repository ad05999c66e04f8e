"""Heads that score classes, or tokens and classes at once; how all weights are drawn at first."""

from __future__ import annotations

from torch import Tensor, nn

from querykey.models.text.config import ClassHead, PairHead
from querykey.models.text.embedding import TokenScores
from querykey.nn import BlockConfig, MultiHeadAttention, activate
from querykey.words import checked, number


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


class PairScores(nn.Module):
    """Scores over the vocabulary for every token, and over classes from the first one."""

    def __init__(self, config: PairHead, block: BlockConfig, embedding: nn.Embedding):
        super().__init__()
        self.tokens = TokenScores(config.tokens, block, embedding)
        self.classes = ClassScores(config.classes, block.width)

    def tie(self, embedding: nn.Embedding) -> None:
        """Share the embedding's table, where the config says so."""
        self.tokens.tie(embedding)

    def forward(self, x: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return (batch, tokens, vocabulary) and (batch, classes)."""
        return self.tokens(x), self.classes(first)


@checked
def initialise(model: nn.Module, std: float | None = 0.02) -> None:
    """Draw matrices from a normal distribution; biases are 0, as in BERT and GPT-2.

    Their 0.02 is for 768 features. Where `std` is None, it is 1 / sqrt(inputs), and vectors of
    tokens have length 1: in a model of 64 features 0.02 makes all attention weights alike, and what
    takes a comparison of words is not learned. Gates of decay are opened, so that a fresh model
    remembers.
    """
    if std is not None:
        number("std", std)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
            inputs = module.weight[0].numel()
            nn.init.normal_(module.weight, std=inputs**-0.5 if std is None else std)
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.open_gates()
