"""The means of an objective over a whole validation split, shared by all ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from querykey.train.objectives.objective import Batch, Sums
from querykey.train.ranks import Ranks

AT_ONCE = 64  # samples


def mean_sums(
    sums: Callable[[Batch], Sums],
    batch_of: Callable[[range], Batch],
    samples: int,
    ranks: Ranks,
    device: torch.device,
) -> dict[str, float]:
    """Return the sums over all samples, each divided by the terms that it has.

    Every rank runs as many batches, for sharded models run together; spare ones count nothing.
    """
    totals: dict[str, float] = {}
    terms: dict[str, float] = {}
    for number in range(-(-samples // (AT_ONCE * ranks.world))):
        first = (number * ranks.world + ranks.rank) * AT_ONCE
        last = min(first + AT_ONCE, samples)
        counts = first < last
        batch = batch_of(range(first, last) if counts else range(1))
        for name, value in sums(batch).items():
            totals[name] = totals.get(name, 0.0) + counts * float(value)
            terms[name] = terms.get(name, 0.0) + counts * batch.terms[name]
    return {
        name: ranks.total(total, device) / max(ranks.total(terms[name], device), 1)
        for name, total in totals.items()
    }
