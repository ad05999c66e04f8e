"""What stands on top of a stack: scores over the vocabulary, or over classes."""

from __future__ import annotations

from torch import Tensor, nn

from querykey.models.text.config import ClassHead, TokenHead
from querykey.nn import BlockConfig, activate, make_norm


class TokenScores(nn.Module):
    """scale * (W x) for every token; with a transform, x is first norm(activation(V x))."""

    def __init__(self, config: TokenHead, block: BlockConfig, embedding: nn.Embedding):
        super().__init__()
        self.config, width = config, block.width
        self.transform = self.norm = None
        if config.transform is not None:
            self.transform = nn.Linear(width, width)
            self.norm = make_norm(block.norm, width)
        self.output = nn.Linear(width, embedding.num_embeddings, bias=config.bias)
        self.tie(embedding)

    def tie(self, embedding: nn.Embedding) -> None:
        """Share the embedding's table, where the config says so."""
        if self.config.tied:
            self.output.weight = embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        """Turn (..., width) into (..., vocabulary)."""
        if self.transform is not None and self.norm is not None and self.config.transform:
            x = self.norm(activate(self.config.transform, self.transform(x)))
        return self.output(x if self.config.scale == 1 else x * self.config.scale)

    def extra_repr(self) -> str:
        """Say what is tied."""
        return "tied to the embedding" if self.config.tied else ""


class ClassScores(nn.Module):
    """Scores over classes from one vector per sequence."""

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
    """Draw matrices from a normal distribution; biases are 0, as in BERT and GPT-2."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)
