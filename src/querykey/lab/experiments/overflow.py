"""Raw exponentials of unscaled scores (document 000): how soon they leave the range of floats.

The text draws its weights from a standard normal, so that scores have a standard deviation of
d^1.5, and takes exp of them as they are. Plain NumPy does the same here.
"""

from __future__ import annotations

import numpy as np

from querykey.lab.claim import Claim, Equal
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Measurement, exact, sampled

SAMPLES = 5
SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
SEQUENCES = (4, 32)
RIGHT = (
    "Subtracting the largest score first, which changes nothing in exact arithmetic, keeps every "
    "exponential at 1 or less; `querykey.ag` computes the same text without overflow."
)

CLAIMS = (
    Claim("A5", "the code's exponentials are finite at d = 3, C = 4: a share of {value} of draws "
          "overflows in float32", 0, of="share that overflows, d = 3, C = 4, float32",
          within=Equal(0.01)),
    Claim("A5", "they are finite at d = 16, C = 32, too: a share of {value} of draws overflows in "
          "float32", 0,
          of="share that overflows, d = 16, C = 32, float32", within=Equal(0.01), right=RIGHT),
    Claim("A5", "in float64 they are finite at d = 16, C = 32: a share of {value} of draws "
          "overflows", 0,
          of="share that overflows, d = 16, C = 32, float64", within=Equal(0.05)),
    Claim("A5", "in float64 they are finite at d = 64, C = 32, too: a share of {value} of draws "
          "overflows", 0,
          of="share that overflows, d = 64, C = 32, float64", within=Equal(0.01), right=RIGHT),
)  # fmt: skip


def overflows(rng: np.random.Generator, d: int, context: int, dtype: str) -> bool:
    """Return whether some exponential, or a sum of them, is infinite in one draw of everything."""
    X = rng.standard_normal((SAMPLES, context, d)).astype(dtype)
    Wq, Wk = rng.standard_normal((2, d, d)).astype(dtype)
    with np.errstate(over="ignore"):
        powers = np.exp((X @ Wk) @ (X @ Wq).swapaxes(1, 2))
        return not np.isfinite(powers.sum(1)).all()


def share(seed: int, d: int, context: int, dtype: str, draws: int) -> float:
    """Return the share of draws that overflow."""
    rng = np.random.default_rng([seed, d, context])
    return float(np.mean([overflows(rng, d, context, dtype) for _ in range(draws)]))


def measure(depth: Depth) -> Measurement:
    """Draw weights and inputs of every size, in both precisions."""
    draws = depth.pick(quick=10, full=100)
    seeds = [*depth.seeds(quick=4, full=10)]
    values, lines = {}, {}
    for dtype in ("float32", "float64"):
        for context in SEQUENCES:
            depth.tell(f"{dtype}, C = {context}")
            shares = {d: [share(s, d, context, dtype, draws) for s in seeds] for d in SIZES}
            name = f"C = {context}, {dtype}"
            lines[name] = [(d, float(np.mean(row))) for d, row in shares.items()]
            half = [d for d, row in shares.items() if np.mean(row) >= 0.5]
            values[f"smallest d where half of the draws overflow, {name}"] = exact(min(half))
            values |= {
                f"share that overflows, d = {d}, {name}": sampled(row) for d, row in shares.items()
            }
    chart = Chart("Draws in which exp overflows", "d", "share", lines)
    return Measurement(values, {"overflow": chart})


EXPERIMENT = Experiment(
    "overflow", "How large may d be before the first document's exponentials overflow?",
    CLAIMS, measure,
)  # fmt: skip
