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
    """Return whether what comes back is what went in, and as many tokens more as were fed."""
    growth = _growth(runner, candidate, inputs)
    return bool(growth) and all(growth)


def grows_in_pairs(runner: Runner, candidate: CacheProtocol, inputs: Inputs) -> bool:
    """Return whether keys and values grow, in what may else be a memory of segments.

    Answers of a model that reads in segments may depend on where these end.
    """
    growth = _growth(runner, candidate, inputs)
    return bool(growth) and len(growth) % 2 == 0 and any(growth)


def _growth(runner: Runner, candidate: CacheProtocol, inputs: Inputs) -> list[bool]:
    """Return whether each tensor of a cache begins as it was; nothing where some did not grow."""
    if candidate.source is None or candidate.step is not None or candidate.make is not None:
        return []
    trusting = runner.supposing(replace(runner.facts, protocols=Protocols(candidate)))
    run, cache, held = Run(inputs, PLAIN), None, []
    runner.copies.reset(PLAIN)
    try:
        with torch.no_grad():
            for past, size in ((0, FIRST), (FIRST, SECOND)):
                _, cache = trusting.feed(trusting.chunk(run, past, size), PLAIN, cache, past)
                held.append(_kept(cache))
        return [_is_same(before, after) for before, after in zip(*held, strict=True)]
    except Exception:
        return []


def _kept(cache: Any) -> list[torch.Tensor]:
    return [t.detach().clone() for _, t in tensors(cache) if t.is_floating_point()]


def _is_same(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Return whether a tensor that is longer by the second chunk begins as it was."""
    for axis, sizes in enumerate(zip(before.shape, after.shape, strict=True)):
        if sizes == (FIRST, FIRST + SECOND):
            return torch.equal(after.narrow(axis, 0, FIRST), before)
    raise ValueError("it has not grown")
