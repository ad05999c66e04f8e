"""What the documents say about cost, from torch twins of their code."""

from pathlib import Path

import einops
import pytest
import sympy
import torch
from torch import nn

import querykey as qk
from querykey.costs import cost_of_target

EXAMPLE = str(Path(__file__).parents[2] / "examples/what_documents_cost.py")


class SingleHeadAttention(nn.Module):
    """Document 000's class of this name, line by line."""

    def __init__(self, n_features):
        super().__init__()
        self.Wq, self.Wk, self.Wv = (
            nn.Parameter(torch.randn(n_features, n_features)) for _ in range(3)
        )

    def forward(self, Xin):
        Queries = Xin @ self.Wq
        Keys = Xin @ self.Wk
        KQ = Keys @ torch.moveaxis(Queries, 1, 2)
        expKQ = torch.exp(KQ)
        softmaxKQ = expKQ / torch.sum(expKQ, dim=1, keepdim=True)
        return torch.moveaxis(torch.moveaxis(Xin, 1, 2) @ softmaxKQ, 1, 2) @ self.Wv


class MLP(nn.Module):
    def __init__(self, n_features, n_hidden):
        super().__init__()
        self.Wh = nn.Parameter(torch.randn(n_features, n_hidden))
        self.bh = nn.Parameter(torch.randn(n_hidden))
        self.wo = nn.Parameter(torch.randn(n_hidden, n_features))
        self.bo = nn.Parameter(torch.randn(n_features))

    def forward(self, Xin):
        return torch.relu(Xin @ self.Wh + self.bh) @ self.wo + self.bo


def transformer_block(d, h):
    return nn.Sequential(SingleHeadAttention(d), MLP(d, h))


@pytest.mark.slow
def test_the_block_of_document_000():
    report = qk.cost(transformer_block, qk.array("n", "C", "d"))
    assert str(report.order("flops.forward")) == "O(n C d^2 + n C^2 d + n C d h)"
    n, C, d, h = (report.symbols[name] for name in "nCdh")
    # Wq, Wk, Wv; scores and weighted inputs; the two maps of the MLP.
    by_hand = 3 * 2 * n * C * d**2 + 2 * 2 * n * C**2 * d + 2 * 2 * n * C * d * h
    assert report.flops.forward - by_hand.expand() == 0
    assert sympy.expand(report.params - (3 * d**2 + 2 * d * h + d + h)) == 0


class MultiHead(nn.Module):
    """Document 001's forward, without masks."""

    def __init__(self, h, k):
        super().__init__()
        self.n_heads = h
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(h * k, h * k) for _ in range(4)
        )

    def forward(self, q, s):
        q, k, v = self.q_proj(q), self.k_proj(s), self.v_proj(s)
        q, k, v = (
            einops.rearrange(x, "b l (nh dh) -> (b nh) l dh", nh=self.n_heads) for x in (q, k, v)
        )
        a = torch.softmax(q @ k.transpose(1, 2) / q.size(-1) ** 0.5, dim=-1)
        return self.o_proj(einops.rearrange(a @ v, "(b nh) t dh -> b t (nh dh)", nh=self.n_heads))


class Widened(nn.Module):
    """Inputs as wide as the heads together, from inputs of one feature."""

    def __init__(self, h, k):
        super().__init__()
        self.inner, self.width = MultiHead(h, k), h * k

    def forward(self, q, s):
        return self.inner(q.expand(-1, -1, self.width), s.expand(-1, -1, self.width))


@pytest.mark.slow
def test_multi_head_attention_of_document_001():
    report = qk.cost(Widened, (qk.array(2, "n_t", 1), qk.array(2, "n_s", 1)))
    order = report.order("flops.forward", given={"d": "h*k"})
    assert order.theta == "Theta(n_t d^2 + n_s d^2 + n_t n_s d) where d = h*k"
    assert str(order).startswith("O(n_t d^2 + n_s d^2 + n_t n_s d)")


def test_the_parameters_of_document_003():
    def queries_keys_values(D):
        return nn.ModuleDict({name: nn.Linear(D, D) for name in "qkv"})

    class Attention(nn.Module):
        def __init__(self, D):
            super().__init__()
            self.maps = queries_keys_values(D)

        def forward(self, x):
            q, k, v = (self.maps[name](x) for name in "qkv")
            return torch.softmax(q @ k.mT, -1) @ v

    report = qk.cost(Attention, qk.array("N", "D"))
    D = report.symbols["D"]
    assert report.params == 3 * D**2 + 3 * D


def test_the_polynomial_of_document_000_from_the_command_line():
    report = cost_of_target(f"{EXAMPLE}:block", inputs=["array(n,C,d)"], over="d,h")
    n, C, d, h = (report.symbols[name] for name in "nCdh")
    by_hand = 3 * 2 * n * C * d**2 + 2 * 2 * n * C**2 * d + 2 * 2 * n * C * d * h
    assert report.flops.forward - by_hand == 0
    assert report.at(n=3, C=7, d=5, h=11).flops.forward == 3 * 7 * (6 * 25 + 28 * 5 + 220)


def test_problem_12_9_of_document_003_from_the_command_line():
    """Twice two products of 256 by 512 numbers: N^2 D between patches, D^2 N between channels."""
    patches, channels = (
        cost_of_target(f"{EXAMPLE}:between_{what}", inputs=["array(N,D)"], at="N=256,D=512")
        for what in ("patches", "channels")
    )
    assert patches.flops.forward == 4 * 256 * 256 * 512
    assert channels.flops.forward == 4 * 512 * 512 * 256
    assert "built" not in patches.settings


def test_both_complexities_of_document_004_and_where_they_meet():
    inputs = ["array(N,D)", "array(N,D)", "array(N,M)"]
    softmax, linear = (
        cost_of_target(f"{EXAMPLE}:{name}", inputs=inputs) for name in ("Softmax", "Linear")
    )
    assert str(softmax.order("flops.forward")) == "O(N^2 D + N^2 M)"
    assert str(linear.order("flops.forward")) == "O(N D^2 M)"
    assert softmax.compare(linear, "N", D=16, M=16).crossings == (264,)
    assert softmax.at(N=264, D=16, M=16).flops.forward == 2 * 264**2 * 32
    assert linear.at(N=264, D=16, M=16).flops.forward == 2 * 264 * (2 * 256 * 16 + 256)
