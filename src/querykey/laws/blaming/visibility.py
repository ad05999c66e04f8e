"""Does a mask that was handed to a module hide what the law says must be hidden?"""

from __future__ import annotations

import torch

from querykey.laws.runner import Specimen
from querykey.laws.trial import Run


def hides_enough(specimen: Specimen, run: Run, tensor: torch.Tensor) -> bool | None:
    """True or False for a mask over (queries, keys); None for any other tensor.

    What is visible is written in many ways (True or False, 0 or 1, 0 or a large negative number),
    but a query's own key is always visible, so what looks like it is visible too.
    """
    if not specimen.anatomy.axis or tensor.dim() not in (2, 3, 4):
        return None
    length, batch = specimen.length_of(run.inputs), specimen.batch_of(run.inputs)
    queries, keys = tensor.shape[-2:]
    if not queries <= keys <= length or keys < 4 or (tensor.dim() == 2 and queries != keys):
        return None
    ends = _ends(run, length)
    if keys not in ends or queries not in (1, keys, *([] if run.chunks is None else run.chunks)):
        return None
    if tensor.dim() > 2 and tensor.shape[0] not in (1, batch):
        return None
    if not _is_mask(tensor):
        return None
    rows = 1 if tensor.dim() == 2 else tensor.shape[0]
    mask = tensor.reshape(rows, -1, queries, keys)[:, 0]
    count = keys if run.chunks is None else ends[keys]
    mask = mask.expand(-1, count, -1) if queries == 1 else mask
    if mask.shape[1] != count:
        return None
    own = mask.diagonal(keys - count, 1, 2).unsqueeze(-1)
    forbidden = _forbidden(specimen, run, count, keys).expand(batch, -1, -1)
    visible = (mask == own).expand(batch, -1, -1)
    return not bool((visible & forbidden).any())


def differing_masks(whole: list[torch.Tensor], chunk: list[torch.Tensor]) -> list[torch.Tensor]:
    """Masks handed in with a chunk that differ from the same rows of the whole's mask."""
    found = []
    for first, second in zip(whole, chunk, strict=False):
        if first.dim() != second.dim() or first.dim() not in (2, 3, 4) or not _is_mask(first):
            continue
        (length, width), (queries, keys) = first.shape[-2:], second.shape[-2:]
        if length != width or not queries <= keys <= length or first.dtype != second.dtype:
            continue
        rows = first[..., keys - queries : keys, :keys]
        if rows.shape == second.shape and not torch.equal(rows, second):
            found.append(second)
    return found


def _is_mask(tensor: torch.Tensor) -> bool:
    """Switches, zeros and ones, or zeros and large negative numbers."""
    if tensor.dtype is torch.bool:
        return True
    low, high = float(tensor.min()), float(tensor.max())
    two = bool(((tensor == low) | (tensor == high)).all())
    return two and ((low, high) in ((0, 1), (0, 0), (1, 1)) or (high == 0 and low < -1e3))


def _ends(run: Run, length: int) -> dict[int, int]:
    """How many tokens there are after each chunk, and how many of them are new."""
    ends, past = {}, 0
    for size in run.chunks or (length,):
        past += size
        ends[past] = size
    return ends


def _forbidden(specimen: Specimen, run: Run, queries: int, keys: int) -> torch.Tensor:
    """Later keys for the causal, and padding for queries that are real: (batch, queries, keys)."""
    query = torch.arange(keys - queries, keys)[:, None]
    key = torch.arange(keys)[None]
    none = torch.zeros(1, queries, keys, dtype=torch.bool)
    hidden = none | ((key > query)[None] if specimen.causal else none)
    for mask in specimen.mask_for(specimen.anatomy.axis):
        if mask.name in run.inputs:
            real = run.inputs[mask.name][:, :keys].bool() ^ mask.hides
            # What a query that is padding sees is nobody's matter.
            hidden = (hidden | ~real[:, None, :]) & real[:, keys - queries :, None]
    return hidden
