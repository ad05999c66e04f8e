"""Arrays lent out through `.data`, and whether they came back changed.

`w.data[0] = 5` is NumPy's business and tells nobody. So a lent array's checksum is taken when it is
lent, and compared whenever an operation reads the Tensor and when backward begins, which ends the
loan. Whoever never asks for `.data` pays nothing.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

LENT: dict[int, tuple[weakref.ref, int]] = {}  # by id: Tensors compare element by element


def lend(tensor: Any) -> np.ndarray:
    """Return the Tensor's array, and remember how it looks."""
    look([tensor])
    key = id(tensor)
    LENT[key] = weakref.ref(tensor, lambda _: LENT.pop(key, None)), checksum(tensor._data)
    return tensor._data


def look(tensors: Iterable[Any]) -> None:
    """Tell every Tensor whose lent array was written to."""
    for tensor in tensors:
        loan = LENT.get(id(tensor))
        if loan is not None and loan[1] != checksum(tensor._data):
            LENT.pop(id(tensor), None)
            tensor.touch()
            lend(tensor)


def end_all_loans() -> None:
    """Look at every lent array for the last time."""
    tensors = [ref() for ref, _ in list(LENT.values())]
    look([tensor for tensor in tensors if tensor is not None])
    LENT.clear()


def checksum(array: np.ndarray) -> int:
    """Return a number that a changed element changes."""
    return zlib.crc32(array.tobytes())
