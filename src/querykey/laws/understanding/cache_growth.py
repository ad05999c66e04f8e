"""Caches known by how they grow: by the tokens that were fed, behind those that were there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from querykey.laws.run import PLAIN, Inputs, Run
from querykey.laws.runner import Runner
from querykey.laws.understanding.facts import CacheProtocol, Protocols
from querykey.laws.understanding.outputs import tensors

FIRST, SECOND = 5, 2  # tokens fed


def grows(runner: Runner, candidate: CacheProtocol, inputs: Inputs) -> bool:
    """Return whether what comes back is what went in, and as many tokens more as were fed.

    Nothing but a cache does that, whatever its name and whatever answers come out beside it.
    """
    if candidate.source is None or candidate.step is not None or candidate.make is not None:
        return False
    trusting = runner.supposing(replace(runner.facts, protocols=Protocols(candidate)))
    run, cache, held = Run(inputs, PLAIN), None, []
    runner.copies.reset(PLAIN)
    try:
        with torch.no_grad():
            for past, size in ((0, FIRST), (FIRST, SECOND)):
                _, cache = trusting.feed(trusting.chunk(run, past, size), PLAIN, cache, past)
                held.append(_kept(cache))
    except Exception:
        return False
    before, after = held
    pairs = list(zip(before, after, strict=False))
    return len(before) == len(after) > 0 and all(_is_longer(*pair) for pair in pairs)


def _kept(cache: Any) -> list[torch.Tensor]:
    return [t.detach().clone() for _, t in tensors(cache) if t.is_floating_point()]


def _is_longer(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Return whether a tensor holds another one, and the second chunk's tokens after it."""
    if before.dim() != after.dim():
        return False
    for axis, size in enumerate(before.shape):
        if (size, after.shape[axis]) == (FIRST, FIRST + SECOND):
            return torch.equal(after.narrow(axis, 0, FIRST), before)
    return False
