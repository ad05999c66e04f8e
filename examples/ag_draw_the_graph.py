"""Draw the graph of the course's block as SVG, with values and gradients in the boxes.

python examples/ag_draw_the_graph.py block.svg
"""

import sys

import numpy as np

import querykey.ag as ag
from querykey.ag import nn


def main(path="block.svg"):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((5, 4, 3)), np.array([0, 1, 0, 1, 1])
    att, mlp = nn.SingleHeadAttention(3, rng=rng), nn.MLP(3, 8, rng=rng)
    hidden = att(X)
    hidden.label = "attention(X)"
    loss = nn.BinaryCrossEntropyLoss()(mlp(hidden)[:, 3, 0], y)
    loss.label = "loss"
    loss.backward(retain_graph=True)  # keep the graph: there is something left to look at
    ag.draw(loss, values=True, gradients=True).save(path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
