"""Initial weights of a size that fits small models."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def fit_weights(model: nn.Module, drawn: float = 0.02) -> None:
    """Scale every matrix, drawn with one standard deviation, to 1 / sqrt(inputs).

    BERT's 0.02 is for 768 features. In a model of 64 it makes all attention weights alike and all
    outputs small, and tasks that compare words stay at chance for long.
    """
    for matrix in model.parameters():
        if matrix.ndim > 1:
            matrix *= matrix[0].numel() ** -0.5 / drawn
