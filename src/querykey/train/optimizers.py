"""Optimizers and the learning rate of every step: a function of the step's number alone."""

from __future__ import annotations

import math

import torch
from torch import nn

from querykey.train.config import ConfigError, OptimizerConfig
from querykey.words import a_type


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimizer over every trained parameter; matrices decay, vectors do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ConfigError(f"the model, {a_type(model)}, has no parameters to train")
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.rate, momentum=config.momentum)
    return torch.optim.AdamW(groups, lr=config.rate, betas=config.betas, fused=True)


def rate_at(step: int, steps: int, config: OptimizerConfig) -> float:
    """Return the learning rate of a step: a linear rise, then the schedule down to a tenth."""
    if step < config.warmup:
        return config.rate * (step + 1) / (config.warmup + 1)
    if config.schedule == "constant":
        return config.rate
    done = min((step - config.warmup) / max(steps - config.warmup, 1), 1.0)
    if config.schedule == "linear":
        return config.rate * (1 - 0.9 * done)
    return config.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group of parameters the same learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def start_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer make its tensors, as they are before the first step, for every parameter.

    A checkpoint then has the same tensors whether or not a parameter ever got a gradient.
    """
    set_rate(optimizer, 0.0)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()
