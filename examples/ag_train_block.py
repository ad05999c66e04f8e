"""Train the course's transformer block on a small task, with nothing but NumPy.

The task: four random vectors, and the question whether the first and the third agree in sign in
their first feature. No single token knows; attention has to bring them together.

    python examples/ag_train_block.py [steps]
"""

import sys

import numpy as np

import querykey.ag as ag
from querykey.ag import nn


class SingleHeadAttention:
    def __init__(self, n_features, rng):
        scale = n_features**-0.5
        self.Wq = ag.Tensor(rng.standard_normal((n_features, n_features)) * scale, label="Wq")
        self.Wk = ag.Tensor(rng.standard_normal((n_features, n_features)) * scale, label="Wk")
        self.Wv = ag.Tensor(rng.standard_normal((n_features, n_features)) * scale, label="Wv")

    def __call__(self, Xin):
        Queries = Xin @ self.Wq
        Keys = Xin @ self.Wk
        expKQ = ag.exp(Keys @ ag.moveaxis(Queries, 1, 2))
        softmaxKQ = expKQ / ag.sum(expKQ, axis=1, keepdims=True)
        return ag.moveaxis(ag.moveaxis(Xin, 1, 2) @ softmaxKQ, 1, 2) @ self.Wv


def draw_batch(rng, n, marks):
    """Vectors marked with their place, and whether tokens 0 and 2 agree in sign."""
    X = rng.standard_normal((n, 4, 8))
    X[..., 4:] = marks
    return X, X[:, 0, 0] * X[:, 2, 0] > 0


def main(steps=300):
    rng = np.random.default_rng(0)
    att, mlp = SingleHeadAttention(8, rng), nn.MLP(8, 32, rng=rng)
    loss_of, adam = nn.BinaryCrossEntropyLoss(), ag.optim.Adam([att, mlp], lr=0.01)
    marks = 2 * np.eye(4)
    for step in range(1, steps + 1):
        X, y = draw_batch(rng, 128, marks)
        out = mlp(att(X))[:, 3, 0]
        loss = loss_of(out, y)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step % max(1, steps // 100) == 0 or step == steps:
            right = ((out.data > 0) == y).mean()
            bar = "#" * round(20 * step / steps)
            print(
                f"\r[{bar:<20}] step {step:4d}  loss {loss.item():.3f}  right {right:.2f}", end=""
            )
    print()
    X, y = draw_batch(rng, 2000, marks)
    right = ((mlp(att(X))[:, 3, 0].data > 0) == y).mean()
    print(f"on new data: {right:.1%} right")
    return right


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
