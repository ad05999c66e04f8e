"""Matrix products that run within one operation of torch, beside those that its profiler sees."""

import math

import pytest
import torch
from torch import nn

import querykey as qk


def seen(run):
    """The FLOPs of the batched products that run inside of other operations, by their shapes."""
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], record_shapes=True) as profile:
        run()
    shapes = [event.input_shapes for event in profile.events() if event.name == "aten::bmm"]
    return sum(2 * math.prod(left) * right[2] for left, right, *_ in shapes)


class Distances(nn.Module):
    """Distances to 9 points; of more than 25 rows torch makes a matrix product."""

    def __init__(self):
        super().__init__()
        self.points = nn.Parameter(torch.randn(9, 6))

    def forward(self, x):
        return torch.cdist(x, self.points)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("model", "shapes"),
    [(nn.Bilinear(3, 4, 5), [("n", 3), ("n", 4)]), (Distances(), [(2, "n", 6)])],
    ids=["bilinear", "distances"],
)
@pytest.mark.parametrize("gradient", [True, False], ids=["into inputs", "not"])
def test_products_within_an_operation_are_those_that_run(model, shapes, gradient):
    named = tuple(qk.array(*shape, grad=gradient) for shape in shapes)
    report = qk.cost(model, named, near={"n": 26})
    inputs = [
        torch.randn([30 if size == "n" else size for size in shape], requires_grad=gradient)
        for shape in shapes
    ]
    outs = []
    forward = seen(lambda: outs.append(model(*inputs)))
    backward = seen(lambda: outs[0].backward(torch.ones_like(outs[0])))
    assert report.complete
    flops = report.at(n=30).flops
    assert (flops.forward, flops.backward) == (forward, backward)
    assert forward > 0 < backward
