"""How scores become weights: frozen specs, each of which is one equation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from querykey.attention.arrays import Array, namespace
from querykey.attention.features import FeatureMap


@dataclass(frozen=True)
class Softmax:
    """weights = softmax(scale * q k^T) over the visible keys; output = weights v.

    With a softcap c the scores are c * tanh(scale * q k^T / c). A bias is added after that.
    """

    scale: float | None = None  # None: 1/sqrt(key_dim)
    softcap: float | None = None

    def __post_init__(self):
        if self.scale is not None and not hasattr(self.scale, "__float__"):
            raise TypeError(f"a scale is a number, or None for 1/sqrt(key_dim); got {self.scale!r}")
        if self.softcap is not None and not _is_above_zero(self.softcap):
            raise ValueError(f"a softcap bounds the scores, so it is above 0; got {self.softcap}")

    def scale_for(self, key_dim: int) -> float:
        """Return the factor of q.k."""
        return 1 / math.sqrt(max(key_dim, 1)) if self.scale is None else self.scale

    def scores(self, dots: Array) -> Array:
        """Return the scores from q.k times the scale."""
        if self.softcap is None:
            return dots
        return self.softcap * namespace(dots).tanh(dots / self.softcap)


@dataclass(frozen=True)
class Argmax:
    """output = the value of the visible key with the largest q.k; ties go to the first such key."""


@dataclass(frozen=True)
class Kernel:
    """weights = phi(q).phi(k) / its sum over the visible keys; phi(q).phi(k) = f(scale * q.k)."""

    features: FeatureMap
    scale: float = 1.0

    def __post_init__(self):
        if not isinstance(self.features, FeatureMap):
            raise TypeError(
                f"Kernel wants a feature map, such as Quadratic(); got {self.features!r}"
            )
        if not (_is_above_zero(self.scale) and math.isfinite(self.scale)):
            raise ValueError(f"a kernel's scale is above 0; got {self.scale}")

    def phi(self, x: Array) -> Array:
        """Map queries or keys to features; half of the scale goes into each."""
        return self.features(x if self.scale == 1 else x * math.sqrt(self.scale))

    def similarity(self, q: Array, k: Array, where: Array | None = None) -> Array:
        """Return phi(q).phi(k) for all pairs, from dot products where the map has a closed form.

        Pairs outside `where` are taken as q.k = 0, so that nothing can overflow there.
        """
        xp = namespace(q)
        if not self.features.closed_form:
            return self.phi(q) @ xp.matrix_transpose(self.phi(k))
        dots = self.scale * (q @ xp.matrix_transpose(k))
        if where is not None:
            dots = xp.where(where, dots, xp.zeros_like(dots))
        return self.features.similarity(dots)


@dataclass(frozen=True)
class Similarity:
    """weights = function(q, k) / its sum over the visible keys: any similarity that is positive.

    `function` takes q (..., heads, T, D) and k (..., heads, S, D) and returns (..., heads, T, S).
    """

    function: Callable[[Any, Any], Any]


Mechanism = Softmax | Argmax | Kernel | Similarity


def _is_above_zero(value: Any) -> bool:
    return hasattr(value, "__float__") and value > 0
