"""Layer norm and batch norm (document 001, 3): what an output depends on, and how long it is."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from querykey.lab.claim import Claim, Equal
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Grid, Measured, Measurement, exact
from querykey.nn import NormConfig, make_norm

BATCH, WIDTH = 5, 4
PLACES = ("i", "ii", "iii", "iv")  # itself, its column, its row, elsewhere

CLAIMS = (
    Claim("B6", "layer norm: y_ij depends on {value}", ("i", "iii"), of="layer norm, training"),
    Claim("B6", "layer norm is elementwise: y_ij depends on {value}", ("i",),
          of="layer norm, training",
          right="The text's next words have it right: on each vector alone, but on all of it."),
    Claim("B6", "layer norm in evaluation: y_ij depends on {value}", ("i", "iii"),
          of="layer norm, evaluation"),
    Claim("B6", "batch norm: y_ij depends on {value}", ("i", "ii"), of="batch norm, training"),
    Claim("B6", "batch norm in evaluation: y_ij depends on {value}", ("i", "ii"),
          of="batch norm, evaluation",
          right="In evaluation the statistics are those kept while training, so that each element "
          "depends on itself alone; the text speaks of training without saying so."),
    Claim("B7", "|y - beta 1| = {value} gamma sqrt(d), for gamma above 0", 1,
          of="|y - beta 1| / (gamma sqrt(d)), gamma = 1.7", within=Equal(1e-12)),
    Claim("B7", "|y - beta 1| = {value} gamma sqrt(d), for gamma below 0", 1,
          of="|y - beta 1| / (gamma sqrt(d)), gamma = -1.7", within=Equal(1e-12),
          right="A length is not negative: it is |gamma| sqrt(d)."),
    Claim("B7", "|y - beta 1| = {value} gamma sqrt(d) for every x, a constant one too", 1,
          of="|y - beta 1| / (gamma sqrt(d)), x constant", within=Equal(1e-12),
          right="There sigma is 0, and without epsilon y is 0/0."),
    Claim("B7", "|y - beta 1| = {value} |gamma|, with a gamma for each feature as torch has it",
          1, of="|y - beta 1| / |gamma|, a gamma for each feature", within=Equal(0.01),
          right="With a gamma for each feature the length depends on x; gamma sqrt(d) is the case "
          "of equal ones."),
)  # fmt: skip


def dependence(kind: Literal["layer", "batch"], training: bool, seed: int) -> Tensor:
    """Return the derivatives of y_00 by every entry of x, as sizes."""
    torch.manual_seed(seed)
    norm = make_norm(NormConfig(kind), WIDTH).double().train(training)
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(norm(x)[0, 0], x)
    return grad.abs()


def places(grads: list[Tensor]) -> tuple[str, ...]:
    """Return where derivatives are other than 0: (i) to (iv) of the text."""
    reached = torch.stack(grads).amax(0) > 0
    parts = (reached[0, 0], reached[1:, 0], reached[0, 1:], reached[1:, 1:])
    return tuple(name for name, part in zip(PLACES, parts, strict=True) if part.any())


def length(x: Tensor, gamma: Tensor, beta: float = 0.3) -> Tensor:
    """Return |y - beta 1| of layer norm without epsilon."""
    norm = make_norm(NormConfig("layer", epsilon=0.0), len(x)).double()
    with torch.no_grad():
        weight, bias = norm.parameters()
        weight.copy_(gamma)
        bias.fill_(beta)
        return torch.linalg.vector_norm(norm(x[None])[0] - beta)


def lengths(seed: int) -> dict[str, Measured]:
    """Return the lengths that the text's formula is about, over what it says they are."""
    d = 11
    x = torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    ones, root = torch.ones(d, dtype=torch.float64), d**0.5
    values = {
        f"|y - beta 1| / (gamma sqrt(d)), gamma = {gamma}": exact(
            float(length(x, gamma * ones)) / (gamma * root)
        )
        for gamma in (1.7, -1.7)
    }
    constant = float(length(2.5 * ones, 1.7 * ones))
    each = torch.linspace(0.1, 3, d, dtype=torch.float64)
    values["|y - beta 1| / (gamma sqrt(d)), x constant"] = exact(
        "not a number" if constant != constant else constant / (1.7 * root)
    )
    values["|y - beta 1| / |gamma|, a gamma for each feature"] = exact(
        float(length(x, each) / torch.linalg.vector_norm(each))
    )
    return values


def measure(depth: Depth) -> Measurement:
    """Take derivatives of both norms in both modes, and lengths of layer norm's outputs."""
    seeds = [*depth.seeds(quick=3, full=30)]
    values, figures = {}, {}
    for kind in ("layer", "batch"):
        for mode in ("training", "evaluation"):
            grads = [dependence(kind, mode == "training", seed) for seed in seeds]
            values[f"{kind} norm, {mode}"] = exact(places(grads))
            figures[f"{kind}-{mode}"] = Grid(
                f"{kind} norm in {mode}: derivative of the first output by every input",
                torch.stack(grads).mean(0).tolist(),
                [f"i = {i}" for i in range(BATCH)],
                [f"j = {j}" for j in range(WIDTH)],
            )
    return Measurement(values | lengths(0), figures)


EXPERIMENT = Experiment(
    "norms", "What do layer norm and batch norm depend on, and how long is what they return?",
    CLAIMS, measure,
)  # fmt: skip
