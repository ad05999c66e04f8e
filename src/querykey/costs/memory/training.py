"""What training needs in memory: weights, gradients, the optimizer's state, and activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
from torch import nn

from querykey.costs.inputs import CostError
from querykey.words import suggest

# How many numbers an optimizer of torch keeps for every number that it trains.
STATES = {"sgd": 0, "momentum": 1, "rmsprop": 1, "adagrad": 1, "lion": 1, "adam": 2, "adamw": 2}
STEP = 4  # bytes of the counter of steps that these keep for every tensor
COUNTING = ("rmsprop", "adagrad", "adam", "adamw")


@dataclass(frozen=True)
class TrainingBytes:
    """The bytes of a training step on one device.

    `activations` is what the peak takes beyond the weights and all gradients, so `total` is the
    peak of forward and backward, or all gradients where these take more, with the optimizer's
    state beside it. What an optimizer takes for a moment within its step is not in it.
    """

    weights: Any
    gradients: Any
    optimizer: Any
    activations: Any
    gathered: Any = 0  # sharded weights of two layers, put together while they run: a bound

    @property
    def total(self) -> Any:
        """Return the sum of the parts."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.gathered


def training_parts(model: nn.Module, peak: Any, optimizer: str, width: int | None) -> TrainingBytes:
    """Return the parts, given the peak of forward and backward, all weights `width` bytes wide."""
    if optimizer not in STATES:
        raise CostError(
            f"there is no optimizer `{optimizer}`{suggest(str(optimizer), STATES)} "
            f"(there are {', '.join(STATES)})"
        )

    def size(parameter: nn.Parameter) -> int:
        floating = parameter.is_floating_point()
        return parameter.numel() * (width if width and floating else parameter.element_size())

    weights = sum(map(size, model.parameters()))
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = sum(map(size, trained))
    steps = STEP * len(trained) if optimizer in COUNTING else 0
    most = weights + gradients
    beyond = _shifted(peak, most) if _is_formula(peak) else max(int(peak - most), 0)
    return TrainingBytes(weights, gradients, STATES[optimizer] * gradients + steps, beyond)


def sharded(parts: TrainingBytes, ranks: int, model: nn.Module) -> TrainingBytes:
    """Return the parts of one of several ranks that share weights, gradients and state evenly."""
    if ranks == 1:
        return parts
    width = parts.weights / max(1, sum(p.numel() for p in model.parameters()))
    numbers = {
        path: sum(p.numel() for p in module.parameters()) for path, module in model.named_modules()
    }
    layers = [n for path, n in numbers.items() if path.rpartition(".")[2].isdigit()]
    largest = int(max(layers, default=numbers[""]) * width)
    return TrainingBytes(
        -(-parts.weights // ranks),
        -(-parts.gradients // ranks),
        -(-parts.optimizer // ranks),
        parts.activations,
        min(2 * largest, parts.weights),
    )


def _is_formula(value: Any) -> bool:
    """Whether a value holds named sizes."""
    return isinstance(value, sympy.Basic) and not value.is_number


def _shifted(peak: Any, less: int) -> Any:
    """Return a maximum of formulas with a number taken from each of them, and at least 0."""
    formulas: tuple[Any, ...] = peak.args if isinstance(peak, sympy.Max) else (peak,)
    shifted = [formula - less for formula in formulas]
    return sympy.Max(*shifted, 0, evaluate=False)
