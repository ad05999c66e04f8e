"""Attention over two dimensions (document 002, 2): its six equations, and one dimension instead."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from querykey.attention import Softmax, attend_grid, join_heads
from querykey.backends import attend
from querykey.costs import array, cost
from querykey.lab.claim import Claim, Equal
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Grid, Measurement, exact

HEADS, KEY, WIDTH, X, Y = 3, 2, 12, 4, 5  # K, U, J and the grid
VALUE = WIDTH // HEADS
Array = np.ndarray

CLAIMS = (
    Claim("C3", "attention over a grid differs from the six equations, softmax over (x2, y2), by "
          "{value}", 0, of="error against the six equations", within=Equal(1e-12)),
    Claim("C3", "attention over a grid differs from attention over the flattened positions by "
          "{value}", 0,
          of="error against one dimension", within=Equal(1e-12)),
    Claim("C3", "the softmax is over both at once: weights of one (x1, y1) sum over (x2, y2) to "
          "{value}", 1, of="sum of weights over x2 and y2", within=Equal(1e-12)),
    Claim("C3", "parallel time is {value}, for U and I are below J", "O(log(X Y) + log J)",
          of="order of the span"),
)  # fmt: skip


def maps(seed: int) -> tuple[Array, Array, Array, Array]:
    """Return h_in[x, y, J] and the queries, keys and values [k, x, y, U or I] made of it."""
    rng = np.random.default_rng(seed)
    h_in = rng.standard_normal((X, Y, WIDTH))
    w_q, w_k = rng.standard_normal((2, HEADS, KEY, WIDTH))
    w_v = rng.standard_normal((HEADS, VALUE, WIDTH))
    q, k, v = (np.einsum("kuj,xyj->kxyu", w, h_in) for w in (w_q, w_k, w_v))
    return h_in, q, k, v


def equations(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Return alpha[k, x1, y1, x2, y2] and h_out[x, y, J] as document 002 writes them."""
    scores = np.einsum("kabu,kcdu->kabcd", q, k)
    powers = np.exp(scores - scores.max((3, 4), keepdims=True))
    alpha = powers / powers.sum((3, 4), keepdims=True)
    out = np.einsum("kabcd,kcdi->kabi", alpha, v)
    return alpha, np.concatenate([out[head] for head in range(HEADS)], axis=-1)


def errors(seed: int) -> tuple[float, float, float]:
    """Return the errors against the equations and one dimension, and a sum of weights."""
    _, q, k, v = maps(seed)
    alpha, h_out = equations(q, k, v)
    plain = Softmax(scale=1.0)
    grid = attend_grid(q, k, v, mechanism=plain)
    ours = np.concatenate([grid[head] for head in range(HEADS)], axis=-1)
    flat = attend(*(x.reshape(HEADS, X * Y, -1) for x in (q, k, v)), mechanism=plain)
    line = join_heads(flat).reshape(X, Y, WIDTH)
    sums = alpha.sum((3, 4))
    worst = float(sums.flat[np.abs(sums - 1).argmax()])
    return float(np.abs(ours - h_out).max()), float(np.abs(ours - line).max()), worst


class SpatialEquations(nn.Module):
    """The six equations as torch code, so that all sizes stay symbols."""

    def forward(self, h_in: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
        """Return h_out[x, y, J] of h_in[x, y, J]."""
        query, key, value = (h_in.flatten(0, 1) @ w.mT for w in (w_q, w_k, w_v))
        out = (query @ key.mT).softmax(-1) @ value
        return out.transpose(0, 1).reshape(*h_in.shape[:2], -1)


def order_of_span() -> str:
    """Return how the longest chain of operations grows, every sum a tree, for U and I below J."""
    weights = (array("K", "U", "J"), array("K", "U", "J"), array("K", "I", "J"))
    report = cost(SpatialEquations(), (array("X", "Y", "J"), *weights), backward=False)
    order = report.order("span", given={"U": "<= J", "I": "<= J"})
    return str(order).split(" where")[0]


def measure(depth: Depth) -> Measurement:
    """Compute the same grid by the equations, by `attend_grid`, and as one long sequence."""
    found = [errors(seed) for seed in depth.seeds(quick=3, full=50)]
    alpha, _ = equations(*maps(0)[1:])
    return Measurement(
        {
            "error against the six equations": exact(max(row[0] for row in found)),
            "error against one dimension": exact(max(row[1] for row in found)),
            "sum of weights over x2 and y2": exact(max((row[2] for row in found), key=abs)),
            "order of the span": exact(order_of_span()),
        },
        {
            "weights": Grid("Weights of the first position over the grid, first head",
                            alpha[0, 0, 0].tolist(), [f"x = {x}" for x in range(X)],
                            [f"y = {y}" for y in range(Y)])
        },
    )  # fmt: skip


EXPERIMENT = Experiment(
    "grid", "Is attention over two dimensions more than attention over a long line?",
    CLAIMS, measure,
)  # fmt: skip
