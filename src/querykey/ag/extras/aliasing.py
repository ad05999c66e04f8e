"""A watch on arrays that were handed out through `.data`, and may have been changed since.

`w.data[0] = 5` is NumPy's business and tells nobody. So the checksum of an array is taken when
`.data` hands it out, and is compared whenever an operation reads the Tensor, and when backward
begins, which ends the watch. Who never asks for `.data` pays nothing.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from querykey.ag.hooks import Watch


class ChecksumWatch(Watch):
    """Notices by checksums which of the arrays that are outside were changed."""

    lent: dict[int, tuple[weakref.ref, int]]  # by id, because Tensors compare by element

    def lend(self, tensor: Any) -> np.ndarray:
        """Return the Tensor's array, and remember its checksum."""
        self.look([tensor])
        key, lent = id(tensor), self.lent
        lent[key] = weakref.ref(tensor, lambda _: lent.pop(key, None)), checksum(tensor._data)
        return tensor._data

    def look(self, tensors: Iterable[Any]) -> None:
        """Call `touch` on those of the Tensors whose arrays were changed."""
        for tensor in tensors:
            loan = self.lent.get(id(tensor))
            if loan is not None and loan[1] != checksum(tensor._data):
                self.lent.pop(id(tensor), None)
                tensor.touch()
                self.lend(tensor)

    def close(self) -> None:
        """Look at every array for the last time, because a backward walk begins."""
        tensors = [reference() for reference, _ in list(self.lent.values())]
        self.look([tensor for tensor in tensors if tensor is not None])
        self.lent.clear()


def checksum(array: np.ndarray) -> int:
    """Return a number that changes when an element does."""
    return zlib.crc32(array.tobytes())
