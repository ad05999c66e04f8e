"""The maps phi with sim(q, k) = phi(q).phi(k): what makes attention linear in the number of tokens.

phi = Quadratic()
phi.width(64)          # 2145, without running anything
phi(x)                 # (..., 2145), over the last axis of any array
phi.similarity(dots)   # the same kernel from dot products, where it has a closed form
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from querykey.attention.arrays import Array, namespace
from querykey.attention.tables import direction_table, monomial_table
from querykey.errors import QuerykeyError, WrongTypeError
from querykey.words import is_number, whole

FLOAT32_LARGEST = 3.4e38
LARGEST_DEGREE = 150  # whose factorial is still a float
SMALL_RANGE = 10.0  # values of q.k + bias that attention meets soon


class FeatureMap:
    """A map over the last axis of an array."""

    positive: bool = True  # are its similarities never below 0?
    exact: bool = True  # does phi(q).phi(k) equal the kernel the map is named after?
    closed_form: bool = False  # is that kernel a function of q.k, given by `similarity`?
    may_overflow: bool = False  # may numbers that attention meets leave the range of floats?

    def width(self, key_dim: int) -> int:
        """Count the features of a vector of `key_dim` entries."""
        raise NotImplementedError

    def __call__(self, x: Array) -> Array:
        """Map (..., key_dim) to (..., width)."""
        raise NotImplementedError

    def flops(self, key_dim: int) -> int:
        """Count the FLOPs of the matrix products that map one vector; most maps have none."""
        return 0

    def similarity(self, dots: Array) -> Array:
        """Return phi(q).phi(k) from q.k, entry by entry."""
        raise WrongTypeError(f"{self} is no function of q.k alone: use phi(q) @ phi(k)^T")


class PowerSeries(FeatureMap):
    """phi for c_0 + c_1 (q.k) + c_2 (q.k)^2 + ..., every c_m at least 0.

    (q.k)^m is a sum over monomials of degree m, each as often as its letters can be ordered; so phi
    holds every monomial once, times the root of that count and of c_m. The degrees come in rising
    order, the monomials of one degree in the order x1 x1, x1 x2, ..., x2 x2, ...
    """

    closed_form = True
    may_overflow = True
    coefficients: tuple[float, ...]  # the factors c_0, c_1, ... of the powers of q.k

    def width(self, key_dim: int) -> int:
        """Count the monomials of every degree that takes part."""
        return sum(
            math.comb(key_dim + degree - 1, degree) if degree else 1
            for degree, factor in enumerate(self.coefficients)
            if factor
        )

    def __call__(self, x: Array) -> Array:
        """Return the weighted monomials, built degree by degree from those one degree below."""
        xp = namespace(x)
        monomials = (
            xp.ones_like(x[..., :1]) if x.shape[-1] else xp.sum(x, axis=-1, keepdims=True) + 1
        )
        features = [monomials * math.sqrt(self.coefficients[0])] if self.coefficients[0] else []
        for degree, factor in enumerate(self.coefficients[1:], start=1):
            shorter, letter, orderings = monomial_table(x.shape[-1], degree, like=x)
            monomials = xp.take(monomials, shorter, axis=-1) * xp.take(x, letter, axis=-1)
            if factor:
                features.append(monomials * xp.sqrt(factor * orderings))
        return xp.concat(features, axis=-1)

    def similarity(self, dots: Array) -> Array:
        """Return the series at q.k, by Horner's rule."""
        *lower, total = self.coefficients
        for factor in reversed(lower):
            total = total * dots + factor
        return total


@dataclass(frozen=True)
class Quadratic(PowerSeries):
    """(q.k + 1)^2 exactly: 1, every sqrt(2) x_i, every x_i^2, every sqrt(2) x_i x_j with i < j."""

    coefficients = (1.0, 2.0, 1.0)
    may_overflow = False  # only beyond q.k = 10^19 in float32

    def similarity(self, dots: Array) -> Array:
        """Return (q.k + 1)^2, never below 0 whatever the rounding."""
        return (dots + 1) ** 2


@dataclass(frozen=True)
class Polynomial(PowerSeries):
    """The kernel (q.k + bias)^degree, exactly."""

    degree: int
    bias: float = 1.0
    signed: bool = False  # accept similarities below 0, as odd degrees have

    def __post_init__(self):
        _at_most("the degree of a polynomial kernel", self.degree)
        _whether("signed", self.signed)
        if not (is_number(self.bias) and 0 <= float(self.bias) < math.inf):
            raise QuerykeyError(
                f"(q.k + bias)^degree has a feature map only for a finite bias of at least 0; "
                f"got {self.bias}"
            )
        largest = FLOAT32_LARGEST ** (1 / self.degree)
        if largest < SMALL_RANGE:
            warnings.warn(
                f"(q.k + {self.bias:g})^{self.degree} exceeds float32 where q.k + {self.bias:g} is "
                f"above {largest:.1f}; take a smaller scale or degree",
                stacklevel=3,
            )
        _admit_sign(self, self.degree, f"(q.k + {self.bias:g})^{self.degree}", "degree")
        n, bias = self.degree, float(self.bias)
        try:
            binomial = tuple(math.comb(n, m) * bias ** (n - m) for m in range(n + 1))
        except OverflowError:
            raise QuerykeyError(
                f"(q.k + {bias:g})^{n} has coefficients beyond the range of floats; take a smaller "
                f"degree or bias"
            ) from None
        object.__setattr__(self, "coefficients", binomial)

    def similarity(self, dots: Array) -> Array:
        """Return (q.k + bias)^degree from q.k."""
        return (dots + self.bias) ** self.degree


@dataclass(frozen=True)
class Taylor(PowerSeries):
    """1 + x + x^2/2 + ... + x^order/order! at x = q.k: exp(q.k) near 0."""

    order: int = 2
    signed: bool = False  # accept similarities below 0, as odd orders have
    exact = False

    def __post_init__(self):
        _at_most("the order of a Taylor polynomial", self.order)
        _whether("signed", self.signed)
        # Even orders are above 0 everywhere: where the slope is 0, the sum equals its last term.
        _admit_sign(self, self.order, f"the Taylor polynomial of order {self.order}", "order")
        series = tuple(1 / math.factorial(m) for m in range(self.order + 1))
        object.__setattr__(self, "coefficients", series)


@dataclass(frozen=True)
class EluPlusOne(FeatureMap):
    """phi(x) = elu(x) + 1 (Katharopoulos et al., 2020): positive, smooth, same width."""

    def width(self, key_dim: int) -> int:
        """Return key_dim: there is one feature for each entry."""
        return key_dim

    def __call__(self, x: Array) -> Array:
        """Return x + 1 above 0 and exp(x) below."""
        xp = namespace(x)
        above = x > 0
        return xp.where(above, x + 1, xp.exp(xp.where(above, xp.zeros_like(x), x)))


@dataclass(frozen=True)
class RandomFeatures(FeatureMap):
    """phi(x) = exp(W x - |x|^2 / 2) / sqrt(count): on average over W, phi(q).phi(k) = exp(q.k).

    Positive random features with orthogonal rows (Choromanski et al., 2021). W is drawn by NumPy
    from the seed, so the numbers are the same in every array library.
    """

    count: int
    seed: int = 0
    exact = False

    def __post_init__(self):
        whole("the number of random features", self.count)
        whole("the seed of random features", self.seed, least=0)

    def width(self, key_dim: int) -> int:
        """Count the features, whatever the key's size."""
        return self.count

    def flops(self, key_dim: int) -> int:
        """Count the product of a vector with the drawn directions."""
        return 2 * self.count * key_dim

    def __call__(self, x: Array) -> Array:
        """Return the positive features; no entry exceeds exp(|w|^2 / 2)."""
        xp = namespace(x)
        directions = direction_table(self.count, x.shape[-1], self.seed, like=x)
        half_norm = xp.sum(x * x, axis=-1, keepdims=True) / 2
        return xp.exp(x @ xp.matrix_transpose(directions) - half_norm) / math.sqrt(self.count)


def _whether(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise WrongTypeError(f"{name} is True or False; got {value!r}")


def _at_most(name: str, value: int) -> None:
    if whole(name, value) > LARGEST_DEGREE:
        raise QuerykeyError(f"{name} is at most {LARGEST_DEGREE}; got {value}")


def _admit_sign(features: Polynomial | Taylor, highest: int, name: str, kind: str) -> None:
    """Note whether the similarities are positive, as for even highest powers, or refuse."""
    object.__setattr__(features, "positive", highest % 2 == 0)
    if not (features.positive or features.signed):
        raise QuerykeyError(
            f"{name} can be below 0, so its sums can vanish and its weights have no bound; "
            f"pass signed=True to accept that, or take an even {kind}"
        )
