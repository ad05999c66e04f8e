"""Parallel time of attention: the longest chain of operations (document 002, 1 a and b).

`qk.cost` counts it: a sum of n terms takes ceil(log2 n) steps as a tree and n where it is serial.
The layer is the six equations of document 002 as torch code, so that all sizes stay symbols.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from querykey.costs import CostReport, array, cost
from querykey.lab.claim import Claim
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Measurement, exact

FEATURES = ("J", "U", "I")  # sums over these are inner products
BELOW = {"U": "<= J", "I": "<= J"}
SIZES = {"J": 512, "K": 8, "U": 64, "I": 64}

CLAIMS = (
    Claim("C2", "the softmax of one head and position takes {value}", "O(log T + log U)",
          of="softmax"),
    Claim("C2", "in practice inner products are serial: then it takes {value}", "O(U + log T)",
          of="softmax, inner products serial"),
    Claim("C2", "the layer takes {value}, for U and I are below J", "O(log T + log J)",
          of="layer, U and I below J"),
    Claim("C2", "with serial inner products the layer takes {value}", "O(J + log T)",
          of="layer, inner products serial"),
    Claim("C2", "first the scores, then Z: the number of reductions over T in a softmax is {value}",
          1, of="log2 T in the softmax",
          right="It is 2: the largest score is sought before Z, or exp overflows. With the sum "
          "over values the layer has 3 log2 T; the order is the same."),
    Claim("C2", "with every sum serial the softmax takes {value}", "O(U + T)",
          of="softmax, all serial"),
    Claim("C2", "with every sum serial the layer takes {value}", "O(J + T)",
          of="layer, all serial"),
    Claim("C2", "K is not in the layer's time: 64 heads in place of 1 take {value} more steps", 0,
          of="steps that 64 heads add"),
)  # fmt: skip


class SoftmaxOfHead(nn.Module):
    """alpha[t1, t2] = softmax over t2 of Query[t1, U] Key[t2, U]."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Return alpha of one head."""
        return (query @ key.mT).softmax(-1)


class SixEquations(nn.Module):
    """The six equations of document 002; the weights come in, so that their sizes are symbols."""

    def forward(self, h_in: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
        """Return h_out[T, J] of h_in[T, J]."""
        query, key, value = (h_in @ w.mT for w in (w_q, w_k, w_v))  # [K, T, U or I]
        out = (query @ key.mT).softmax(-1) @ value
        return out.transpose(0, 1).flatten(1)


def softmax_cost() -> CostReport:
    """Return the cost of the weights of one head."""
    return cost(SoftmaxOfHead(), (array("T", "U"), array("T", "U")), backward=False)


def layer_cost() -> CostReport:
    """Return the cost of the layer."""
    weights = (array("K", "U", "J"), array("K", "U", "J"), array("K", "I", "J"))
    return cost(SixEquations(), (array("T", "J"), *weights), backward=False)


def order(
    report: CostReport, serial: tuple[str, ...] = (), given: dict[str, str] | None = None
) -> str:
    """Return the order of a time, its conditions left out."""
    return str(report.order("span", given=given, serial=serial)).split(" where")[0]


def steps(report: CostReport, sizes: dict[str, int], serial: tuple[str, ...] = ()) -> int:
    """Return the length of the longest chain at some sizes."""
    return int(report.at(**sizes).span_with(serial))


def measure(depth: Depth) -> Measurement:
    """Derive the orders of both times, and count steps over the number of tokens."""
    depth.tell("formulas")
    softmax, layer = softmax_cost(), layer_cost()
    doublings = steps(softmax, {"T": 2**20, "U": 64}) - steps(softmax, {"T": 2**10, "U": 64})
    heads = [steps(layer, SIZES | {"T": 64, "K": count}) for count in (1, 64)]
    values: dict[str, Any] = {
        "softmax": order(softmax),
        "softmax, inner products serial": order(softmax, ("U",)),
        "softmax, all serial": order(softmax, ("U", "T")),
        "layer, U and I below J": order(layer, given=BELOW),
        "layer, inner products serial": order(layer, FEATURES, BELOW),
        "layer, all serial": order(layer, (*FEATURES, "T"), BELOW),
        "log2 T in the softmax": doublings // 10,
        "steps that 64 heads add": heads[1] - heads[0],
        "formula of the softmax": str(softmax.span),
        "formula of the layer": str(layer.span),
    }
    tokens = [2**power for power in range(4, 15)]
    ways = {"sums as trees": (), "inner products serial": FEATURES, "all serial": (*FEATURES, "T")}
    lines = {
        way: [(count, steps(layer, SIZES | {"T": count}, serial)) for count in tokens]
        for way, serial in ways.items()
    }
    title = "Parallel time of a layer with J = 512, U = I = 64"
    return Measurement(
        {name: exact(value) for name, value in values.items()},
        {"steps": Chart(title, "tokens T", "steps", lines, log=True)},
    )


EXPERIMENT = Experiment(
    "span", "How long does attention take where everything that can be is done at once?",
    CLAIMS, measure,
)  # fmt: skip
