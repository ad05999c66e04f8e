"""A convolutional network that learns to classify pictures: its gradients, its loss, its errors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from querykey.lab.convolutional import ConvolutionalConfig, ConvolutionalNetwork, weight_layers
from querykey.lab.pictures import Pictures, pictures


@dataclass(frozen=True)
class TrainingSetting:
    """How every network of a grid is trained."""

    data: str
    channels: int
    batch: int
    steps: int
    device: str = "cpu"
    rate: float = 0.02
    momentum: float = 0.9


@dataclass(frozen=True)
class NetworkResult:
    """What is known of one network: its gradients before training, and how it did after it."""

    gradients: tuple[float, ...]  # norms by layer, from the input on; not the linear layer's
    loss: float | None = None  # the mean of the last tenth of the steps; None: not trained
    error: float | None = None  # the share of test images that are classified wrongly


def before_training(model: ConvolutionalNetwork, batch: Pictures) -> NetworkResult:
    """Return the gradient of every layer before the first step."""
    F.cross_entropy(model(batch.images), batch.labels).backward()
    grads = [layer.weight.grad for layer in weight_layers(model)[:-1]]
    model.zero_grad()
    return NetworkResult(tuple(float(g.norm()) for g in grads if g is not None))


def train(
    model: ConvolutionalNetwork, data: Pictures, training: TrainingSetting, seed: int
) -> float:
    """Train by SGD with momentum; return the mean loss of the last tenth of the steps."""
    optimizer = torch.optim.SGD(model.parameters(), training.rate, training.momentum)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(training.steps):
        rows = torch.randint(len(data), (training.batch,), generator=generator)
        batch = data[rows.to(training.device)]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch.images), batch.labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if not loss.isfinite():
            return loss.item()
    return float(torch.stack(losses[-max(training.steps // 10, 1) :]).mean())


@torch.no_grad()
def error_rate(model: ConvolutionalNetwork, data: Pictures) -> float:
    """Return the share of images that a network takes for something else."""
    model.eval()
    wrong = sum(
        int((model(piece.images).argmax(1) != piece.labels).sum()) for piece in data.split(1000)
    )
    return wrong / len(data)


def outcome(config: ConvolutionalConfig, training: TrainingSetting, seed: int) -> NetworkResult:
    """Return what became of one network; with no steps, only what is known before training."""
    images, unseen = (part.to(training.device) for part in pictures(training.data))
    torch.manual_seed(seed)
    model = ConvolutionalNetwork(config).to(training.device)
    start = torch.Generator().manual_seed(seed)
    first = torch.randperm(len(images), generator=start)[:128].to(training.device)
    before = before_training(model, images[first])
    if not training.steps:
        return before
    loss = train(model, images, training, seed)
    return replace(before, loss=loss, error=error_rate(model, unseen))
