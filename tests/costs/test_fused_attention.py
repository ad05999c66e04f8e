"""Fused attention whose operands are broadcast against each other."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import querykey as qk


class Perceiver(nn.Module):
    """Five learned queries, the same for every row of the batch."""

    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, 2, 5, 4))
        self.keys_and_values, self.out = nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x):
        k, v = self.keys_and_values(x).unflatten(-1, (2, 8)).transpose(1, 2).chunk(2, -1)
        return self.out(scaled_dot_product_attention(self.queries, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("attention", ["math", "flash"])
@pytest.mark.parametrize("engine", ["auto", "interpolation"])
def test_learned_queries_are_counted_for_every_row(attention, engine):
    report = qk.cost(Perceiver(), qk.array("n", "t", 8), attention=attention, engine=engine)
    assert str(report.flops.forward) == "416*n*t + 640*n"


class Attend(nn.Module):
    """Attention with shapes as they are given, and a weight so that there is a gradient."""

    def __init__(self, causal=False, grouped=False):
        super().__init__()
        self.scale, self.causal, self.grouped = nn.Parameter(torch.ones(())), causal, grouped

    def forward(self, q, k, v, mask=None):
        return scaled_dot_product_attention(
            q * self.scale, k, v, mask, is_causal=self.causal, enable_gqa=self.grouped
        )


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (Attend(), [("n", 3, "t", 4), (1, 3, 7, 4), (1, 1, 7, 4)]),
        (Attend(), [("t", 4), ("n", 3, 7, 4), (3, 7, 4)]),
        (Attend(), [("n", 3, "t", 4), ("n", 3, 7, 4), ("n", 3, 7, 4), ("t", 7)]),
        (Attend(causal=True), [(1, 3, "t", 4), ("n", 3, "t", 4), ("n", 3, "t", 4)]),
        (Attend(grouped=True), [("n", 6, "t", 4), (1, 3, 7, 4), ("n", 3, 7, 4)]),
    ],
)
def test_leading_axes_are_broadcast_alike_both_ways(model, shapes):
    inputs = tuple(qk.array(*shape) for shape in shapes)
    fused, products = (qk.cost(model, inputs, attention=kind) for kind in ("flash", "math"))
    assert fused.flops.forward == products.flops.forward
    assert fused.flops.visible == products.flops.visible
    assert {s.name for s in fused.flops.forward.free_symbols} == {"n", "t"}


@pytest.mark.parametrize(
    ("model", "shapes", "sentence"),
    [
        (Attend(), [("n", 2, "t", 4), ("n", 2, 7, 5), ("n", 2, 7, 4)], "query and key differ: 4 "),
        (Attend(), [("n", 2, "t", 4), ("n", 2, 7, 4), ("n", 2, 8, 4)], "value differ: 7 and 8"),
        (Attend(grouped=True), [("n", 8, "t", 4), *[("n", 3, 7, 4)] * 2], "8 query heads cannot"),
    ],
)
def test_what_torch_refuses_has_no_cost(model, shapes, sentence):
    inputs = [torch.ones([3 if size in ("n", "t") else size for size in s]) for s in shapes]
    with pytest.raises(RuntimeError), sdpa_kernel(SDPBackend.MATH):
        model(*inputs)
    with pytest.raises(qk.CostError, match=sentence):
        qk.cost(model, tuple(qk.array(*shape) for shape in shapes))


def test_a_mask_per_row_makes_fused_attention_run_per_row():
    shapes = [(1, 3, "t", 4), (1, 3, 7, 4), (1, 3, 7, 4), ("n", 1, "t", 7)]
    inputs = tuple(qk.array(*shape) for shape in shapes)
    assert str(qk.cost(Attend(), inputs).flops.forward) == "336*n*t"
    # As products, the scores are the same for every row, and only what follows them is not.
    assert str(qk.cost(Attend(), inputs, attention="math").flops.forward) == "168*n*t + 168*t"


class Checkpointed(nn.Module):
    """Attention that is run again in the backward pass, or not."""

    def __init__(self, again):
        super().__init__()
        self.scale, self.again = nn.Parameter(torch.ones(())), again

    def attend(self, x):
        return scaled_dot_product_attention(x * self.scale, x, x)

    def forward(self, x):
        return checkpoint(self.attend, x, use_reentrant=False) if self.again else self.attend(x)


@pytest.mark.parametrize(("attention", "products", "repeated"), [("flash", 5, 2), ("math", 4, 1)])
@pytest.mark.parametrize("engine", ["auto", "interpolation"])
def test_attention_that_is_checkpointed_runs_again_as_it_ran_before(
    attention, products, repeated, engine
):
    """As products only the scores are repeated: nothing needs the last product's result."""
    inputs = qk.array("n", 3, "t", 4, grad=True)
    plain, again = (
        qk.cost(Checkpointed(again), inputs, attention=attention, engine=engine)
        for again in (False, True)
    )
    n, t = (again.symbols[name] for name in "nt")
    product = 2 * n * 3 * t * t * 4
    assert again.flops.forward == plain.flops.forward == 2 * product
    assert plain.flops.backward == products * product
    assert again.flops.backward == (repeated + products) * product
