"""Functions of arrays that NumPy lacks; they know nothing of Tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


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
