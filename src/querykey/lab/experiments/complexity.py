"""The cost of multi-head attention line by line (document 001, 2 c and d), and its bottleneck.

Every line of the text's code is a module here, so that `qk.cost` gives each its formula.
"""

from __future__ import annotations

import math

import sympy
import torch
from torch import Tensor, nn

from querykey.costs import CostReport, array, cost
from querykey.lab.claim import AtLeast, Claim
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.listings import HEADS_LISTING
from querykey.lab.measurement import Chart, Measurement, exact

HEADS = 4
PROJECTIONS = ("line_2", "line_3", "line_4", "line_18")
MOVING = ("line_5", "line_7", "line_9", "line_16")
PRODUCTS = ("line_4_scores", "line_15_values")

CLAIMS = (
    *(
        Claim("B5", f"the products of {line.replace('_', ' ', 1).replace('_', ', ')} are "
              "Theta(n_t^a n_s^b d_model^c) with a, b, c = {value}", powers,
              of=f"powers of n_t, n_s, d_model in {line}")
        for line, powers in (
            ("line_2", (1, 0, 2)), ("line_3", (0, 1, 2)), ("line_4", (0, 1, 2)),
            ("line_4_scores", (1, 1, 1)), ("line_14", (1, 1, 0)), ("line_15_values", (1, 1, 1)),
            ("line_18", (1, 0, 2)),
        )
    ),
    *(
        Claim("B5", f"the entries moved by {line.replace('_', ' ')} are "
              "Theta(n_t^a n_s^b d_model^c) with a, b, c = {value}", powers,
              of=f"powers of n_t, n_s, d_model in the entries of {line}")
        for line, powers in (("line_5", (1, 0, 1)), ("line_7", (0, 1, 1)), ("line_9", (0, 1, 1)),
                             ("line_16", (1, 0, 1)))
    ),
    Claim("B5", "keys and values are rearranged in lines {value}", (6, 7),
          of="lines that rearrange keys and values",
          right="Line 6 is the end of line 5; keys are rearranged in lines 7 and 8, values in 9 "
          "and 10."),
    Claim("B5", "in all Theta(n_t d_model^2 + n_s d_model^2 + n_t n_s d_model): {value} "
          "multiply-adds of each term", (2, 2, 2), of="multiply-adds per term"),
    Claim("B5", "the number of heads does not enter: products cost {value} times as much with 4 "
          "heads as with 1", 1, of="FLOPs with 4 heads over 1"),
    Claim("B5", "(d i) d_model large (1024), sequences short (64): the projections take a share of "
          "{value} or more", 0.5, of="share of projections, n = 64, d = 1024", within=AtLeast()),
    Claim("B5", "(d ii) sequences long (4096), d_model small (64): scores and weighted sum take a "
          "share of {value} or more", 0.5, of="share of attention, n = 4096, d = 64",
          within=AtLeast()),
)  # fmt: skip


class Scores(nn.Module):
    """Lines 4 and 5 of the function: q k^T / sqrt(d_head)."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the scores of all heads."""
        return q @ k.transpose(1, 2) / q.size(-1) ** 0.5


class Weights(nn.Module):
    """Line 14: softmax over keys."""

    def forward(self, s: Tensor) -> Tensor:
        """Return the weights of all heads."""
        return s.softmax(-1)


class WeightedSum(nn.Module):
    """Line 15: the weights times the values."""

    def forward(self, a: Tensor, v: Tensor) -> Tensor:
        """Return the outputs of all heads."""
        return a @ v


class SplitHeads(nn.Module):
    """Lines 5, 7 and 9: heads become rows of the batch, which moves every entry once."""

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch * heads, tokens, d_head)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1).contiguous()


class JoinHeads(SplitHeads):
    """Line 16: heads become features again."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, tokens, d_model)."""
        return x.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2).contiguous()


class AttentionListing(nn.Module):
    """Document 001's multi-head attention, a module for every line that computes."""

    def __init__(self, d: int, heads: int = HEADS):
        super().__init__()
        self.line_2, self.line_3, self.line_4, self.line_18 = (
            nn.Linear(d, d, bias=False) for _ in range(4)
        )
        self.line_4_scores, self.line_14 = Scores(), Weights()
        self.line_15_values, self.line_16 = WeightedSum(), JoinHeads(heads)
        self.line_5, self.line_7, self.line_9 = (SplitHeads(heads) for _ in range(3))

    def forward(self, target: Tensor, source: Tensor) -> Tensor:
        """Return (batch, n_t, d_model)."""
        q, k, v = self.line_2(target), self.line_3(source), self.line_4(source)
        q, k, v = self.line_5(q), self.line_7(k), self.line_9(v)
        o = self.line_15_values(self.line_14(self.line_4_scores(q, k)), v)
        return self.line_18(self.line_16(o))


def derived(heads: int) -> CostReport:
    """Return the formulas in n_t, n_s and d of the text's code with some number of heads."""

    def build(d: int) -> nn.Module:
        return AttentionListing(d, heads)

    inputs = {"target": array(1, "n_t", "d"), "source": array(1, "n_s", "d")}
    return cost(build, inputs, backward=False, sizes={"d": HEADS})


def powers(formula: sympy.Expr, report: CostReport) -> tuple[int, ...]:
    """Return the powers of n_t, n_s and d in a formula of one term."""
    symbols = [report.symbols[name] for name in ("n_t", "n_s", "d")]
    monomials = sympy.Poly(formula, *symbols).monoms()
    return monomials[0] if len(monomials) == 1 else ()


def entries(line: nn.Module, tokens: int, width: int) -> int:
    """Return how many entries a line moves that computes nothing."""
    rows = HEADS if isinstance(line, JoinHeads) else 1
    return line(torch.empty(rows, tokens, width, device="meta")).numel()


def powers_moved(line: nn.Module) -> tuple[int, int]:
    """Return the powers of the tokens and of d in the entries that a line moves, by doubling."""
    base, n, d = 8 * HEADS, entries(line, 14, 8 * HEADS), entries(line, 7, 16 * HEADS)
    first = entries(line, 7, base)
    return round(math.log2(n / first)), round(math.log2(d / first))


def rearranging_lines(what: str) -> tuple[int, ...]:
    """Return the numbers of the printed lines that rearrange one of q, k, v or o."""
    lines = enumerate(HEADS_LISTING.splitlines(), 1)
    return tuple(n for n, line in lines if line.strip().startswith(f"{what} = einops.rearrange"))


def shares(report: CostReport, n: int, d: int) -> tuple[float, float]:
    """Return what the projections, and what scores and weighted sum, take of all products."""
    at = report.at(n_t=n, n_s=n, d=d)
    total = at.flops.forward
    return tuple(
        sum(at.modules[line].flops.forward for line in lines) / total
        for lines in (PROJECTIONS, PRODUCTS)
    )


def measure(depth: Depth) -> Measurement:
    """Derive the formula of every line, and where one part overtakes the other."""
    depth.tell("deriving the formulas")
    report, single = derived(HEADS), derived(1)
    t, s, d = (report.symbols[name] for name in ("n_t", "n_s", "d"))
    values = {}
    for line in (*PROJECTIONS, *PRODUCTS, "line_14"):
        flops = report.modules[line].flops
        formula = flops.forward or flops.pointwise
        values[f"powers of n_t, n_s, d_model in {line}"] = exact(powers(formula, report))
        values[f"FLOPs of {line}"] = exact(str(formula))
    for line in MOVING:
        tokens, width = powers_moved(getattr(AttentionListing(8 * HEADS), line))
        of_keys = line in ("line_7", "line_9")
        values[f"powers of n_t, n_s, d_model in the entries of {line}"] = exact(
            (0, tokens, width) if of_keys else (tokens, 0, width)
        )
    values["lines that rearrange keys and values"] = exact(
        rearranging_lines("k") + rearranging_lines("v")
    )
    total = sympy.Poly(report.flops.forward, t, s, d)
    terms = (t * d**2, s * d**2, t * s * d)
    halves = tuple(int(total.coeff_monomial(term)) // 2 for term in terms)
    n = sympy.Symbol("n", positive=True)
    attention = sympy.Add(*(report.modules[line].flops.forward for line in PRODUCTS))
    projections = sympy.Add(*(report.modules[line].flops.forward for line in PROJECTIONS))
    (crossing,) = sympy.solve((attention - projections).subs({t: n, s: n}), n)
    values |= {
        "multiply-adds per term": exact(halves),
        "FLOPs with 4 heads over 1": exact(
            int(sympy.cancel(report.flops.forward / single.flops.forward.subs(
                {single.symbols[k]: report.symbols[k] for k in report.symbols})))
        ),
        "share of projections, n = 64, d = 1024": exact(shares(report, 64, 1024)[0]),
        "share of attention, n = 4096, d = 64": exact(shares(report, 4096, 64)[1]),
        "n where both parts cost the same": exact(str(crossing)),
    }  # fmt: skip
    lines = {
        f"d = {size}": [(2**p, shares(report, 2**p, size)[1]) for p in range(3, 15)]
        for size in (64, 256, 1024)
    }
    chart = Chart("Share of scores and weighted sum in all products", "n", "share", lines, True)
    return Measurement(values, {"bottleneck": chart})


EXPERIMENT = Experiment(
    "complexity", "What does each line of multi-head attention cost, and which one dominates?",
    CLAIMS, measure,
)  # fmt: skip
