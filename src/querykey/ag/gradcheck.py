"""A check of any derivative against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from querykey.ag.protocols import raw
from querykey.ag.tensor import Tensor, history
from querykey.errors import QuerykeyError, WrongTypeError


def gradcheck(
    function: Callable[..., Any],
    *inputs: Any,
    step: float = 1e-6,
    rtol: float = 1e-5,
    atol: float = 1e-7,
) -> float:
    """Compare backward with central differences; return the largest difference, or raise.

    The function takes Tensors and returns one of any shape. The inputs are Tensors or arrays, and
    are checked in float64; integers are not changed. A function with kinks (relu, max)
    agrees away from them only, so choose inputs that are not within `step` of one.
    """
    values = [np.array(raw(x)) for x in inputs]
    values = [v.astype(np.float64) if v.dtype.kind == "f" else v for v in values]
    for i, value in enumerate(values):
        if not np.isfinite(value).all():
            raise QuerykeyError(f"gradcheck compares at finite numbers; input {i} has others")
    out, tensors = run(function, values)
    if not np.isfinite(out._data).all():
        raise QuerykeyError(
            "the function is infinite or NaN at the inputs, where no difference is a derivative"
        )
    weights = np.random.default_rng(0).standard_normal(out.shape)
    walk_back(out, tensors, weights)
    worst = 0.0
    for i, (value, tensor) in enumerate(zip(values, tensors, strict=True)):
        if value.dtype.kind == "f":
            ours = np.zeros(value.shape) if tensor.grad is None else tensor.grad
            theirs = differences(function, values, i, weights, step)
            worst = max(worst, largest_gap(f"input {i}", ours, theirs, rtol, atol))
    return worst


def walk_back(out: Tensor, tensors: list[Tensor], weights: np.ndarray) -> None:
    """Give the inputs their gradients; other Tensors of the graph keep those that they have."""
    if not out.requires_grad:
        return
    order, leaves = history(out)
    others = [(tensor, tensor.grad) for tensor in {*order, *leaves} - set(tensors)]
    out.backward(weights)
    for tensor, grad in others:
        tensor.grad = grad


def largest_gap(name: str, ours: np.ndarray, theirs: np.ndarray, rtol: float, atol: float) -> float:
    """Return the largest difference of two gradients, or raise where one is beyond tolerance."""
    gap = np.abs(ours - theirs)
    bad = ~(gap <= atol + rtol * np.abs(theirs))
    if bad.any():
        place = tuple(int(n) for n in np.argwhere(bad)[0])
        raise AssertionError(
            f"the gradient of {name}, shape {ours.shape}, is wrong in {bad.sum()} of "
            f"{bad.size} places; at {place} backward says {ours[place]:.9g}, "
            f"differences say {theirs[place]:.9g}"
        )
    return float(gap.max(initial=0.0))


def run(function: Callable[..., Any], values: list[np.ndarray]) -> tuple[Tensor, list[Tensor]]:
    """Return the value of the function, and the Tensors that it was called with."""
    tensors = [Tensor(v) for v in values]
    out = function(*tensors)
    if not isinstance(out, Tensor):
        raise WrongTypeError(
            f"gradcheck needs a function that returns a Tensor, not {type(out).__name__}"
        )
    return out, tensors


def differences(
    function: Callable[..., Any], values: list[np.ndarray], i: int, weights: np.ndarray, step: float
) -> np.ndarray:
    """Return (f(x + h) - f(x - h)) / 2h for every element of the i-th input."""
    slopes = np.zeros(values[i].shape)
    for place in np.ndindex(values[i].shape):
        sides = []
        for h in (step, -step):
            moved = [v.copy() for v in values]
            moved[i][place] += h
            sides.append(np.asarray(run(function, moved)[0]._data, np.float64))
        slopes[place] = float(np.sum(weights * (sides[0] - sides[1]))) / (2 * step)
    return slopes
