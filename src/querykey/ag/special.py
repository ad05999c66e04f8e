"""Functions of plain arrays that NumPy lacks, or has slower; none of them knows of Tensors."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

# NumPy is slower with a Python number than with an array of no axes, so small arrays of zeros and
# ones are cached. Nobody may write to them. They hold at most CACHED numbers: they stay for good.
CACHED = 4096
zeros, ones = functools.lru_cache(64)(np.zeros), functools.lru_cache(64)(np.ones)


def relu_of(x: Any) -> Any:
    """Return max(x, 0); NumPy's loop over two rows is quicker than over a row and a number."""
    x = np.asarray(x)
    row = x.shape[-1:] if x.size > CACHED >= x.shape[-1] else ()
    return np.maximum(x, zeros(row, x.dtype))


def sigmoid_of(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)), from an exponential that cannot overflow."""
    e = np.exp(-np.abs(x))
    return np.where(np.greater_equal(x, 0), 1, e) / (1 + e)


def erf_of(x: Any) -> Any:
    """Return the error function, computed by Python's math module one element at a time."""
    x = np.asarray(x)
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.result_type(x, np.float16))


def normal_below(x: Any) -> Any:
    """Return the probability that a standard normal variable is below x."""
    return (1 + erf_of(x * math.sqrt(0.5))) / 2


def bell(x: Any) -> Any:
    """Return exp(-x^2 / 2) / sqrt(2 pi), the density of the standard normal distribution."""
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def softmax_of(v: np.ndarray, axis: Any) -> np.ndarray:
    """Return exp(v) / sum(exp(v)), shifted so that the largest exponential is 1."""
    e = np.exp(v - np.max(v, axis=axis, keepdims=True, initial=-np.inf))
    return e / np.add.reduce(e, axis, keepdims=True)


def squares_stay_finite(d: np.ndarray) -> bool:
    """Return whether d * d and 1 / (d * d) stay in the range of floats."""
    info = np.finfo(d.dtype)
    return bool(d.min() > float(info.tiny) ** 0.5 and d.max() < float(info.max) ** 0.5)
