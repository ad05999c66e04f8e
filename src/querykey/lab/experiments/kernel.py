"""Kernels in place of exp(q.k): the same outputs from sums, and where the sums can be zero.

Rows D9 (document 003, 12.10), E7 and E8 (document 004, 5). A similarity that is a product of
features lets keys and values be summed once; every equation and both pseudocodes are transcribed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from querykey.attention import (
    EluPlusOne,
    FeatureMap,
    Kernel,
    Polynomial,
    Quadratic,
    Softmax,
    Taylor,
    weights,
)
from querykey.backends import attend
from querykey.costs import array, cost
from querykey.lab.claim import Claim, Equal
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Measured, Measurement, exact, sampled
from querykey.lab.sums import FormedWeights, SummedKeys

TOKENS, WIDTH, VALUES, INPUTS = 7, 5, 3, 4  # N, D, M, F
Array = np.ndarray
NEVER = Equal(1e-10)

CLAIMS = (
    Claim("D9", "with g(k).g(q) the outputs follow from sums over keys, without any weight: they "
          "differ by {value}", 0, of="error of (11), sums over keys", within=NEVER),
    Claim("D9", "the outputs are then computed at a cost that grows as N^{value}", 1,
          of="power of N by sums over keys", within=Equal(0.02)),
    Claim("D9", "the computation of the attention weights becomes more efficient: it grows as "
          "N^{value}", 1, of="power of N when weights are formed", within=Equal(0.1),
          right="The weights are N^2 numbers whatever makes them. Not to form them is what makes "
          "the outputs cheaper."),
    Claim("E7", "a similarity has to keep one sign: of draws with both signs, a share of {value} "
          "gives outputs that are not finite", 1,
          of="share of draws not finite, (q.k + 1)^3", within=Equal(0.01),
          right="Only the sum has to differ from 0; with both signs that is so in almost every "
          "case, though nothing bounds the weights."),
    Claim("E7", "one sign is enough, as no kernel is 0 then: of ours, {value} reach 0 at q = -k, "
          "|k| = 1", (), of="similarities that are 0 at q = -k",
          right="Never below 0 is not above 0: (q.k + 1)^2 is 0 where q.k = -1, and so is its sum "
          "if that holds for every key. The condition is that no similarity is 0."),
    Claim("E7", "V' remains finite: where all similarities are 0, attend returns {value}",
          "zeros", of="what attend returns where all similarities are 0"),
    Claim("E8", "the map phi has 1 + D + D(D+1)/2 = {value} entries for D = 5", 21,
          of="entries of phi, D = 5"),
    Claim("E8", "it has as many for every D: of D = 1 to 40, {value} have another number", 0,
          of="sizes with another number of entries"),
    Claim("E8", "the listed phi gives phi(q).phi(k) = (q.k + 1)^2 up to {value}", 0,
          of="error of the listed phi", within=NEVER),
    Claim("E8", "our Quadratic has the entries of that phi, in some order, up to {value}", 0,
          of="difference of our entries and the listed ones", within=NEVER),
    Claim("E8", "the average of (8) is over all other positions: of N = 7 it has {value}",
          TOKENS - 1, of="positions in an average of (8)",
          right="Its own position is one of them: the sums of (9) run over all N."),
    Claim("E8", "the kernels are functions on R^F x R^F: for F = 4, D = 5 they take queries of "
          "size {value}", INPUTS, of="size of what a kernel takes",
          right="Queries and keys are x W_Q and x W_K, of size D."),
    Claim("E8", "(7) adds A(x) to x for every size M of values: of M = 1 to 6, F = 4, {value} give "
          "N x F", 6, of="sizes M that (7) can add",
          right="A(x) is N x M: it takes M = F. (M = 1 is added by broadcasting, to every "
          "feature alike.)"),
    Claim("E8", "U[:, :] += phi(K[j, :]) @ V[j, :].T runs on NumPy's rows: it gives {value}",
          "C x M", of="what the kernel pseudocode's first line gives",
          right="A row of NumPy has one axis and .T changes nothing: np.outer is meant, as for "
          "column vectors."),
    *(
        Claim("E8", f"{name} gives what attend gives, up to {{value}}", 0, of=f"error of {name}",
              within=NEVER)
        for name in ("(8)", "(9) with exp", "(10)", "(9) with the quadratic kernel",
                     "(11), sums over keys", "the softmax pseudocode", "the kernel pseudocode")
    ),
)  # fmt: skip


def listed_phi(x: Array) -> Array:
    """Return phi(x) as the text lists it: 1, sqrt(2) x_i, x_i^2, sqrt(2) x_i x_j."""
    root, size = math.sqrt(2), len(x)
    pairs = [root * x[i] * x[j] for i in range(size) for j in range(i + 1, size)]
    return np.array([1.0, *(root * x), *(x**2), *pairs])


def general(q: Array, k: Array, v: Array, sim: Callable[[Array, Array], Any]) -> Array:
    """Return equation (9): every output is a mean of values, weighted by similarities."""
    table = np.array([[sim(a, b) for b in k] for a in q])
    return (table @ v) / table.sum(1, keepdims=True)


def equation_8(q: Array, k: Array, v: Array) -> Array:
    """Return softmax(Q K^T / sqrt(D)) V, row by row."""
    powers = np.exp(q @ k.T / math.sqrt(q.shape[1]))
    return powers / powers.sum(1, keepdims=True) @ v


def equation_11(q: Array, k: Array, v: Array) -> Array:
    """Return outputs from two sums over keys: of phi(k) v^T and of phi(k)."""
    fq, fk = (np.array([listed_phi(row) for row in x]) for x in (q, k))
    return (fq @ (fk.T @ v)) / (fq @ fk.sum(0))[:, None]


def softmax_pseudocode(Q: Array, K: Array, V: Array) -> Array:
    """Return O of the text's loops for softmax attention."""
    N, D = Q.shape
    S, A, O = np.zeros((N, N)), np.zeros((N, N)), np.zeros((N, V.shape[1]))  # noqa: E741
    for i in range(N):
        for j in range(N):
            S[i, j] = Q[i, :].T @ K[j, :] / math.sqrt(D)
    for i in range(N):
        Z = 0.0
        for j in range(N):
            Z += np.exp(S[i, j])
        for j in range(N):
            A[i, j] = np.exp(S[i, j]) / Z
    for i in range(N):
        O[i, :] = 0
        for j in range(N):
            O[i, :] += A[i, j] * V[j, :]
    return O


def kernel_pseudocode(Q: Array, K: Array, V: Array) -> Array:
    """Return O of the text's loops for kernel attention."""
    N, C = len(Q), len(listed_phi(Q[0]))
    U, Z, O = np.zeros((C, V.shape[1])), np.zeros(C), np.zeros((N, V.shape[1]))  # noqa: E741
    for j in range(N):
        U[:, :] += np.outer(listed_phi(K[j, :]), V[j, :])
    for j in range(N):
        Z[:] += listed_phi(K[j, :])
    for i in range(N):
        O[i, :] = listed_phi(Q[i, :]).T @ U[:, :]
        O[i, :] /= listed_phi(Q[i, :]).T @ Z[:]
    return O


def errors(seed: int) -> dict[str, float]:
    """Return how far every equation and pseudocode is from `attend`."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, TOKENS, WIDTH))
    v = rng.standard_normal((TOKENS, VALUES))
    softmax = attend(q, k, v, mechanism=Softmax())
    quadratic = attend(q, k, v, mechanism=Kernel(Quadratic()))
    root = math.sqrt(WIDTH)
    results = {
        "(8)": (equation_8(q, k, v), softmax),
        "(9) with exp": (general(q, k, v, lambda a, b: math.exp(a @ b / root)), softmax),
        "(10)": (general(q, k, v, lambda a, b: np.exp(a.T @ b / root)), softmax),
        "(9) with the quadratic kernel": (general(q, k, v, lambda a, b: (a @ b + 1) ** 2),
                                          quadratic),
        "(11), sums over keys": (equation_11(q, k, v), quadratic),
        "the softmax pseudocode": (softmax_pseudocode(q, k, v), softmax),
        "the kernel pseudocode": (kernel_pseudocode(q, k, v), quadratic),
    }  # fmt: skip
    found = {f"error of {n}": float(np.abs(a - b).max()) for n, (a, b) in results.items()}
    listed = np.array([listed_phi(row) for row in q])
    found["error of the listed phi"] = float(
        np.abs(listed @ listed_phi(k[0]) - (q @ k[0] + 1) ** 2).max()
    )
    found["difference of our entries and the listed ones"] = float(
        np.abs(np.sort(listed, 1) - np.sort(Quadratic()(q), 1)).max()
    )
    return found


def reaching_zero() -> dict[str, Measured]:
    """Return which similarities are 0 at q = -k, and what attend makes of a row of zeros."""
    maps: dict[str, FeatureMap] = {
        "Quadratic": Quadratic(), "Polynomial(4)": Polynomial(4), "EluPlusOne": EluPlusOne(),
        "Taylor(2)": Taylor(2),
    }  # fmt: skip
    unit = np.eye(WIDTH)[:1]
    zero = [n for n, f in maps.items() if Kernel(f).similarity(-unit, unit).item() == 0]
    keys = np.repeat(unit, 3, 0)
    out = attend(-unit, keys, np.ones((3, 2)), mechanism=Kernel(Quadratic()))
    told = "zeros" if (out == 0).all() else "numbers" if np.isfinite(out).all() else "not finite"
    return {
        "similarities that are 0 at q = -k": exact(tuple(zero)),
        "what attend returns where all similarities are 0": exact(told),
    }


def shapes() -> dict[str, Measured]:
    """Return the sizes that the text states in passing, and those that its equations have."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((TOKENS, INPUTS))
    q, k = (x @ rng.standard_normal((INPUTS, WIDTH)) for _ in range(2))

    def fits(size: int) -> bool:
        out = attend(q, k, x @ rng.standard_normal((INPUTS, size)))
        try:
            return (out + x).shape == x.shape
        except ValueError:
            return False

    try:
        added = np.zeros((Quadratic().width(WIDTH), VALUES))
        added[:, :] += listed_phi(k[0, :]) @ x[0, :VALUES].T
        first = "C x M"
    except ValueError:
        first = "an error"
    return {
        "positions in an average of (8)": exact(int((weights(q, k)[0] > 0).sum())),
        "size of what a kernel takes": exact(q.shape[1]),
        "sizes M that (7) can add": exact(sum(fits(size) for size in range(1, 7))),
        "what the kernel pseudocode's first line gives": exact(first),
    }


def share_not_finite(seed: int, draws: int) -> float:
    """Return the share of draws, similarities of both signs in each, with outputs not finite."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, draws, TOKENS, WIDTH))
    cube = Kernel(Polynomial(3, signed=True))
    similarity = cube.similarity(q, k)
    mixed = ((similarity > 0).any(-1) & (similarity < 0).any(-1)).any(-1)
    finite = np.isfinite(weights(q[mixed][:, None], k[mixed][:, None], mechanism=cube))
    return float(1 - finite.all((-1, -2, -3)).mean())


def growth(depth: Depth) -> tuple[dict[str, Measured], Chart]:
    """Return the powers of N in both ways of computing kernel attention."""
    sizes, lines, values = (2**12, 2**16), {}, {}
    for name, module in (("by sums over keys", SummedKeys()), ("when weights are formed",
                                                               FormedWeights())):  # fmt: skip
        depth.tell(f"the cost {name}")
        report = cost(module, array(1, "N", WIDTH), backward=False)
        flops = {n: int(report.at(N=n).flops.forward) for n in sizes}
        rise = math.log(flops[sizes[1]] / flops[sizes[0]]) / math.log(sizes[1] / sizes[0])
        values[f"power of N {name}"] = exact(rise)
        lines[name] = [(2**p, int(report.at(N=2**p).flops.forward)) for p in range(4, 15)]
    return values, Chart(f"FLOPs of kernel attention, D = {WIDTH}", "N", "FLOPs", lines, True)


def measure(depth: Depth) -> Measurement:
    """Transcribe, compare, look for zeros, and count."""
    found = [errors(seed) for seed in depth.seeds(quick=3, full=50)]
    values = {name: exact(max(row[name] for row in found)) for name in found[0]}
    widths = {d: Quadratic().width(d) for d in range(1, 41)}
    values["entries of phi, D = 5"] = exact(widths[5])
    values["sizes with another number of entries"] = exact(
        sum(len(listed_phi(np.ones(d))) != w or w != 1 + d + d * (d + 1) // 2
            for d, w in widths.items())
    )  # fmt: skip
    draws = depth.pick(quick=200, full=5000)
    values["share of draws not finite, (q.k + 1)^3"] = sampled(
        share_not_finite(seed, draws) for seed in range(5)
    )
    powers, chart = growth(depth)
    return Measurement(values | reaching_zero() | shapes() | powers, {"growth": chart})


EXPERIMENT = Experiment(
    "kernel", "What does a product of features do in place of exp, and when is its sum zero?",
    CLAIMS, measure,
)  # fmt: skip
