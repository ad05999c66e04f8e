"""Bytes that operations read and write, beside counts by hand: elements in, elements out, width."""

import pytest
import sympy
import torch
from torch import nn
from torch.nn.functional import embedding, layer_norm, pad, scaled_dot_product_attention

import querykey as qk


class Do(nn.Module):
    """A function of x, and of two weights."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.table = nn.Parameter(torch.randn(9, 5))
        self.row = nn.Parameter(torch.randn(5))

    def forward(self, x):
        return self.function(self, x)


# Of x with n rows of 5 features: the elements that the forward pass reads, and those it writes.
FORWARD = {
    "a product": (lambda m, x: x @ m.table.mT, "5*n + 45", "9*n"),
    "a product with a bias": (
        lambda m, x: torch.addmm(m.row[:3], x, m.table[:3].mT), "5*n + 15 + 3", "3*n",
    ),
    "elementwise": (lambda m, x: x.exp() * m.row, "5*n + 5*n + 5", "5*n + 5*n"),
    "the same operand twice": (lambda m, x: x * x, "5*n", "5*n"),
    "views": (lambda m, x: x.mT.unsqueeze(0).expand(3, 5, -1)[:, 1:], "0", "0"),
    "a repeated axis, read once": (
        lambda m, x: x[:, :1].expand(-1, 5).exp(), "n", "5*n",
    ),
    "a copy of a view": (lambda m, x: x.mT.contiguous(), "5*n", "5*n"),
    "in place": (lambda m, x: x.exp().mul_(2).add_(m.row), "5*n*3 + 5", "5*n*3"),
    "a fill": (lambda m, x: x.new_empty(7, 5).zero_() + 1, "35", "70"),
    "a softmax": (lambda m, x: x.softmax(-1), "5*n", "5*n"),
    "a sum": (lambda m, x: x.sum(-1), "5*n", "n"),
    "a norm": (  # mean and 1/deviation of every row are written too
        lambda m, x: layer_norm(x, (5,), m.row), "5*n + 5", "5*n + 2*n",
    ),
    "rows side by side": (lambda m, x: torch.cat([x, m.table]), "5*n + 45", "5*n + 45"),
    "padding": (lambda m, x: pad(x, (0, 2)), "5*n", "7*n"),
    "zeros like": (lambda m, x: torch.zeros_like(x), "0", "5*n"),
    "a result that is given": (
        lambda m, x: torch.mul(x, 2, out=x.new_empty(x.shape)), "5*n", "5*n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARD)
def test_an_operation_reads_its_operands_and_writes_its_result(name):
    function, read, written = FORWARD[name]
    report = qk.cost(Do(function), qk.array("n", 5), backward=False)
    assert report.bytes_moved == sympy.expand(4 * (sympy.sympify(read) + sympy.sympify(written)))


def test_what_picks_rows_reads_those_rows():
    def looked_up(model, ids):  # ids are 8 bytes wide
        return embedding(ids, model.table)

    report = qk.cost(Do(looked_up), qk.tokens("n"))
    forward, backward = "8*n + 4*5*n + 4*5*n", "8*n + 4*5*n + 4*45"
    assert report.bytes_moved == sympy.expand(f"{forward} + {backward}")

    def put(model, x):  # 3 rows of a copy take 3 others' place, at ids
        copy = x.clone()
        copy[torch.tensor([0, 2, 1])] = x[:3]
        return copy

    report = qk.cost(Do(put), qk.array("n", 5), backward=False)
    # the ids are made once (3 of them, 8 bytes each), and read once
    assert report.bytes_moved - 8 * 3 - 2 * 4 * 5 * sympy.Symbol("n") - 2 * 4 * 15 in (0, 24, 48)


def test_a_linear_layer_forward_and_backward():
    report = qk.cost(nn.Linear(6, 4), qk.array("n", 6, grad=True))
    forward = "6*n + 24 + 4 + 4*n"
    backward = "(4*n + 24 + 6*n) + (4*n + 6*n + 24) + (4*n + 4)"  # of x, the weight and the bias
    assert report.bytes_moved == 4 * sympy.expand(f"{forward} + {backward}")
    assert report.at(n=5).bytes_moved == 4 * (30 + 28 + 20 + 20 + 24 + 30 + 20 + 30 + 24 + 20 + 4)


class Attend(nn.Module):
    """Causal attention of 6 heads over 3 shared ones, and a weight so that there is a gradient."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, q, k, v):
        return self.inner(q, k, v)


class Inner(nn.Module):
    def forward(self, q, k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def test_fused_attention_moves_no_scores():
    inputs = (
        qk.array("b", 6, "t", 4, grad=True),
        qk.array("b", 3, "t", 4, grad=True),
        qk.array("b", 3, "t", 4, grad=True),
    )
    report = qk.cost(Attend(), inputs)
    q, kv, sums = "b*6*t*4", "b*3*t*4", "b*6*t"
    forward = f"{q} + 2*{kv} + {q} + {sums}"
    # the gradient of the output, q, k, v, the output and the sums in; three gradients out
    backward = f"{q} + {q} + 2*{kv} + {q} + {sums} + {q} + 2*{kv}"
    assert report.bytes_moved == 4 * sympy.expand(f"{forward} + {backward}")
    assert report.modules["inner"].bytes_moved == report.bytes_moved
    as_products = qk.cost(Attend(), inputs, attention="math")
    assert as_products.bytes_moved.has(sympy.Symbol("t") ** 2)


def test_attention_within_torchs_own_module_is_fused_too():
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
    report = qk.cost(layer, qk.array("b", "t", 8))
    assert str(report.flops.recomputed) == "16*b*t**2"
    assert not report.bytes_moved.has(sympy.Symbol("t") ** 2)


def test_bytes_are_those_of_the_dtype():
    layer, half = nn.Linear(6, 4), nn.Linear(6, 4).bfloat16()
    whole = qk.cost(layer, qk.array("n", 6)).bytes_moved
    assert qk.cost(half, qk.array("n", 6)).bytes_moved == whole / 2
    assert qk.cost(layer.double(), qk.array("n", 6)).bytes_moved == whole * 2


def blocks(layers=5):
    block = [nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(11, 8), *block)


def test_modules_have_their_own_and_equal_layers_the_same():
    report = qk.cost(blocks(), qk.tokens("b", "t"))
    moved = {path: module.bytes_moved for path, module in report.modules.items()}
    assert moved["2"] == moved["5"] == moved["1"]
    children = [path for path in moved if path.isdigit()]
    assert sympy.expand(sum(moved[path] for path in children)) == moved[""]
    at = report.at(b=3, t=7)
    assert at.modules["2"].bytes_moved == moved["2"].subs({"b": 3, "t": 7})
    assert sum(at.traffic.at({"b": 3, "t": 7}).values()) == at.bytes_moved  # in all layers


def test_sizes_that_are_no_symbols_are_interpolated_or_counted():
    def build(width, layers):
        return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))

    report = qk.cost(build, qk.array("n", "width"), backward=False)
    assert report.bytes_moved == sympy.expand("4*layers*(2*n*width + width**2)")
    assert report.at(n=3, width=8, layers=2).bytes_moved == 4 * 2 * (48 + 64)
    loop = qk.cost(nn.RNN(3, 4, batch_first=True), qk.array("b", "t", 3), backward=False)
    counted = loop.traffic.at({"b": 5, "t": 20})
    assert loop.at(b=5, t=20).bytes_moved == sum(counted.values())


def test_what_autograd_does_not_reach_moves_nothing_backward():
    forward = qk.cost(blocks(2), qk.tokens("b", "t"), backward=False).bytes_moved
    both = qk.cost(blocks(2), qk.tokens("b", "t")).bytes_moved
    assert both.subs({"b": 3, "t": 9}) > 2 * forward.subs({"b": 3, "t": 9})
