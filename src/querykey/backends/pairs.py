"""A mask written out for torch, a block of queries at a time: never T x S booleans at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.attention import At, Call, Dense, Mask, places

PAIRS = 1 << 22  # booleans made at a time


@dataclass(frozen=True)
class QueryBlock:
    """The queries first to last - 1, with the keys low to high - 1 that they may reach."""

    first: int
    last: int
    low: int
    high: int


def per_query(mask: Mask) -> bool:
    """Whether queries can see different keys; if not, one row of booleans says it all."""
    return mask.uses_positions or any(isinstance(leaf, Dense) for leaf in mask.leaves)


def blocks(mask: Mask, call: Call, alike: bool) -> Iterator[QueryBlock]:
    """Cut the queries into blocks of few pairs; keys out of a block's reach are left out of it.

    Queries that are all `alike` need one row for all of them, so they stay together.
    """
    if alike or torch.compiler.is_exporting():  # what is exported serves any number of queries
        yield QueryBlock(0, call.queries, 0, call.keys)
        return
    size = max(1, min(call.queries, PAIRS // max(1, call.keys * math.prod(call.batch))))
    if mask.reach < call.keys:  # small blocks skip more, but each has its overhead
        size = min(size, max(int(mask.reach), 128))
    if not size < call.queries:  # no loop, for torch.compile would fix the number of its steps
        yield _block(mask, call, 0, call.queries)
        return
    for first in range(0, call.queries, size):
        yield _block(mask, call, first, min(first + size, call.queries))


def _block(mask: Mask, call: Call, first: int, last: int) -> QueryBlock:
    low, high = 0, call.keys
    if isinstance(call.start, int):
        if mask.reach != math.inf:
            low = min(max(0, call.start + first - int(mask.reach)), call.keys - 1)
        if mask.settles == 0:  # no key ahead of its query
            high = max(low + 1, min(call.keys, call.start + last))
    return QueryBlock(first, last, low, high)


def positions(call: Call, block: QueryBlock, device: torch.device) -> tuple[Any, Any, At]:
    """Return query positions, key positions and places of a block, as `Call.places` does."""
    query, key, at = places(
        torch, device, call.batch, call.heads, block.last - block.first, block.high - block.low,
        call.start,
    )  # fmt: skip
    return query + block.first, key + block.low, At(at.batch, at.head, at.row + block.first)


def visible(mask: Mask, call: Call, block: QueryBlock, device: torch.device) -> torch.Tensor:
    """Return the block's booleans, (batch, heads, queries, keys) with 1 where nothing differs."""
    query, key, at = positions(call, block, device)
    if not per_query(mask):
        query, at = query[..., :1, :], At(at.batch, at.head, at.row[..., :1, :])
    seen = mask.on(torch.empty(0, device=device)).visible_at(query, key, at)
    return joined_batch(seen.expand(torch.broadcast_shapes(seen.shape, key.shape)), call)


def joined_batch(pairs: torch.Tensor, call: Call) -> torch.Tensor:
    """Join the batch axes of (*batch, heads, T, S) into one, of size 1 where nothing differs."""
    if math.prod(pairs.shape[:-3]) != 1:
        pairs = pairs.expand(*call.batch, *pairs.shape[-3:])
    return pairs.reshape(-1, *pairs.shape[-3:])


def looked_at(mask: Mask, call: Call, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which queries see something, (batch, heads, T, 1), and which keys are seen.

    Every axis but the keys' is 1 where nothing differs along it.

    What is alone may hold anything, NaN too: backends put zeros there, since 0 * NaN is NaN.
    """
    alike = not per_query(mask)
    looking, seen = [], torch.zeros(1, 1, call.keys, dtype=torch.bool, device=device)
    for block in blocks(mask, call, alike):
        pairs = visible(mask, call, block, device)
        looking.append(pairs.any(dim=-1, keepdim=True))
        seen = seen | F.pad(pairs.any(dim=-2), (block.low, call.keys - block.high))
    if seen.shape[1] > 1:  # a key head is seen if one of its query heads looks
        seen = seen.unflatten(1, (call.kv_heads, -1)).any(dim=2)
    return torch.cat(looking, dim=2), seen[..., None]
