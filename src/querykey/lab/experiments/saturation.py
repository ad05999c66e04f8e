"""Why scores are divided by sqrt(d): their variance, and what large scores do to softmax.

Rows B1, B2 (document 001, 1 a), D3 (document 003, 12.4) and E5 (document 004, 3). Scores are dot
products of random queries and keys. Unscaled, they grow with d, softmax puts nearly all weight on
one key, and its derivative vanishes: for most draws, though never for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from querykey.attention import Softmax, weights
from querykey.lab.claim import AtLeast, AtMost, Claim, Equal, Near
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Grid, Measured, Measurement, exact, sampled

SIZES = (4, 16, 64, 256, 1024, 4096)
KEYS = 8  # that a query chooses among
EPSILON = 0.01
Z = (-3.0, 1.0, 100.0, 5.0, -1.0)  # document 003, 12.4
Array = np.ndarray

CLAIMS = (
    Claim("B1", "E[s] = {value} for i.i.d. entries of mean 0 and variance 1", 0,
          of="mean of s / sqrt(d)", within=Equal(0.02)),
    Claim("B1", "Var[s] grows as d^{value}", 1, of="exponent of Var[s] in d", within=Equal(0.05)),
    Claim("B1", "Var[s] / d = {value}", 1, of="Var[s] / d", within=Near(0.05)),
    Claim("B1", "divided by sqrt(d), scores have variance {value} at every d", 1,
          of="variance of scores divided by sqrt(d)", within=Near(0.05)),
    Claim("B1", "s_i is the sum over j of q_i k_ij, as printed: it differs from q.k_i by {value}, "
          "over its standard deviation", 0, of="printed sum less q.k_i, root mean square",
          within=Equal(0.01),
          right="q_j is meant. As printed, one entry of q multiplies a whole key; mean and "
          "variance are the same, the score is another."),
    Claim("B2", "softmax's Jacobian is diag(a) - a a^T, to {value}", 0,
          of="Jacobian less diag(a) - a a^T", within=Equal(1e-12)),
    Claim("B2", "the Jacobian's Frobenius norm is below n * eps where a_max > 1 - eps: their ratio "
          "is at most {value}", 1, of="largest ratio of the norm to n * eps", within=AtMost()),
    Claim("B2", "a large enough d makes a_max > 1 - eps: 1 - a_max is at most {value}, typically",
          EPSILON, of="median of 1 - a_max at the largest d", within=AtMost()),
    Claim("B2", "a large enough d makes a_max > 0.99: the share of draws where it is not is "
          "{value}", 0, of="share of draws with a_max below 0.99 at the largest d",
          right="Two keys can have nearly equal scores at any d: the share falls as 1/sqrt(d) "
          "only, so the statement holds in probability."),
    Claim("B2", "with growing d the Jacobian's norm becomes small: for every draw it is below n * "
          "eps = {value}",
          KEYS * EPSILON, of="largest norm at the largest d", within=AtMost(),
          right="Its median vanishes faster than any power of d; its mean, which the few draws "
          "with near ties make up, falls as 1/sqrt(d), and its largest value does not fall."),
    Claim("B2", "not dividing by sqrt(d) is the cause: divided, the median norm at the largest d "
          "is {value} times that at the smallest", 1,
          of="median norm with scaling, largest d over smallest", within=Near(0.1)),
    Claim("D3", "all 25 derivatives are very close to zero, at most {value}", 1e-6,
          of="largest derivative", within=AtMost()),
    Claim("D3", "equations 13 and 14 give {value} numbers for the 25 derivatives in float32", 25,
          of="finite derivatives by raw exponentials in float32",
          right="exp(100) is beyond float32, and inf / inf is no number; the largest z has to be "
          "subtracted first."),
    Claim("D3", "softmax is very sensitive here: when one z changes by 1, some output changes by "
          "{value} or more", 0.1, of="largest change of an output when one z moves by 1",
          within=AtLeast(),
          right="Derivatives near zero mean the opposite: the outputs hardly move at all."),
    Claim("D3", "small changes in the input lead to large ones: when one z changes by 90, some "
          "output changes by {value} or more", 0.1,
          of="largest change of an output when one z moves by 90", within=AtLeast(),
          right="The runner-up is 95 below; even 90 leaves 5 between them."),
    Claim("E5", "E[q.k] = {value} times ||mu||^2", 1, of="E[q.k] / ||mu||^2", within=Near(0.02)),
    Claim("E5", "Var[q.k] = {value} times (2 sigma^2 ||mu||^2 + d sigma^4)", 1,
          of="Var[q.k] / (2 sigma^2 ||mu||^2 + d sigma^4)", within=Near(0.05)),
    Claim("E5", "Var[q.k] = d (part b): it grows as d^{value}", 1, of="exponent of Var[s] in d",
          within=Equal(0.05)),
    Claim("E5", "Var[q.k] = d^2 (part c): it grows as d^{value}", 2, of="exponent of Var[s] in d",
          within=Equal(0.05), right="Part b of the same text has it right: Var[q.k] = d."),
    Claim("E5", "s = sqrt(d): dividing by d^{value} gives variance 1", 0.5,
          of="power of d that gives variance 1", within=Equal(0.025)),
)  # fmt: skip


def unit_entries(rng: np.random.Generator, shape: tuple[int, ...], kind: int) -> Array:
    """Return i.i.d. numbers of mean 0 and variance 1: normal, uniform, or signs."""
    if kind % 3 == 0:
        return rng.standard_normal(shape)
    if kind % 3 == 1:
        return rng.uniform(-(3**0.5), 3**0.5, shape)
    return rng.choice([-1.0, 1.0], shape)


def scores_by_size(seed: int, sizes: tuple[int, ...], draws: int) -> dict[int, Array]:
    """Return q.k of `draws` queries and KEYS keys of each, for every d; the seed sets the kind."""
    rng = np.random.default_rng(seed)
    scores = {}
    for d in sizes:
        rows = [
            np.einsum("rd,rkd->rk", unit_entries(rng, (n, d), seed),
                      unit_entries(rng, (n, KEYS, d), seed))
            for n in _pieces(draws, 2_000_000 // (d * KEYS))
        ]  # fmt: skip
        scores[d] = np.concatenate(rows)
    return scores


def _pieces(total: int, most: int) -> list[int]:
    """Return how many rows to draw at a time, so that memory stays small."""
    return [min(most, total - start) for start in range(0, total, max(most, 1))]


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent of y in x: the slope of the line through both logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def softmax_of(scores: Array) -> Array:
    """Return softmax weights of rows of scores: a score is the product with a unit vector."""
    return weights(scores, np.eye(scores.shape[-1]), mechanism=Softmax(scale=1.0))


def jacobian_norms(a: Array) -> Array:
    """Return the Frobenius norm of diag(a) - a a^T for every row of weights."""
    square = a**2
    diagonal = (square * (1 - a) ** 2).sum(-1)
    return np.sqrt(diagonal + square.sum(-1) ** 2 - (square**2).sum(-1))


def derivatives(z: torch.Tensor) -> torch.Tensor:
    """Return every derivative of softmax at z, by automatic differentiation."""
    eye = torch.eye(len(z), dtype=z.dtype)
    return torch.func.jacrev(lambda s: weights(s[None], eye, mechanism=Softmax(scale=1.0))[0])(z)


def variances(samples: list[dict[int, Array]]) -> dict[str, Measured]:
    """Return the moments of the scores, one number per seed."""
    slopes = [slope([*s], [v.var() for v in s.values()]) for s in samples]
    last = max(samples[0])
    return {
        "mean of s / sqrt(d)": sampled(s[last].mean() / last**0.5 for s in samples),
        "exponent of Var[s] in d": sampled(slopes),
        "power of d that gives variance 1": sampled(value / 2 for value in slopes),
        "Var[s] / d": sampled(s[last].var() / last for s in samples),
        "variance of scores divided by sqrt(d)": sampled(
            np.mean([(v / d**0.5).var() for d, v in s.items()]) for s in samples
        ),
    }


def jacobians(samples: list[dict[int, Array]]) -> tuple[dict[str, Measured], Chart]:
    """Return how the softmax's weights and its Jacobian change with d, and the chart of it."""
    sizes, last = [*samples[0]], max(samples[0])
    a = {d: softmax_of(np.concatenate([s[d] for s in samples])) for d in sizes}
    scaled = [
        [np.median(jacobian_norms(softmax_of(s[d] / d**0.5))) for d in sizes] for s in samples
    ]
    norms = {d: jacobian_norms(a[d]) for d in sizes}
    means = [[jacobian_norms(softmax_of(s[d])).mean() for d in sizes] for s in samples]
    by_seed = [softmax_of(s[last]).max(-1) for s in samples]
    bound = max((norms[d] / (KEYS * (1 - a[d].max(-1)) + 1e-300)).max() for d in sizes)
    z = torch.randn(KEYS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight = torch.softmax(z, -1)
    error = (derivatives(z) - (torch.diag(weight) - torch.outer(weight, weight))).abs().max()
    lines = {
        "largest, unscaled": [(d, norms[d].max()) for d in sizes],
        "mean, unscaled": [(d, norms[d].mean()) for d in sizes],
        "median, unscaled": [(d, float(np.median(norms[d]))) for d in sizes],
        "median, scaled": [(d, row) for d, row in zip(sizes, np.mean(scaled, 0), strict=True)],
    }
    values = {
        "Jacobian less diag(a) - a a^T": exact(float(error)),
        "largest ratio of the norm to n * eps": exact(float(bound)),
        "median of 1 - a_max at the largest d": sampled(np.median(1 - m) for m in by_seed),
        "mean of 1 - a_max at the largest d": sampled((1 - m).mean() for m in by_seed),
        "largest 1 - a_max at the largest d": exact(max(float((1 - m).max()) for m in by_seed)),
        "share of draws with a_max below 0.99 at the largest d": sampled(
            (m < 1 - EPSILON).mean() for m in by_seed
        ),
        "exponent in d of the mean norm": sampled(slope(sizes[2:], row[2:]) for row in means),
        "largest norm at the largest d": exact(float(norms[last].max())),
        "median norm with scaling, largest d over smallest": sampled(
            row[-1] / row[0] for row in scaled
        ),
    }
    return values, Chart("Norm of softmax's Jacobian", "d", "Frobenius norm", _plain(lines), True)


def sensitivity() -> tuple[dict[str, Measured], Grid]:
    """Return the 25 derivatives of document 003, and what changing one z does."""
    z = torch.tensor(Z, dtype=torch.float64)
    exponentials = z.float().exp()
    raw = exponentials / exponentials.sum()
    table = torch.diag(raw) - torch.outer(raw, raw)
    values = {
        "largest derivative": exact(float(derivatives(z).abs().max())),
        "finite derivatives by raw exponentials in float32": exact(int(table.isfinite().sum())),
    }
    for step in (1, 90):
        moved = [z + sign * step * row for row in torch.eye(5, dtype=z.dtype) for sign in (1, -1)]
        change = max(
            np.abs(softmax_of(m.numpy()[None]) - softmax_of(z.numpy()[None])).max() for m in moved
        )
        values[f"largest change of an output when one z moves by {step}"] = exact(float(change))
    names = [f"z = {number:g}" for number in Z]
    grid = Grid("The 25 derivatives of softmax", derivatives(z).tolist(), names, names)
    return values, grid


def as_printed(seed: int, d: int = 64) -> float:
    """Return how far document 001's sum of q_i k_ij is from q.k_i, in standard deviations."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((5000, d)), rng.standard_normal((5000, KEYS, d))
    printed = q[:, :KEYS] * k.sum(-1)
    return float(np.sqrt(np.square(printed - np.einsum("rd,rkd->rk", q, k)).mean() / d))


def shifted(seed: int, draws: int) -> tuple[float, float, float]:
    """Return E[q.k] and Var[q.k] over what document 004 says, and the Var it says.

    It is for a random mu, sigma and d.
    """
    rng = np.random.default_rng(seed)
    d, sigma = int(rng.integers(3, 40)), float(rng.uniform(0.5, 2))
    mu = rng.normal(0, 2, d)
    q, k = mu + sigma * rng.standard_normal((2, draws, d))
    dots = (q * k).sum(-1)
    square = float(mu @ mu)
    says = 2 * sigma**2 * square + d * sigma**4
    return dots.mean() / square, dots.var() / says, says


def measure(depth: Depth) -> Measurement:
    """Draw queries and keys of every size, and look at their scores and at softmax of these."""
    sizes, draws = depth.pick(quick=(SIZES[:-1], 500), full=(SIZES, 4_000))
    samples = [scores_by_size(seed, sizes, draws) for seed in depth.seeds(quick=6, full=21)]
    moments = [shifted(seed, depth.pick(quick=40_000, full=400_000)) for seed in range(10)]
    values, norms = jacobians(samples)
    derived, grid = sensitivity()
    variance = {
        "unscaled": [(d, np.mean([s[d].var() for s in samples])) for d in sizes],
        "divided by sqrt(d)": [(d, np.mean([s[d].var() / d for s in samples])) for d in sizes],
    }
    values |= variances(samples) | derived
    values["E[q.k] / ||mu||^2"] = sampled(mean for mean, _, _ in moments)
    values["Var[q.k] / (2 sigma^2 ||mu||^2 + d sigma^4)"] = sampled(var for _, var, _ in moments)
    values["printed sum less q.k_i, root mean square"] = sampled(map(as_printed, range(10)))
    ends = [min(says for *_, says in moments), max(says for *_, says in moments)]
    shifted_variance = {
        "2 sigma^2 |mu|^2 + d sigma^4": [(end, end) for end in ends],
        "measured": [(says, share * says) for _, share, says in moments],
    }
    return Measurement(
        values,
        {
            "variance": Chart("Variance of q.k", "d", "variance", _plain(variance), True),
            "shifted": Chart("Variance of q.k with means mu: ten choices of d, mu and sigma",
                             "variance by the formula", "variance", _plain(shifted_variance), True,
                             ("measured",)),
            "jacobian": norms,
            "derivatives": grid,
        },
    )  # fmt: skip


def _plain(lines: dict[str, list]) -> dict[str, list[tuple[float, float]]]:
    """Return the points of lines as Python's numbers."""
    return {name: [(float(x), float(y)) for x, y in line] for name, line in lines.items()}


EXPERIMENT = Experiment(
    "saturation", "How large are scores, and what do large ones do to softmax and its derivative?",
    CLAIMS, measure,
)  # fmt: skip
