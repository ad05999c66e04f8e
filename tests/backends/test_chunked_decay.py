"""Decay in chunks: against the naive twin, and against every pair with its gates multiplied."""

import pytest
import torch

from querykey.attention.features import EluPlusOne, Quadratic, RandomFeatures
from querykey.attention.mechanisms import Kernel
from querykey.backends.chunked import linear, naive

MAPS = [Quadratic(), EluPlusOne(), RandomFeatures(11, seed=3)]


def draw(tokens, heads=3, key_dim=5, value_dim=3):
    generator = torch.Generator().manual_seed(0)
    shapes = ((tokens, key_dim), (tokens, key_dim), (tokens, value_dim))
    return [
        torch.randn(2, heads, *shape, generator=generator, dtype=torch.float64) for shape in shapes
    ]


def results(function, *inputs):
    """Return the outputs of a function and the gradients of its inputs, for random gradients."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    generator = torch.Generator().manual_seed(1)
    pulled = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in outputs]
    gradients = torch.autograd.grad(outputs, leaves, pulled, materialize_grads=True)
    return [*(x.detach() for x in outputs), *gradients]


def assert_close(ours, theirs, tolerance=1e-10):
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert a.shape == b.shape
        error = (a - b).abs().max() / (1 + b.abs().max())
        assert error < tolerance, f"result {number} is off by {error}"


@pytest.mark.parametrize("features", MAPS, ids=str)
@pytest.mark.parametrize("tokens", [1, 70, 600])
def test_the_naive_twin_agrees(features, tokens):
    kernel, width = Kernel(features, scale=0.7), features.width(5)
    generator = torch.Generator().manual_seed(2)
    sums = torch.rand(2, 3, width, 4, generator=generator, dtype=torch.float64)
    still = torch.zeros(2, 3, tokens, dtype=torch.float64)

    def fast(q, k, v, sums):
        out, outer, total = linear.extend(q, k, v, kernel, sums[..., :-1], sums[..., -1])
        return out, torch.cat([outer, total[..., None]], -1)

    inputs = (*draw(tokens), sums)
    theirs = results(lambda q, k, v, sums: naive.extend(q, k, v, kernel, sums, still), *inputs)
    assert_close(results(fast, *inputs), theirs)
