"""Functions of arrays that NumPy lacks, or has slower; they know nothing of Tensors."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

# The last 64, for nobody to write to: NumPy takes a number slower than an array of no axes. What is
# remembered is small, MOST numbers: they would otherwise stay as long as the process.
MOST = 4096
zeros, ones = functools.lru_cache(64)(np.zeros), functools.lru_cache(64)(np.ones)


def added(v: np.ndarray, axis: Any, keepdims: bool = False) -> Any:
    """The sum over axes; over the last but one, or over few numbers, a product is quicker."""
    plain = v.ndim > 1 and v.flags.c_contiguous and v.dtype.kind == "f"
    if plain and axis in (v.ndim - 2, -2) and v.shape[-2] <= MOST:
        y = ones((1, v.shape[-2]), v.dtype) @ v
        return y if keepdims else y[..., 0, :]
    if axis is None and not keepdims and v.size <= MOST and v.dtype.kind == "f":
        return v.ravel().dot(ones(v.size, v.dtype))
    return np.add.reduce(v, axis, keepdims=keepdims)


def relu_of(x: Any) -> Any:
    """x or 0, whichever is more; NumPy's loop over two rows is quicker than over a number."""
    x = np.asarray(x)
    row = x.shape[-1:] if x.size > MOST >= x.shape[-1] else ()
    return np.maximum(x, zeros(row, x.dtype))


def sigmoid_of(x: Any) -> Any:
    """1 / (1 + exp(-x)), from an exponential that cannot overflow."""
    e = np.exp(-np.abs(x))
    return np.where(np.greater_equal(x, 0), 1, e) / (1 + e)


def erf_of(x: Any) -> Any:
    """The error function from Python's own math, one element at a time."""
    x = np.asarray(x)
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.result_type(x, np.float16))


def normal_below(x: Any) -> Any:
    """The share of a normal distribution that lies below x."""
    return (1 + erf_of(x * math.sqrt(0.5))) / 2


def bell(x: Any) -> Any:
    """exp(-x^2 / 2) / sqrt(2 pi), its density."""
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
