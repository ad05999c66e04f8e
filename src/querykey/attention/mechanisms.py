"""How scores become weights: frozen specs, each of which is one equation.

A mechanism knows what the rest of the library asks of it: its weights, whether it takes a bias,
whether sums of constant size are all that decoding must remember, and how many FLOPs it takes. A
mechanism of one's own derives from `Mechanism` and needs `weights` and nothing else:

    class Nearest(Mechanism):
        def weights(self, q, k, seen):
            return shares(1 / (1 + distances(q, k)), seen)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from querykey.attention.algebra import Mask
from querykey.attention.arrays import Array, described, device_of, namespace, values_are_at_hand
from querykey.attention.features import FeatureMap
from querykey.attention.masks import Causal
from querykey.errors import QuerykeyError, WrongTypeError
from querykey.words import is_number


class Mechanism:
    """A way to turn queries and keys into weights; fast backends serve those that they know."""

    takes_bias: bool = False  # may numbers be added to its scores?
    takes_decay: bool = False  # may its similarities shrink with the positions between?
    differentiable: bool = True  # do its weights change smoothly with queries and keys?
    # May it hold parameters, which want a gradient though neither q nor k nor v does?
    may_learn: bool = True
    may_overflow: bool = False  # may numbers that attention meets leave the range of floats in it?
    # The mask under which decoding needs sums over the tokens so far, and no tokens; None: there is
    # no such mask.
    sums_suffice_under: Mask | None = None

    def weights(self, q: Array, k: Array, seen: Array) -> Array:
        """Return the weights (..., heads, T, S) of finite q (..., heads, T, D) and k.

        `seen` holds booleans that broadcast against the weights. A weight is 0 where `seen` is
        False. With `takes_bias`, the numbers to add to the scores come as `bias=`; with
        `takes_decay`, the factors from 0 to 1 of the similarities come as `decay=`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define weights(q, k, seen)")

    def flops(self, queries: Any, keys: Any, key_dim: Any, value_dim: Any) -> Any:
        """Count the FLOPs of the equation's matrix products in one head; sizes may be symbols.

        A multiply-add is 2. What a mask hides is counted too.
        """
        return 2 * queries * keys * (key_dim + value_dim)


@dataclass(frozen=True)
class Softmax(Mechanism):
    """weights = softmax(scale * q k^T) over the visible keys; output = weights v.

    With a softcap c the scores are c * tanh(scale * q k^T / c). A bias is added after that.
    """

    scale: float | None = None  # None: 1/sqrt(key_dim)
    softcap: float | None = None
    takes_bias = True
    may_learn = False

    def __post_init__(self):
        if self.scale is not None and not is_number(self.scale):
            raise WrongTypeError(
                f"a scale is a number, or None for 1/sqrt(key_dim); got {self.scale!r}"
            )
        if self.scale is not None and not math.isfinite(float(self.scale)):
            raise QuerykeyError(f"a scale is finite; got {self.scale}")
        if self.softcap is not None and not _is_above_zero(self.softcap):
            raise QuerykeyError(
                f"a softcap bounds the scores, so it is above 0; got {self.softcap}"
            )

    def weights(self, q: Array, k: Array, seen: Array, *, bias: Array | None = None) -> Array:
        """Return softmax(scale * q k^T + bias) over the keys that are seen."""
        scores = self.scores(self.scale_for(q.shape[-1]) * (q @ namespace(q).matrix_transpose(k)))
        return softmax(scores if bias is None else scores + bias, seen)

    def scale_for(self, key_dim: int) -> float:
        """Return the number that q.k is multiplied with."""
        return 1 / math.sqrt(max(key_dim, 1)) if self.scale is None else self.scale

    def scores(self, dots: Array) -> Array:
        """Return the scores from q.k times the scale."""
        if self.softcap is None:
            return dots
        return self.softcap * namespace(dots).tanh(dots / self.softcap)


@dataclass(frozen=True)
class Argmax(Mechanism):
    """output = the value of the visible key with the largest q.k; ties go to the first such key."""

    differentiable = False
    may_learn = False

    def weights(self, q: Array, k: Array, seen: Array) -> Array:
        """Return 1 for the best of the keys that are seen, and 0 for the others."""
        return argmax(q @ namespace(q).matrix_transpose(k), seen)


@dataclass(frozen=True)
class Kernel(Mechanism):
    """weights = phi(q).phi(k) / its sum over the visible keys; phi(q).phi(k) = f(scale * q.k)."""

    features: FeatureMap
    scale: float = 1.0
    takes_decay = True
    may_learn = False
    sums_suffice_under = Causal()  # sums of phi(k) v^T and of phi(k)

    def __post_init__(self):
        if not isinstance(self.features, FeatureMap):
            raise WrongTypeError(
                f"Kernel wants a feature map, such as Quadratic(); got {self.features!r}"
            )
        if not (_is_above_zero(self.scale) and math.isfinite(self.scale)):
            raise QuerykeyError(f"a kernel's scale is above 0; got {self.scale}")
        object.__setattr__(self, "may_overflow", self.features.may_overflow)

    def weights(self, q: Array, k: Array, seen: Array, *, decay: Array | None = None) -> Array:
        """Return each key's share of the similarities of the keys that are seen."""
        similarity = self.similarity(q, k, where=seen)
        return shares(similarity if decay is None else similarity * decay, seen)

    def flops(self, queries: Any, keys: Any, key_dim: Any, value_dim: Any) -> Any:
        """Count products of features where the map has no closed form in q.k, and making them."""
        if self.features.closed_form:
            return super().flops(queries, keys, key_dim, value_dim)
        width = self.features.width(key_dim)
        mapped = (queries + keys) * self.features.flops(key_dim)
        return mapped + super().flops(queries, keys, width, value_dim)

    def phi(self, x: Array) -> Array:
        """Map queries or keys to features; the root of the scale goes into each."""
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
class Similarity(Mechanism):
    """weights = function(q, k) / its sum over the visible keys: any similarity that is positive.

    `function` takes q (..., heads, T, D) and k (..., heads, S, D) and returns (..., heads, T, S).
    """

    function: Callable[[Any, Any], Any]

    def __post_init__(self):
        if not callable(self.function):
            raise WrongTypeError(f"Similarity wants a function of q and k; got {self.function!r}")

    def weights(self, q: Array, k: Array, seen: Array) -> Array:
        """Return each key's share of what the function returns for the keys that are seen."""
        similarities = self.function(q, k)
        wanted = (*q.shape[:-1], k.shape[-2])
        if tuple(similarities.shape) != wanted:
            raise QuerykeyError(
                f"the function of Similarity returned {tuple(similarities.shape)} for "
                f"q {tuple(q.shape)} and k {tuple(k.shape)}; one number per pair is {wanted}"
            )
        return shares(similarities, seen)

    def flops(self, queries: Any, keys: Any, key_dim: Any, value_dim: Any) -> Any:
        """Count the sum of the values; what the function does is not known here."""
        return super().flops(queries, keys, 0, value_dim)


def softmax(scores: Array, seen: Array) -> Array:
    """exp(s_j) / sum_j exp(s_j) over the keys that are seen; zeros for a query that sees none."""
    xp = namespace(scores)
    if scores.shape[-1] == 0:
        return scores
    zeros = xp.zeros_like(scores)
    top = xp.max(xp.where(seen, scores, zeros - math.inf), axis=-1, keepdims=True)
    top = xp.where(top == -math.inf, xp.zeros_like(top), top)
    # Guarded on both sides of exp: a hidden score may overflow, and inf times gradient 0 is NaN.
    powers = xp.where(seen, xp.exp(xp.where(seen, scores - top, zeros)), zeros)
    return _shared_out(powers, seen)


def argmax(scores: Array, seen: Array) -> Array:
    """1 for the largest score among the keys that are seen, the first of equals; else 0.

    The weights do not change with the scores, so their gradients are zeros.
    """
    xp = namespace(scores)
    if scores.shape[-1] == 0:
        return scores
    zeros = xp.zeros_like(scores)
    reachable = xp.where(seen, scores, zeros - math.inf)
    first = xp.argmax(reachable, axis=-1, keepdims=True)
    keys = xp.arange(scores.shape[-1], dtype=first.dtype, device=device_of(scores))
    winner = xp.where(seen & (keys == first), zeros + 1, zeros)
    # Chosen nowhere, the scores are still there for the gradient to find.
    return xp.where(keys < 0, scores, winner)


def shares(similarities: Array, seen: Array) -> Array:
    """s_j / sum_j s_j over the keys that are seen; zeros where that sum is exactly 0."""
    xp = namespace(similarities)
    similarities = xp.where(seen, similarities, xp.zeros_like(similarities))
    return _shared_out(similarities, seen)


def _shared_out(parts: Array, seen: Array) -> Array:
    xp = namespace(parts)
    total = xp.sum(parts, axis=-1, keepdims=True)
    nothing = total == 0
    weights = parts / xp.where(nothing, xp.ones_like(total), total)
    return xp.where(seen & ~nothing, weights, xp.zeros_like(weights))


def _is_above_zero(value: Any) -> bool:
    return is_number(value) and value > 0


def warn_of_overflow(mechanism: Mechanism, out: Array, *inputs: Array) -> None:
    """Warn where finite queries, keys and values gave inf or NaN, if looking costs nothing."""
    if values_are_at_hand(out) and not _is_finite(out) and all(map(_is_finite, inputs)):
        warnings.warn(
            f"the similarities of {mechanism} are beyond the range of floats, and the answer has "
            f"inf or NaN in it ({described(out)}); take a smaller scale or degree",
            stacklevel=3,
        )


def _is_finite(array: Array) -> bool:
    xp = namespace(array)
    return bool(xp.all(xp.isfinite(array)))
