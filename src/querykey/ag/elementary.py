"""More functions of one array and of two, element by element, each with its derivative beside it.

A function that is constant between its steps, such as floor, has the derivative 0.
"""

from __future__ import annotations

import math

import numpy as np

from querykey.ag.primitives import binary, unary

log1p = unary("log1p", np.log1p, lambda g, x, y: g / (1 + x))
expm1 = unary("expm1", np.expm1, lambda g, x, y: g * (1 + y))
log2 = unary("log2", np.log2, lambda g, x, y: g / (x * math.log(2)))
log10 = unary("log10", np.log10, lambda g, x, y: g / (x * math.log(10)))
reciprocal = unary("reciprocal", lambda x: 1 / x, lambda g, x, y: -g * (y * y))
tan = unary("tan", np.tan, lambda g, x, y: g * (1 + y * y))
sinh = unary("sinh", np.sinh, lambda g, x, y: g * np.cosh(x))
cosh = unary("cosh", np.cosh, lambda g, x, y: g * np.sinh(x))
asin = unary("asin", np.arcsin, lambda g, x, y: g / np.sqrt((1 - x) * (1 + x)))
acos = unary("acos", np.arccos, lambda g, x, y: -g / np.sqrt((1 - x) * (1 + x)))
atan = unary("atan", np.arctan, lambda g, x, y: g / (1 + x * x))
asinh = unary("asinh", np.arcsinh, lambda g, x, y: g / np.hypot(x, 1))
acosh = unary("acosh", np.arccosh, lambda g, x, y: g / np.sqrt((x - 1) * (x + 1)))
atanh = unary("atanh", np.arctanh, lambda g, x, y: g / ((1 - x) * (1 + x)))


def nothing(g, *saved):
    """Return the derivative of a function that is constant between its steps: zeros like g."""
    return np.zeros_like(g)


floor = unary("floor", np.floor, nothing)
ceil = unary("ceil", np.ceil, nothing)
trunc = unary("trunc", np.trunc, nothing)
round = unary("round", np.round, nothing)
sign = unary("sign", np.sign, nothing)
floor_divide = binary("floor_divide", np.floor_divide, nothing, nothing)


def share_of(g, x, y):
    """Return g * exp(x - y), the derivative of y = logaddexp by x; half of g where both are -inf"""
    return g * np.exp(np.where(x == y, 0, np.subtract(x, y)), dtype=y.dtype)


def along(g, x, y):
    """Return g * x / y, the derivative of the length y by x; 0 where the length is 0."""
    return g * (x / np.where(y == 0, np.ones_like(y), y))


def turned(g, x, a, b):
    """Return g * x / (a^2 + b^2), from a length that cannot overflow."""
    length = np.hypot(a, b)
    return g * (x / length / length)


logaddexp = binary(
    "logaddexp",
    np.logaddexp,
    lambda g, a, b, y: share_of(g, a, y),
    lambda g, a, b, y: share_of(g, b, y),
)
hypot = binary(
    "hypot", np.hypot, lambda g, a, b, y: along(g, a, y), lambda g, a, b, y: along(g, b, y)
)
atan2 = binary(
    "atan2",
    np.arctan2,
    lambda g, a, b, y: turned(g, b, a, b),
    lambda g, a, b, y: -turned(g, a, a, b),
)
copysign = binary(
    "copysign", np.copysign, lambda g, a, b, y: g * (np.sign(a) * np.sign(y)), nothing
)
