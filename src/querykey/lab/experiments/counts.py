"""How many numbers self-attention holds, and how many a dense layer would (document 003, 12.1)."""

from __future__ import annotations

import sympy
import torch
from torch import nn

from querykey.attention import weights
from querykey.costs import array, cost
from querykey.lab.claim import Claim
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Measurement, exact
from querykey.nn import AttentionConfig, MultiHeadAttention

CLAIMS = (
    Claim("D1", "queries, keys and values take {value} weights", "3*D**2",
          of="weights of queries, keys and values"),
    Claim("D1", "queries, keys and values take {value} biases",
          "3", of="biases of queries, keys and values",
          right="Each of the three bias vectors has D entries, as the text's own equations say: "
          "3 D numbers."),
    Claim("D1", "there are {value} attention weights", "N**2", of="attention weights"),
    Claim("D1", "a fully connected layer takes {value} weights", "D**2*N**2",
          of="weights when fully connected"),
    Claim("D1", "a fully connected layer takes {value} biases", "N**2",
          of="biases when fully connected", right="One bias for each of the D N outputs."),
)  # fmt: skip
SIZES = {"N": 12, "D": 5}  # where attention weights are counted, and the fit is tried again


def self_attention(D: int) -> nn.Module:
    """Return one head with queries, keys and values of the input's size, and nothing else."""
    return MultiHeadAttention(D, AttentionConfig(1, output=False))


def dense(DN: int) -> nn.Module:
    """Return a layer that relates every input to every output."""
    return nn.Linear(DN, DN)


def parts(total: sympy.Expr, size: sympy.Symbol) -> tuple[sympy.Expr, sympy.Expr]:
    """Return the weights, which grow with the square of a size, and the biases."""
    square = sympy.expand(total).coeff(size, 2) * size**2
    return square, sympy.expand(total - square)


def count_attention_weights() -> str:
    """Return N^2 if a matrix of weights for some N and D has that many entries."""
    x = torch.randn(SIZES["N"], SIZES["D"], generator=torch.Generator().manual_seed(0))
    entries = weights(x, x).numel()
    powers = {"N**2": SIZES["N"] ** 2, "D*N": SIZES["N"] * SIZES["D"], "D**2": SIZES["D"] ** 2}
    return next((name for name, value in powers.items() if value == entries), str(entries))


def measure(depth: Depth) -> Measurement:
    """Count the parameters of both as polynomials in their sizes."""
    depth.tell("deriving the formulas")
    attention = cost(self_attention, array("n", 7, "D"), backward=False)
    connected = cost(dense, array("n", "DN"), backward=False)
    D, N = sympy.symbols("D N")
    shared = parts(attention.params, attention.symbols["D"])
    full = [
        sympy.expand(part.subs(connected.symbols["DN"], D * N))
        for part in parts(connected.params, connected.symbols["DN"])
    ]
    curves = {
        "self-attention, D = 64": [(2**p, 3 * 64**2 + 3 * 64) for p in range(3, 11)],
        "fully connected, D = 64": [
            (2**p, int((full[0] + full[1]).subs({D: 64, N: 2**p}))) for p in range(3, 11)
        ],
    }
    return Measurement(
        {
            "weights of queries, keys and values": exact(str(shared[0])),
            "biases of queries, keys and values": exact(str(shared[1])),
            "attention weights": exact(count_attention_weights()),
            "weights when fully connected": exact(str(full[0])),
            "biases when fully connected": exact(str(full[1])),
        },
        {"counts": Chart("Numbers to learn", "tokens N", "parameters", curves, True)},
    )


EXPERIMENT = Experiment(
    "counts", "How many weights and biases does self-attention have, and how many a dense layer?",
    CLAIMS, measure,
)  # fmt: skip
