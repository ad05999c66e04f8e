"""In which order samples come, and the random numbers that belong to each: functions of the seed.

Nothing here has a state. What a step sees follows from the seed and the step's number, so that a
run resumes at the exact sample, on any number of ranks, without anything having been saved.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch


@dataclass(frozen=True)
class SampleOrder:
    """An endless sequence of sample numbers: every sample once per epoch, shuffled anew in each."""

    samples: int
    seed: int = 0

    def __getitem__(self, position: int) -> tuple[int, int]:
        """Return the epoch, and the number of the sample that comes at a position."""
        epoch, place = divmod(position, self.samples)
        return epoch, int(_shuffled(self.samples, self.seed, epoch)[place])


@lru_cache(maxsize=2)
def _shuffled(samples: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(samples)


def sample_generator(seed: int, *place: int | str) -> np.random.Generator:
    """Return the generator of one place, such as a sample: it follows from seed and place alone."""
    return np.random.default_rng(_key(seed, *place))


def seed_generators(seed: int, *place: int | str) -> None:
    """Seed the global generators of torch, NumPy and Python from the seed and a place, as a step.

    Dropout and models with random numbers of their own draw from these.
    """
    key = _key(seed, *place)
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(key)
    np.random.seed(key % 2**32)
    random.seed(key)


@contextmanager
def generators_restored() -> Iterator[None]:
    """Restore the state of the caller's global random generators afterwards."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


def _key(seed: int, *place: int | str) -> int:
    words = "/".join(map(str, (seed, *place))).encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little") >> 1
