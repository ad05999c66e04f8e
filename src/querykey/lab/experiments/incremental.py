"""One more token under a causal mask (document 003, 12.7): what is new, and what stays.

`extend` adds a token to a state that holds the others. Which of the old and new queries and keys
matter is found by changing each and looking at which outputs move.
"""

from __future__ import annotations

import torch
from torch import Tensor

from querykey.attention import Causal, Softmax, empty_state, weights
from querykey.backends import attend, extend
from querykey.lab.claim import Claim, Equal
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Grid, Measurement, exact

OLD, WIDTH = 9, 6
NAMES = ("old queries", "new query", "old keys", "new key")

CLAIMS = (
    Claim("D6", "the new weights are products of the new key and the old queries: the new output "
          "depends on {value}", ("new key", "old queries"), of="what the new output depends on",
          right="It is the new token's query that meets the keys, old ones and its own; the mask "
          "hides the new key from every old query."),
    Claim("D6", "the matrix grows from N x N to (N+1) x (N+1): of N = 9, by {value} products",
          2 * OLD + 1, of="new products",
          right="N + 1 of the 2N + 1 new entries: the mask hides the N others."),
    Claim("D6", "all existing tokens' output vectors are computed again: {value} change", OLD + 1,
          of="outputs that change or are new", right="Only the new token's output is new."),
    Claim("D6", "the existing keys and values can be kept: from them and the new token, the error "
          "against computing all again is {value}", 0, of="error of extending",
          within=Equal(1e-12)),
)  # fmt: skip


def tokens(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of the old tokens and a new one."""
    generator = torch.Generator().manual_seed(seed)
    shape = (3, 1, 1, OLD + 1, WIDTH)
    q, k, v = torch.randn(shape, dtype=torch.float64, generator=generator)
    return q, k, v


def moved(seed: int) -> dict[str, Tensor]:
    """Return which outputs move when the old or the new queries or keys are changed."""
    q, k, v = tokens(seed)
    before = attend(q, k, v, mask=Causal())
    other = tokens(seed + 1000)
    parts = {}
    for name in NAMES:
        old, keys = name.startswith("old"), "key" in name
        rows = (torch.arange(OLD + 1) < OLD) == old
        rows = rows[None, None, :, None]
        changed = (
            (q, torch.where(rows, other[1], k)) if keys else (torch.where(rows, other[0], q), k)
        )
        after = attend(*changed, v, mask=Causal())
        parts[name] = (after - before).abs().amax((0, 1, 3)) > 1e-12
    return parts


def error_of_extending(seed: int) -> float:
    """Return how far a token added to a state is from computing everything again."""
    q, k, v = tokens(seed)
    state = empty_state(
        Softmax(), kv_heads=1, key_dim=WIDTH, value_dim=WIDTH, like=q, mask=Causal()
    )
    _, state = extend(q[:, :, :OLD], k[:, :, :OLD], v[:, :, :OLD], state)
    out, _ = extend(q[:, :, OLD:], k[:, :, OLD:], v[:, :, OLD:], state)
    return float((out - attend(q, k, v, mask=Causal())[:, :, OLD:]).abs().max())


def measure(depth: Depth) -> Measurement:
    """Add a token to several sequences, and change old and new queries and keys."""
    seeds = [*depth.seeds(quick=3, full=50)]
    reached = [moved(seed) for seed in seeds]
    by_new = {name for parts in reached for name in NAMES if parts[name][OLD]}
    q, k, v = tokens(0)
    first = weights(q[:, :, :OLD], k[:, :, :OLD], mask=Causal())
    after = weights(q, k, mask=Causal())
    outputs = attend(q[:, :, :OLD], k[:, :, :OLD], v[:, :, :OLD], mask=Causal())
    again = attend(q, k, v, mask=Causal())
    changed = (again[:, :, :OLD] - outputs).abs().amax((0, 1, 3)) > 1e-12
    return Measurement(
        {
            "what the new output depends on": exact(tuple(sorted(by_new))),
            "whether the new key moves an old output": exact(
                any(bool(parts["new key"][:OLD].any()) for parts in reached)
            ),
            "new products": exact(int((after > 0).sum()) - int((first > 0).sum())),
            "outputs that change or are new": exact(int(changed.sum()) + 1),
            "error of extending": exact(max(error_of_extending(seed) for seed in seeds)),
        },
        {
            "moved": Grid(
                "Outputs (across, the last is new) that move when these are changed",
                [[float(x) for x in reached[0][name]] for name in NAMES], NAMES,
            )
        },
    )  # fmt: skip


EXPERIMENT = Experiment(
    "incremental", "What has to be computed when a token is added under a causal mask?",
    CLAIMS, measure,
)  # fmt: skip
