"""Several heads: document 002's six equations, and document 003's reason for D/H features a head.

Row C1 writes the equations of a layer whose keys are smaller than its values down, index by index,
and compares `MultiHeadAttention`. Row D4 counts weights, products and memory over the number of
heads.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from querykey.attention import Softmax
from querykey.costs import CostReport, array, cost
from querykey.lab.claim import AtLeast, AtMost, Claim, Equal, Near
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Measurement, exact
from querykey.nn import AttentionConfig, MultiHeadAttention

HEADS, KEY, WIDTH, TOKENS = 3, 2, 12, 7  # K, U, J, T of document 002
D, N = 64, 128  # of document 003's counts
COUNTS = (1, 2, 4, 8, 16)

CLAIMS = (
    Claim("C1", "MultiHeadAttention with U < J, I = J/K and no output projection differs from the "
          "six equations by {value}", 0, of="error against the six equations",
          within=Equal(1e-12)),
    Claim("C1", "the concatenated heads have J = {value} entries", WIDTH, of="size of h_out"),
    Claim("C1", "the softmax is of the plain products: with a scale of 1/sqrt(U), as in documents "
          "001 and 004, outputs differ by {value} or more", 0.001,
          of="error with a scale of 1/sqrt(U)", within=AtLeast()),
    Claim("C1", "a score is the sum over j of products of a query and a key: it has {value} terms",
          WIDTH, of="terms of a score", right="Over u: queries and keys have U entries."),
    Claim("C1", "I and U are both less than J: I is, for {value} of K = 1 to 4", 4,
          of="numbers of heads with I below J", right="With one head I = J / K is J."),
    Claim("D4", "products of scores for each head grow as H^{value}", -1,
          of="power of H in the score products of one head", within=Equal(0.01)),
    Claim("D4", "complexity per head falls from D^2 to (D/H)^2: maps of one head cost H^{value} "
          "as much", -2, of="power of H in the map products of one head", within=Equal(0.01),
          right="A head maps all D features to D/H: D * D/H, not (D/H)^2."),
    Claim("D4", "the complexity of all heads together stays: it grows as H^{value}", 0,
          of="power of H in all products", within=Equal(0.01)),
    Claim("D4", "the weights of the four maps of all heads stay the same: they grow as H^{value}",
          0, of="power of H in the weights", within=Equal(0.01)),
    Claim("D4", "H x (D/H)^2 = D^2/H: over all 4 heads, the maps of queries, of keys and of values "
          "have {value} weights each (D = 64)", D**2 // 4, of="weights of one map, 4 heads",
          right="H heads of D x D/H are D^2, whatever H; had it been D^2/H, the number would not "
          "stay the same, as the text says it does."),
    Claim("D4", "with D/H features more heads need no more memory: what is kept for backward grows "
          "by the factor {value} from 1 to 16 heads (N = 128)", 1,
          of="saved bytes with 16 heads over 1", within=Near(0.05),
          right="Every head has N^2 weights of its own: H N^2 numbers where they are stored."),
    Claim("D4", "fused attention keeps one number for each query and head in place of N: then it "
          "grows by at most the factor {value}", 1.5,
          of="saved bytes with 16 heads over 1, fused", within=AtMost()),
    Claim("D4", "keeping D features in each of 8 heads costs {value} times the products", 8,
          of="products of 8 full heads over 8 split ones", within=Near(0.01)),
)  # fmt: skip


def six_equations(layer: MultiHeadAttention, h_in: Tensor) -> np.ndarray:
    """Return h_out[T, J] by document 002's equations, one index at a time."""
    x = h_in.numpy()
    maps = [part.weight.detach().numpy().reshape(HEADS, -1, WIDTH)
            for part in (layer.q, layer.k, layer.v)]  # fmt: skip
    query, key, value = (np.einsum("kuj,tj->ktu", w, x) for w in maps)
    out = np.zeros((HEADS, TOKENS, WIDTH // HEADS))
    for k in range(HEADS):
        for t1 in range(TOKENS):
            scores = [sum(query[k, t1] * key[k, t2]) for t2 in range(TOKENS)]
            powers = np.exp(np.array(scores) - max(scores))
            alpha = powers / powers.sum()
            for t2 in range(TOKENS):
                out[k, t1] += alpha[t2] * value[k, t2]
    return np.concatenate([out[k] for k in range(HEADS)], axis=-1)


def document_layer(scale: float | None, seed: int) -> MultiHeadAttention:
    """Return the library's layer of document 002."""
    torch.manual_seed(seed)
    config = AttentionConfig(
        HEADS, key_dim=KEY, mechanism=Softmax(scale=scale), output=False, biases=()
    )
    return MultiHeadAttention(WIDTH, config).double()


def value_size(heads: int) -> int:
    """Return I, the size of a head's values, with some number of heads."""
    config = AttentionConfig(heads, key_dim=KEY, output=False, biases=())
    return MultiHeadAttention(WIDTH, config).v.out_features // heads


def difference(scale: float | None, seed: int) -> float:
    """Return the largest difference between the layer and the six equations."""
    layer = document_layer(scale, seed)
    x = torch.randn(TOKENS, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        out = layer(x[None])[0].numpy()
    return float(np.abs(out - six_equations(layer, x)).max())


def counted(heads: int, attention: str = "math", size: int | None = None) -> CostReport:
    """Return the cost of a layer of D features over N tokens with some number of heads."""
    config = AttentionConfig(heads, key_dim=size, value_dim=size, biases=())
    report = cost(MultiHeadAttention(D, config), array("n", N, D), attention=attention)
    return report.at(n=1)


def power(values: dict[int, float]) -> float:
    """Return the exponent of a value in the number of heads."""
    return float(np.polyfit(np.log([*values]), np.log([*values.values()]), 1)[0])


def measure_counts(depth: Depth) -> tuple[dict[str, float], Chart]:
    """Return what heads cost, and the chart of it."""
    reports = {}
    for heads in COUNTS:
        depth.tell(f"{heads} heads")
        reports[heads] = counted(heads)
    maps = {h: sum(int(r.modules[m].flops.forward) for m in "qkvo") for h, r in reports.items()}
    scores = {h: int(r.flops.forward) - maps[h] for h, r in reports.items()}
    saved = {h: int(r.saved_bytes) for h, r in reports.items()}
    fused = {h: int(counted(h, "flash").saved_bytes) for h in (1, 16)}
    full = int(counted(8, size=D).flops.forward)
    values = {
        "power of H in the score products of one head": power(
            {h: s / h for h, s in scores.items()}
        ),
        "power of H in the map products of one head": power({h: m / h for h, m in maps.items()}),
        "power of H in all products": power({h: maps[h] + scores[h] for h in COUNTS}),
        "power of H in the weights": power({h: int(r.params) for h, r in reports.items()}),
        "weights of one map, 4 heads": int(reports[4].modules["q"].params),
        "saved bytes with 16 heads over 1": saved[16] / saved[1],
        "saved bytes with 16 heads over 1, fused": fused[16] / fused[1],
        "products of 8 full heads over 8 split ones": full / int(reports[8].flops.forward),
    }
    lines = {
        "products, all heads": [(h, maps[h] + scores[h]) for h in COUNTS],
        "products, one head": [(h, (maps[h] + scores[h]) / h) for h in COUNTS],
        "bytes kept": [(h, saved[h]) for h in COUNTS],
    }
    return values, Chart(f"Heads in a width of {D}, {N} tokens", "heads", "count", lines, True)


def measure(depth: Depth) -> Measurement:
    """Compare the equations, and count over the number of heads."""
    seeds = [*depth.seeds(quick=2, full=20)]
    h_out = document_layer(1.0, 0)(torch.zeros(1, TOKENS, WIDTH, dtype=torch.float64))
    counts, chart = measure_counts(depth)
    return Measurement(
        {
            "error against the six equations": exact(max(difference(1.0, s) for s in seeds)),
            "error with a scale of 1/sqrt(U)": exact(min(difference(None, s) for s in seeds)),
            "size of h_out": exact(h_out.shape[-1]),
            "terms of a score": exact(document_layer(1.0, 0).q.out_features // HEADS),
            "numbers of heads with I below J": exact(
                sum(value_size(heads) < WIDTH for heads in range(1, 5))
            ),
            **{name: exact(value) for name, value in counts.items()},
        },
        {"heads": chart},
    )


EXPERIMENT = Experiment(
    "heads", "What do several heads compute, and what do they cost?", CLAIMS, measure
)
