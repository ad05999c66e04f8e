"""Argmax attention (document 004, 4): its worked example, and which parameters it leaves untrained.

A query takes the value of the one key it fits best. The choice does not change when queries and
keys change a little, so no gradient reaches the maps that make them. The text concludes that most
parameters of a transformer would stay as they are; here they are counted.
"""

from __future__ import annotations

import torch

from querykey.attention import Argmax
from querykey.backends import attend
from querykey.lab.claim import AtLeast, Claim
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Grid, Measurement, exact, sampled
from querykey.nn import AttentionConfig, Block, BlockConfig, MLPConfig

KEYS = ((1, 2, 0), (0, 3, 4), (5, 0, 0), (0, 0, 1))
VALUES = ((2, 0, 1), (1, 4, 3), (0, -1, 4), (1, 0, -1))
QUERY = ((1, 1, 2),)
WIDTH, HEADS = 32, 4

CLAIMS = (
    Claim("E6", "the output for the query (1, 1, 2) is {value}", (1, 4, 3), of="output"),
    Claim(
        "E6",
        "the gradients of queries and keys are always {value}",
        0,
        of="largest gradient of the query and key maps",
    ),
    Claim(
        "E6",
        "most of a block's parameters, a share of {value} or more, would stay the same",
        0.5,
        of="share of a block's parameters with a gradient of zero",
        within=AtLeast(),
        right="Only the maps that make queries and keys stand still, 2 of the 12 squares of the "
        "width in a block; the maps of values and outputs, the MLP and the norms learn on.",
    ),
    Claim(
        "E6",
        "a gradient is missing (None, which an optimizer skips) for {value} parameters",
        0,
        of="parameters without a gradient",
        right="Zeros are not the same as None: weight decay and momentum go on with them.",
    ),
)


def worked_example() -> tuple[int, ...]:
    """Return the output that the text computes by hand."""
    q, k, v = (torch.tensor(rows, dtype=torch.float64) for rows in (QUERY, KEYS, VALUES))
    return tuple(int(x) for x in attend(q, k, v, mechanism=Argmax())[0])


def gradients(seed: int) -> dict[str, torch.Tensor | None]:
    """Return the gradient of every parameter of a block with argmax attention, by its name."""
    torch.manual_seed(seed)
    attention = AttentionConfig(HEADS, mechanism=Argmax())
    block = Block(BlockConfig(WIDTH, attention, MLPConfig(4 * WIDTH)))
    x = torch.randn(3, 11, WIDTH)
    (block(x) - torch.randn_like(x)).square().mean().backward()
    return {name: parameter.grad for name, parameter in block.named_parameters()}


def share_of_zeros(grads: dict[str, torch.Tensor | None]) -> float:
    """Return the share of parameters whose gradient is exactly 0."""
    numbers = torch.cat([grad.flatten() for grad in grads.values() if grad is not None])
    return float((numbers == 0).double().mean())


def measure(depth: Depth) -> Measurement:
    """Compute the example, and the gradients of blocks with random weights."""
    blocks = [gradients(seed) for seed in depth.seeds(quick=5, full=50)]
    made = ("attention.q.", "attention.k.")  # queries and keys
    chosen = [g for grads in blocks for name, g in grads.items() if name.startswith(made)]
    largest = max(float(g.abs().max()) for g in chosen if g is not None)
    parts = [name for name in blocks[0] if name.endswith("weight")]
    sizes = [_root_mean_square(blocks[0][name]) for name in parts]
    return Measurement(
        {
            "output": exact(worked_example()),
            "largest gradient of the query and key maps": exact(largest),
            "share of a block's parameters with a gradient of zero": sampled(
                share_of_zeros(grads) for grads in blocks
            ),
            "parameters without a gradient": exact(
                sum(grad is None for grads in blocks for grad in grads.values())
            ),
        },
        {
            "gradients": Grid(
                "Argmax attention: size of each weight's gradient",
                [[size] for size in sizes],
                parts,
            )
        },
    )


def _root_mean_square(grad: torch.Tensor | None) -> float:
    return 0.0 if grad is None else float(grad.square().mean().sqrt())


EXPERIMENT = Experiment(
    "argmax", "What does attention that takes the best key compute, and what can it learn?",
    CLAIMS, measure,
)  # fmt: skip
