"""Self-attention and permutations (document 003, 12.3): every equation of the proof, in numbers.

X is D x N, so that X P permutes the columns, which are the tokens. Each equation is computed as the
text prints it, for every permutation of a few tokens and for random weights; its error is the
largest difference of both sides over the size of the left one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np

from querykey.attention import FULL, Causal, Softmax, sinusoids, softmax
from querykey.backends import attend
from querykey.lab.claim import AtLeast, Claim, Equal
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Grid, Measurement, exact

TOKENS, WIDTH = 4, 6
Array = np.ndarray
NEVER = Equal(1e-12)

CLAIMS = (
    Claim("D2", "(8) K[XP] = K[X]P: the error is {value}", 0, of="error of (8)", within=NEVER),
    Claim("D2", "(9) V[XP] = V[X]P: the error is {value}", 0, of="error of (9)", within=NEVER),
    Claim("D2", "(10) Q[XP] = Q[X]P: the error is {value}", 0, of="error of (10)", within=NEVER),
    Claim("D2", "(8) to (10) are of rows that are permuted: the error is {value}", 0,
          of="error of (8) with rows permuted", within=NEVER,
          right="The tokens are the columns of X; permuting its rows permutes features."),
    Claim("D2", "(11) Sa[XP] = VP Softmax[(KP)^T QP]: the error is {value}", 0, of="error of (11)",
          within=NEVER),
    Claim("D2", "(11) as printed, without brackets: K P^T Q P is {value}", "N x N",
          of="K P^T Q P",
          right="D x N times N x N times D x N: the sizes fit for D = N alone. (KP)^T is meant."),
    Claim("D2", "(12) Sa[XP] = VP Softmax[K^T Q]: the error is {value}", 0, of="error of (12)",
          within=NEVER,
          right="(KP)^T QP is P^T K^T Q P. Softmax keeps the permutations outside, VP P^T "
          "Softmax[K^T Q] P, and P P^T = I leaves V Softmax[K^T Q] P."),
    Claim("D2", "VP Softmax[K^T Q] = Sa[X]P: the error is {value}", 0, of="error of (12) = Sa[X]P",
          within=NEVER, right="It is Sa[X] only for the permutation that changes nothing."),
    Claim("D2", "the corrected step, VP P^T Softmax[K^T Q] P: the error is {value}", 0,
          of="error of the corrected (12)", within=NEVER),
    Claim("D2", "Sa[XP] = Sa[X]P for every permutation: the error is {value}", 0,
          of="error of the conclusion", within=NEVER),
    Claim("D2", "with positions added to the tokens Sa[XP] = Sa[X]P still holds: the error is "
          "{value}", 0,
          of="error of the conclusion with positions", within=NEVER,
          right="Positions are there to break it: the same token elsewhere is another input."),
    Claim("D2", "a causal mask breaks Sa[XP] = Sa[X]P, too: the error is {value} or more", 0.01,
          of="error of the conclusion under a causal mask", within=AtLeast()),
)  # fmt: skip


def columns(scores: Array) -> Array:
    """Return softmax over each column, as the text's Softmax[K^T Q] is meant."""
    return softmax(scores.T, np.ones_like(scores, dtype=bool)).T


class SelfAttention:
    """Document 003's queries, keys, values and self-attention, with random weights."""

    def __init__(self, seed: int, positions: bool = False, causal: bool = False):
        rng = np.random.default_rng(seed)
        self.omega, self.beta = rng.standard_normal((3, WIDTH, WIDTH)), rng.normal(size=(3, WIDTH))
        self.added = (
            3 * sinusoids(np.arange(TOKENS), WIDTH).T if positions else np.zeros((WIDTH, TOKENS))
        )
        self.mask = Causal() if causal else FULL

    def map(self, part: int, X: Array) -> Array:
        """Return beta 1^T + Omega X of queries (0), keys (1) or values (2)."""
        return self.beta[part][:, None] + self.omega[part] @ X

    def Sa(self, X: Array) -> Array:  # noqa: N802 - as in the text
        """Return self-attention by the library, whose tokens are rows."""
        q, k, v = (self.map(part, X + self.added).T for part in range(3))
        return attend(q, k, v, mechanism=Softmax(scale=1.0), mask=self.mask).T


def equations(seed: int) -> dict[str, Callable[[Array, Array], tuple[Array, Array]]]:
    """Return both sides of every equation as functions of X and P, by the equation's name."""
    layer, placed = SelfAttention(seed), SelfAttention(seed, positions=True)
    causal = SelfAttention(seed, causal=True)

    def Q(X: Array) -> Array:  # noqa: N802
        return layer.map(0, X)

    def K(X: Array) -> Array:  # noqa: N802
        return layer.map(1, X)

    def V(X: Array) -> Array:  # noqa: N802
        return layer.map(2, X)

    def half(X: Array, P: Array) -> Array:
        return V(X) @ P @ columns(K(X).T @ Q(X))

    return {
        "(8)": lambda X, P: (K(X @ P), K(X) @ P),
        "(9)": lambda X, P: (V(X @ P), V(X) @ P),
        "(10)": lambda X, P: (Q(X @ P), Q(X) @ P),
        "(8) with rows permuted": lambda X, P: (K(_large(P) @ X), _large(P) @ K(X)),
        "(11)": lambda X, P: (layer.Sa(X @ P), V(X) @ P @ columns((K(X) @ P).T @ Q(X) @ P)),
        "(12)": lambda X, P: (layer.Sa(X @ P), half(X, P)),
        "(12) = Sa[X]P": lambda X, P: (layer.Sa(X) @ P, half(X, P)),
        "the corrected (12)": lambda X, P: (
            layer.Sa(X @ P), V(X) @ P @ P.T @ columns(K(X).T @ Q(X)) @ P,
        ),
        "the conclusion": lambda X, P: (layer.Sa(X @ P), layer.Sa(X) @ P),
        "the conclusion with positions": lambda X, P: (placed.Sa(X @ P), placed.Sa(X) @ P),
        "the conclusion under a causal mask": lambda X, P: (causal.Sa(X @ P), causal.Sa(X) @ P),
    }  # fmt: skip


def _large(P: Array) -> Array:
    """Return a permutation of WIDTH rows: that of P for the first ones."""
    whole = np.eye(WIDTH)
    whole[:TOKENS, :TOKENS] = P
    return whole


def without_brackets() -> str:
    """Return what K P^T Q P is for keys and queries of D x N."""
    layer, P = SelfAttention(0), np.eye(TOKENS)
    X = np.ones((WIDTH, TOKENS))
    try:
        product = layer.map(1, X) @ P.T @ layer.map(0, X) @ P
    except ValueError:
        return "no product: its sizes do not fit"
    return "N x N" if product.shape == P.shape else str(product.shape)


def measure(depth: Depth) -> Measurement:
    """Compute both sides of every equation for all permutations and several weights."""
    errors: dict[str, dict[tuple[int, ...], float]] = {}
    orders = [*permutations(range(TOKENS))]
    for seed in depth.seeds(quick=3, full=50):
        X = np.random.default_rng([seed, 1]).standard_normal((WIDTH, TOKENS))
        for name, sides in equations(seed).items():
            worst = errors.setdefault(name, dict.fromkeys(orders, 0.0))
            for order in orders:
                left, right = sides(X, np.eye(TOKENS)[:, list(order)])
                error = float(np.abs(left - right).max() / np.abs(left).max())
                worst[order] = max(worst[order], error)
    return Measurement(
        {f"error of {name}": exact(max(worst.values())) for name, worst in errors.items()}
        | {"K P^T Q P": exact(without_brackets())},
        {
            "errors": Grid(
                "Largest error of every equation (down) for each of the 24 permutations",
                [[*worst.values()] for worst in errors.values()],
                [*errors],
            )
        },
    )


EXPERIMENT = Experiment(
    "equivariance", "What does a permutation of the tokens do to self-attention, step by step?",
    CLAIMS, measure,
)  # fmt: skip
