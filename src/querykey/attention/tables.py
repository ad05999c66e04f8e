"""The numbers that feature maps are made of: worked out by NumPy once, given to any library.

torch.compile takes the tensors made of them as constants and does not trace how they are made.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from querykey.attention.arrays import (
    Array,
    constant,
    constant_reals,
    constant_under_compile,
    library,
)


def monomial_table(letters: int, degree: int, like: Array) -> tuple[Array, Array, Array]:
    """Return what `monomials` lists, beside `like`."""
    if library(like) == "torch":
        shorter, letter, orderings = _monomial_tensors(letters, degree)
        return shorter.to(like.device), letter.to(like.device), orderings.to(like)
    shorter, letter, orderings = monomials(letters, degree)
    return constant(shorter, like), constant(letter, like), constant_reals(orderings, like)


def direction_table(count: int, key_dim: int, seed: int, like: Array) -> Array:
    """Return `orthogonal_rows` beside `like`."""
    if library(like) == "torch":
        return _direction_tensor(count, key_dim, seed).to(like)
    return constant_reals(orthogonal_rows(count, key_dim, seed), like)


@constant_under_compile
def _monomial_tensors(letters: int, degree: int) -> tuple[Any, ...]:
    """Return what `monomials` lists as torch tensors."""
    import torch

    return tuple(torch.from_numpy(table) for table in monomials(letters, degree))


@constant_under_compile
def _direction_tensor(count: int, key_dim: int, seed: int) -> Any:
    """Return `orthogonal_rows` as a torch tensor."""
    import torch

    return torch.from_numpy(orthogonal_rows(count, key_dim, seed))


@lru_cache(maxsize=64)
def monomials(letters: int, degree: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List the monomials of a degree: each as (its first letters, its last letter, its orderings).

    The first letters are given by their place among the monomials one degree shorter.
    """
    words = list(combinations_with_replacement(range(letters), degree))
    places = {
        word: i for i, word in enumerate(combinations_with_replacement(range(letters), degree - 1))
    }
    shorter = np.array([places[word[:-1]] for word in words], dtype=np.int64)
    letter = np.array([word[-1] for word in words], dtype=np.int64)
    orderings = np.array([_orderings(word) for word in words], dtype=np.float64)
    return shorter, letter, orderings


def _orderings(word: tuple[int, ...]) -> int:
    repeats = math.prod(math.factorial(word.count(letter)) for letter in set(word))
    return math.factorial(len(word)) // repeats


@lru_cache(maxsize=64)
def orthogonal_rows(count: int, key_dim: int, seed: int) -> np.ndarray:
    """Draw rows that look Gaussian one by one and are orthogonal in blocks of `key_dim`."""
    if key_dim == 0:
        return np.zeros((count, 0))
    draw = np.random.default_rng(seed)
    blocks = []
    for _ in range(-(-count // key_dim)):
        q, r = np.linalg.qr(draw.standard_normal((key_dim, key_dim)))
        lengths = np.linalg.norm(draw.standard_normal((key_dim, key_dim)), axis=1)
        # LAPACK chooses the signs; a positive diagonal of r makes them ours.
        blocks.append((q * np.sign(np.diag(r))).T * lengths[:, None])
    return np.concatenate(blocks)[:count]
