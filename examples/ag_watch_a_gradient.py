"""Watch one gradient pass through attention: a label on any value keeps what reaches it.

python examples/ag_watch_a_gradient.py
"""

import numpy as np

import querykey.ag as ag
from querykey.ag import nn


def main():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((5, 4, 3)), np.array([0, 1, 0, 1, 1])
    Wq, Wk, Wv = (ag.Tensor(rng.standard_normal((3, 3)), label=f"W{c}") for c in "qkv")

    scores = (X @ Wk) @ ag.moveaxis(X @ Wq, 1, 2)
    scores.label = "scores"
    weights = ag.softmax(scores, axis=1)
    out = ag.moveaxis(ag.moveaxis(X, 1, 2) @ weights, 1, 2) @ Wv
    loss = nn.BinaryCrossEntropyLoss()(out[:, 3, 0], y)
    loss.backward()

    i = np.abs(scores.grad).max(axis=(1, 2)).argmax()  # the sample that has most to learn
    print("the loss reads token 3, so only the scores of query 3 (the last column) matter:")
    print(scores.grad[i].round(4))
    print("a softmax ignores what all its scores share: every column's gradient sums to zero:")
    print(scores.grad[i].sum(axis=0).round(12) + 0.0)
    print("the loss reads feature 0, so only the first column of Wv matters:")
    print(Wv.grad.round(4))

    def by_hand(wv):
        again = ag.moveaxis(ag.moveaxis(X, 1, 2) @ weights.data, 1, 2) @ wv
        return nn.BinaryCrossEntropyLoss()(again[:, 3, 0], y)

    print(f"finite differences agree within {ag.gradcheck(by_hand, Wv):.1e}")
    return scores.grad, Wv.grad


if __name__ == "__main__":
    main()
