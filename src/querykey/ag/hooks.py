"""The three places where `extras` may change how the engine works.

Every hook has a default with which the engine is complete, and no file of the engine knows what
`querykey.ag.extras.install` puts in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


class Watch:
    """Notices when an array that `.data` has handed out is changed; this one notices nothing."""

    def __init__(self) -> None:
        self.lent: dict[int, Any] = {}  # the Tensors whose arrays are outside, by id

    def lend(self, tensor: Any) -> np.ndarray:
        """Return the array of a Tensor to a caller who may write to it."""
        return tensor._data

    def look(self, tensors: Iterable[Any]) -> None:
        """Call `touch` on those of the Tensors whose arrays were changed."""

    def close(self) -> None:
        """Look at every array for the last time, because a backward walk begins."""


def no_small_gradient(g: np.ndarray, index: tuple, shape: tuple[int, ...]) -> Any:
    """Return None: the gradient of `x[index]` is an array of zeros with `g` in its place."""
    return None


class Hooks:
    """What the engine asks its extras.

    `small_gradient` may return something smaller than an array of zeros with `g` at `index`. That
    object has `shape`, `base` and `dtype`, adds itself to arrays, becomes one through `np.array`,
    and its `pulled(pull, saved, shape)` returns what `pull(g, *saved)` returns for the array.
    """

    small_gradient: Callable[..., Any] = staticmethod(no_small_gradient)
    watch: Watch = Watch()
    namespace: Any = None  # what `__array_namespace__` returns: a module of the array API


hooks = Hooks()
