"""Attention as loops over Python floats: what every implementation is held against.

Nothing is imported but `math`. Arrays are nested lists, a rule is a function of two positions.
A head is computed by itself, and of it a query by itself, in the order of the documents' equations.
"""

import math


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def softmax_weights(scores):
    """Scores of the visible keys (None for hidden ones) to weights."""
    visible = [s for s in scores if s is not None]
    if not visible:
        return [0.0 for _ in scores]
    top = max(visible)
    powers = [0.0 if s is None else math.exp(s - top) for s in scores]
    total = math.fsum(powers)
    return [p / total for p in powers]


def argmax_weights(scores):
    best = None
    for j, s in enumerate(scores):
        if s is not None and (best is None or s > scores[best]):
            best = j
    return [1.0 if j == best else 0.0 for j in range(len(scores))]


def share_weights(similarities):
    total = math.fsum(s for s in similarities if s is not None)
    if total == 0:
        return [0.0 for _ in similarities]
    return [0.0 if s is None else s / total for s in similarities]


def elu_plus_one(x):
    return [e + 1 if e > 0 else math.exp(e) for e in x]


def exp_taylor(x, order):
    return math.fsum(x**m / math.factorial(m) for m in range(order + 1))


def positive_features(x, directions):
    """exp(w.x - |x|^2/2) / sqrt(count) for every direction w."""
    half = dot(x, x) / 2
    return [math.exp(dot(w, x) - half) / math.sqrt(len(directions)) for w in directions]


def head_weights(q, k, score, normalise, sees):
    """Weights of one head: `score(q_i, k_j, i, j)`, a way to normalise, and who sees whom."""
    rows = []
    for i, q_i in enumerate(q):
        row = [score(q_i, k_j, i, j) if sees(i, j) else None for j, k_j in enumerate(k)]
        rows.append(normalise(row))
    return rows


def head_output(weights, v, width):
    """Sums over keys of weight times value; a hidden value is never touched."""
    out = []
    for row in weights:
        out.append(
            [
                math.fsum(w * v_j[m] for w, v_j in zip(row, v, strict=True) if w)
                for m in range(width)
            ]
        )
    return out


def serving_head(h, heads, kv_heads):
    """Query heads in order, an equal share of them for each key head."""
    return [g for g in range(kv_heads) for _ in range(heads // kv_heads)][h]


def decay_factor(decay, real, query, key):
    """exp of the decays of one head at the positions after `key` up to `query`, real ones alone."""
    return math.exp(math.fsum(decay[t] for t in range(key + 1, query + 1) if real[t]))
