"""The keys and values that a causal window can still reach: constant memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from querykey.attention.arrays import Array, constant, device_of, namespace
from querykey.attention.decoding.chunk import Chunk, along_tokens, even, first_places
from querykey.attention.decoding.state import Reading, State, chosen_rows
from querykey.attention.masks import Padding


@dataclass(frozen=True, eq=False)
class Sliding(State):
    """The keys and values that the mask can still reach, the newest last: constant memory."""

    keys: Array = None  # (batch, kv_heads, reach, key_dim)
    values: Array = None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The keys and values that are kept, or nothing before the first tokens."""
        return () if self.keys is None else (self.keys, self.values)

    def started(self, like: Array) -> Sliding:
        """Return the state with `reach` empty places."""
        xp, outer = namespace(like), (len(self.counts), self.memory.kv_heads, int(self.mask.reach))
        keys, values = (
            xp.zeros((*outer, width), dtype=like.dtype, device=device_of(like))
            for width in (self.memory.key_dim, self.memory.value_dim)
        )
        return replace(self, keys=keys, values=values)

    def reading(self, new: Chunk, learning: bool = False) -> tuple[Reading, Sliding]:
        """Let queries attend to what is kept and what is new, then keep the newest.

        Positions are counted from the first of these keys: the mask asks for distances alone.
        """
        xp, reach = namespace(new.k), int(self.mask.reach)
        held = tuple(min(count, reach) for count in self.counts)
        lead = max(held, default=0)
        keys, values = (
            xp.concat([old[:, :, reach - lead :, :], more], axis=2)
            for old, more in ((self.keys, new.k), (self.values, new.v))
        )
        mask = self.mask
        if not (even(held) and new.even):
            ends = first_places([lead + n for n in new.counts], lead + new.tokens)
            begins = first_places([lead - n for n in held], lead + new.tokens)
            mask = mask & Padding(constant(ends & ~begins, new.q))
        newest = np.asarray(new.counts, dtype=np.int64)[:, None] + np.arange(reach)
        kept = (
            along_tokens(xp.concat([old, more], axis=2), newest)
            for old, more in ((self.keys, new.k), (self.values, new.v))
        )
        after = Sliding(self.memory, self._counts_after(new), *kept)
        return Reading(keys, values, mask, start=lead), after

    def _selected(self, rows: np.ndarray, counts: tuple[int, ...]) -> State:
        return Sliding(self.memory, counts, *(chosen_rows(x, rows) for x in self.arrays))
