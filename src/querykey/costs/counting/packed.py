"""Tell models of Hugging Face that no row holds several sequences, one after the other.

Without a cache they look for that in the values of their positions, and where there are no values
they make a mask for the worst case. Positions that a model counted out itself never start again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from querykey.costs.private import storage_key

MODULE, FUNCTION = "transformers.masking_utils", "find_packed_sequence_indices"


@contextmanager
def no_packed_sequences(inputs: Iterable[torch.Tensor]) -> Iterator[None]:
    """Let the model find none, unless its positions are an input, whose values are not known."""
    masks: Any = sys.modules.get(MODULE)
    find = getattr(masks, FUNCTION, None)
    if find is None:
        yield
        return
    known = {storage_key(tensor) for tensor in inputs}

    def found(position_ids: torch.Tensor) -> Any:
        return find(position_ids) if storage_key(position_ids) in known else None

    setattr(masks, FUNCTION, found)
    try:
        yield
    finally:
        setattr(masks, FUNCTION, find)
