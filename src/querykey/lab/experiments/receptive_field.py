"""How many positions a node sees through layers of argmax attention (document 001, 2 a).

A head of argmax attention looks at one position, and the residual sum keeps the node's own. So k
heads multiply what is seen by at most k + 1 in every layer. Which inputs are seen is read off the
gradient: it is zero for all others.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from querykey.attention import Argmax, Softmax, weights
from querykey.backends import attend
from querykey.lab.claim import AtMost, Claim, Near
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Grid, Measurement, exact, sampled
from querykey.nn import AttentionConfig, MultiHeadAttention

TOKENS, WIDTH, SHORT = 128, 12, 16
LAYERS = 4
HEADS = (1, 2, 3)
KEYS, SIZES = 32, (4, 16, 64, 256, 1024)

CLAIMS = (
    *(
        Claim(
            "B3",
            f"through {LAYERS} layers of {heads} head{'s' * (heads > 1)} a node sees {{value}} "
            "positions, where every head looks at a position not seen before",
            (heads + 1) ** LAYERS,
            of=f"positions seen, {heads} heads, all apart",
        )
        for heads in HEADS[:2]
    ),
    Claim("B3", "a node sees (k+1)^n positions: never more than {value} times that", 1,
          of="largest ratio of positions seen to (k+1)^n", within=AtMost()),
    Claim("B3", f"with random weights, too, a node sees (k+1)^n positions: {{value}} through "
          f"{LAYERS} layers of 2 heads", 81,
          of="positions seen, 2 heads, random weights", within=Near(0.05),
          right="(k+1)^n is the most: heads often look where another has looked, because some keys "
          "suit many queries."),
    Claim("B3", f"among {SHORT} tokens, too, a node sees (k+1)^n positions: {{value}} through "
          f"{LAYERS} layers of 2 heads", 81, of=f"positions seen of {SHORT}, 2 heads, all apart",
          right="No more than all positions can be seen: min(T, (k+1)^n)."),
    Claim("B3", "softmax is unimodal and near argmax: without the scale, at d = 1024, the weights "
          "of all other keys sum to at most {value}", 0.1,
          of="weight beside the largest, d = 1024, unscaled", within=AtMost()),
    Claim("B3", "softmax is near argmax: with the text's own scale 1/sqrt(d), the weights of all "
          "other keys sum to at most {value}", 0.1,
          of="weight beside the largest, d = 1024, scaled", within=AtMost(),
          right="Scaled scores have variance 1 at every d, and the largest of 32 weights is about "
          "a fifth; heads become that sharp by training or not at all."),
)  # fmt: skip


def seen_through(layers: list, tokens: int, width: int) -> Tensor:
    """Return which inputs (across) every output (down) has a gradient from."""
    x = torch.randn(1, tokens, width, dtype=torch.float64, requires_grad=True)
    out = x
    for layer in layers:
        out = out + layer(out)
    rows = []
    for position in range(tokens):
        (grad,) = torch.autograd.grad(out[0, position].sum(), x, retain_graph=True)
        rows.append(grad[0].abs().sum(-1) > 0)
    return torch.stack(rows)


def random_layers(heads: int, seed: int) -> list[MultiHeadAttention]:
    """Return layers of argmax attention with random weights."""
    torch.manual_seed(seed)
    config = AttentionConfig(heads, mechanism=Argmax())
    return [MultiHeadAttention(WIDTH, config).double() for _ in range(LAYERS)]


def apart(heads: int, tokens: int) -> list:
    """Return layers whose heads look (h + 1) (k + 1)^l positions ahead: every sum is another."""
    places = torch.eye(tokens, dtype=torch.float64)

    def layer(level: int):
        def looks(x: Tensor) -> Tensor:
            steps = [(head + 1) * (heads + 1) ** level for head in range(heads)]
            q = torch.stack([places.roll(-step, 0) for step in steps])[None]
            k, v = places.expand(1, heads, -1, -1), x[:, None].expand(-1, heads, -1, -1)
            return attend(q, k, v, mechanism=Argmax()).sum(1)

        return looks

    return [layer(level) for level in range(LAYERS)]


def sizes_by_layer(seeds: list[int]) -> dict[str, list[tuple[float, float]]]:
    """Return how many positions a node sees after each layer, for every number of heads."""
    lines = {}
    for heads in HEADS:
        layers = range(1, LAYERS + 1)
        most = [seen_through(apart(heads, TOKENS)[:n], TOKENS, 1).sum(-1).max() for n in layers]
        lines[f"k = {heads}, heads apart"] = [*zip(layers, map(float, most), strict=True)]
    for heads in HEADS[:2]:
        mean = [
            np.mean([
                float(seen_through(random_layers(heads, seed)[:n], TOKENS, WIDTH).sum(-1)
                      .double().mean())
                for seed in seeds
            ])
            for n in range(1, LAYERS + 1)
        ]  # fmt: skip
        lines[f"k = {heads}, random weights"] = [(n + 1, float(m)) for n, m in enumerate(mean)]
    return lines


def growing(lines: dict[str, list[tuple[float, float]]]) -> Chart:
    """Return the chart of them beside (k+1)^n, which cannot pass the number of tokens."""
    powers = [(n, min((k + 1) ** n, TOKENS)) for k in HEADS for n in range(1, LAYERS + 1)]
    name = f"(k+1)^n, {TOKENS} at most"
    return Chart("Positions that a node sees through layers of k heads", "layers n", "positions",
                 {**lines, name: powers}, True, (name,))  # fmt: skip


def beside_the_largest(seed: int, d: int, scale: float, queries: int) -> float:
    """Return the mean weight that a query gives to all keys but its best."""
    rng = np.random.default_rng([seed, d])
    q, k = rng.standard_normal((queries, 1, d)), rng.standard_normal((queries, KEYS, d))
    return float((1 - weights(q, k, mechanism=Softmax(scale=scale)).max(-1)).mean())


def measure(depth: Depth) -> Measurement:
    """Follow gradients through random and through constructed layers; compare softmax to argmax."""
    seeds = [*depth.seeds(quick=4, full=20)]
    seen = {
        heads: [seen_through(random_layers(heads, seed), TOKENS, WIDTH) for seed in seeds]
        for heads in HEADS[:2]
    }
    sizes = {heads: [float(s.sum(-1).double().mean()) for s in seen[heads]] for heads in seen}
    largest = {k: max(int(s.sum(-1).max()) for s in seen[k]) / (k + 1) ** LAYERS for k in seen}
    values = {
        "largest ratio of positions seen to (k+1)^n": exact(max(largest.values())),
        **{f"positions seen, {k} heads, random weights": sampled(s) for k, s in sizes.items()},
    }
    for heads in HEADS[:2]:
        counts = seen_through(apart(heads, TOKENS), TOKENS, 1).sum(-1)
        values[f"positions seen, {heads} heads, all apart"] = exact(int(counts.max()))
    growth = growing(sizes_by_layer(seeds[:2]))
    few = seen_through(apart(2, SHORT), SHORT, 1).sum(-1)
    values[f"positions seen of {SHORT}, 2 heads, all apart"] = exact(int(few.max()))
    lines = {}
    for name, power in (("unscaled", 0.0), ("scaled", -0.5)):
        queries = depth.pick(quick=300, full=1000)
        shares = {
            d: [beside_the_largest(seed, d, d**power, queries) for seed in seeds] for d in SIZES
        }
        lines[name] = [(d, float(np.mean(row))) for d, row in shares.items()]
        values[f"weight beside the largest, d = {SIZES[-1]}, {name}"] = sampled(shares[SIZES[-1]])
    return Measurement(
        values,
        {
            "growth": growth,
            "seen": Grid("Inputs (across) that each output (down) sees: 2 heads, random weights",
                         seen[2][0].double().tolist()),
            "argmax": Chart("Softmax beside argmax, 32 keys", "d", "weight beside the best",
                            lines, True),
        },
    )  # fmt: skip


EXPERIMENT = Experiment(
    "receptive-field", "How far does a node see through argmax attention, and is softmax like it?",
    CLAIMS, measure,
)  # fmt: skip
