"""Why the output has the input's size (document 003, 12.2): stacking layers, adding the input."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from querykey.attention import Softmax
from querykey.backends import attend
from querykey.lab.claim import Claim
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Measurement, exact
from querykey.nn import AttentionConfig, MultiHeadAttention

WIDTH, LAYERS = 12, 5

CLAIMS = (
    Claim("D10", "with outputs of the input's size, layers can be stacked without anything "
          f"between: of {LAYERS}, {{value}} run", LAYERS, of="layers stacked, same size"),
    Claim("D10", "with outputs of another size a second layer does not fit: {value} runs", 1,
          of="layers stacked, another size"),
    Claim("D10", "for outputs of the input's size nothing has to be added: {value} weights", 0,
          of="weights to add, same size"),
    Claim("D10", "several heads, too, fit without a layer that matches sizes: of 3 heads of 4 "
          "values in a width of 12, {value} weights are added", 0,
          of="weights to add, 3 heads of 4 values"),
    Claim("D10", "outputs of another size need a transformation: for 3 heads of 5 values, one of "
          "{value} weights",
          15 * WIDTH, of="weights to add, 3 heads of 5 values"),
    Claim("D10", "the residual sum x + Sa[x] asks for the same size: of the output sizes 1 to 12, "
          "torch adds {value} to an input of 12", 1, of="output sizes that a residual sum takes",
          right="An output of size 1 is added, too: it is broadcast to all 12 features, in "
          "silence. The shape does not guard the sum."),
)  # fmt: skip


class Plain(nn.Module):
    """Self-attention of document 003, whose values have a size of their own."""

    def __init__(self, values: int):
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.v = nn.Linear(WIDTH, values)

    def forward(self, x: Tensor) -> Tensor:
        """Return V Softmax[K^T Q], token by token."""
        return attend(self.q(x), self.k(x), self.v(x), mechanism=Softmax(scale=1.0))


def layers_that_run(values: int) -> int:
    """Return how many layers can follow each other before sizes stop fitting."""
    x = torch.randn(7, WIDTH)
    for count in range(LAYERS):
        try:
            x = Plain(values)(x)
        except RuntimeError:
            return count
    return LAYERS


def fits_a_residual_sum(values: int) -> bool:
    """Return whether torch adds the output of a layer to its input, of the input's shape."""
    x = torch.randn(7, WIDTH)
    try:
        return (x + Plain(values)(x)).shape == x.shape
    except RuntimeError:
        return False


def weights_to_add(heads: int, values: int) -> int:
    """Return the weights of the map from joined heads to the width; 0 where sizes fit already."""
    fits = heads * values == WIDTH
    config = AttentionConfig(heads, key_dim=4, value_dim=values, output=not fits)
    layer = MultiHeadAttention(WIDTH, config)
    assert layer(torch.randn(1, 7, WIDTH)).shape == (1, 7, WIDTH)
    return 0 if layer.o is None else layer.o.weight.numel()


def measure(depth: Depth) -> Measurement:
    """Stack layers, add inputs, and count what has to be added for other sizes."""
    depth.tell("stacking layers")
    sizes = range(1, WIDTH + 1)
    points = [(size, layers_that_run(size)) for size in sizes]
    return Measurement(
        {
            "layers stacked, same size": exact(layers_that_run(WIDTH)),
            "layers stacked, another size": exact(layers_that_run(WIDTH - 1)),
            "weights to add, same size": exact(weights_to_add(1, WIDTH)),
            "weights to add, 3 heads of 4 values": exact(weights_to_add(3, 4)),
            "weights to add, 3 heads of 5 values": exact(weights_to_add(3, 5)),
            "output sizes that a residual sum takes": exact(
                sum(fits_a_residual_sum(size) for size in sizes)
            ),
        },
        {"stacked": Chart("How many of 5 layers fit onto each other, input size 12",
                          "output size", "layers that run", {"self-attention": points})},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "sizes", "Why does self-attention return what has the size of its input?", CLAIMS, measure
)
