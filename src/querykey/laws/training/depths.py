"""How large the derivative of the loss is at the output of every layer, in one backward pass."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

FEWEST = 4  # layers that make a chain


@dataclass
class Derivative:
    """The derivative of the loss by the output of one call of a module."""

    path: str
    kind: type
    shape: tuple[int, ...]
    size: float = math.nan  # its root mean square


class LayerDerivatives:
    """The derivatives by the outputs of all modules, in the order in which these ran."""

    def __init__(self) -> None:
        self.all: list[Derivative] = []
        self.paths: dict[int, dict[int, str]] = {}  # of modules, by the root they ran in

    def follow(self, root: nn.Module, module: nn.Module, output: torch.Tensor) -> None:
        """Measure the derivative by this output when it comes."""
        if id(root) not in self.paths:
            self.paths[id(root)] = {id(m): path for path, m in root.named_modules()}
        path = self.paths[id(root)].get(id(module), type(module).__name__)
        derivative = Derivative(path, type(module), tuple(output.shape))
        self.all.append(derivative)

        def measure(gradient: Any) -> None:
            if isinstance(gradient, torch.Tensor) and gradient.numel():
                derivative.size = float(gradient.detach().double().square().mean().sqrt())

        output.register_hook(measure)

    def chains(self) -> list[list[Derivative]]:
        """Return layers of one kind whose paths differ in numbers alone, in the order they ran."""
        groups: dict[tuple[Any, ...], list[Derivative]] = {}
        for derivative in self.all:
            if not math.isnan(derivative.size):
                pattern = re.sub(r"\d+", "*", derivative.path)
                key = pattern, derivative.kind, derivative.shape
                groups.setdefault(key, []).append(derivative)
        return [chain for chain in groups.values() if len({d.path for d in chain}) >= FEWEST]
