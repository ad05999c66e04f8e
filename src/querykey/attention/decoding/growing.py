"""Every key and value so far, with spare room behind them: what most masks and mechanisms need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from querykey.attention.arrays import Array, constant, device_of, library, namespace
from querykey.attention.decoding.chunk import Chunk, along_tokens, even, first_places
from querykey.attention.decoding.state import Reading, State, chosen_rows
from querykey.attention.masks import Padding


class Room:
    """Arrays with spare room at the end, into which only their newest owner may write."""

    def __init__(self, keys: Array, values: Array, writable: bool):
        self.keys, self.values, self.writable = keys, values, writable
        self.owner: object = None

    @property
    def capacity(self) -> int:
        """How many tokens of every row fit into the arrays."""
        return self.keys.shape[2]


@dataclass(frozen=True, eq=False)
class Growing(State):
    """Every key and value so far, token n of a row at place n."""

    capacity: int = 0
    room: Room | None = None
    owner: object = field(default_factory=object)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Keys (batch, kv_heads, capacity, key_dim) and values."""
        return () if self.room is None else (self.room.keys, self.room.values)

    def started(self, like: Array) -> Growing:
        """Return the state with room for `capacity` tokens."""
        return replace(self, room=self._new_room(like, self.capacity))

    def reading(self, new: Chunk, learning: bool = False) -> tuple[Reading, Growing]:
        """Write the new keys and values behind the old: queries attend to all of them."""
        counts = self._counts_after(new)
        longest = max(counts, default=0)
        learning = learning or self.mechanism.may_learn
        if _must_copy(learning, new.q, new.k, new.v, *self.arrays):
            room, owner = self._joined(new, counts), object()
        else:
            room, owner = self._written(new, longest)
        after = replace(self, counts=counts, room=room, owner=owner)
        mask, start = self.mask, self.counts[0] if self.counts else 0
        if not (even(self.counts) and new.even):
            start = self.lengths
            if mask.settles > 0:  # else no query looks past its own row's end
                mask = mask & Padding(constant(first_places(counts, longest), new.q))
        keys, values = room.keys[:, :, :longest, :], room.values[:, :, :longest, :]
        return Reading(keys, values, mask, start), after

    def _new_room(self, like: Array, capacity: int) -> Room:
        xp, outer = namespace(like), (len(self.counts), self.memory.kv_heads, capacity)
        keys, values = (
            xp.zeros((*outer, width), dtype=like.dtype, device=device_of(like))
            for width in (self.memory.key_dim, self.memory.value_dim)
        )
        room = Room(keys, values, writable=library(like) in ("numpy", "torch"))
        room.owner = self.owner
        return room

    def _written(self, new: Chunk, longest: int) -> tuple[Room, object]:
        """Write into spare room if it is ours to write into, else into a copy with more room."""
        room = cast(Room, self.room)
        if room.owner is not self.owner or not room.writable or room.capacity < longest:
            more = 2 * room.capacity if room.capacity < longest else room.capacity
            copy = self._new_room(room.keys, max(longest, more))
            _place(copy, self.counts, room.keys, room.values, at=(0,) * len(self.counts))
            room = copy
        _place(room, new.counts, new.k, new.v, at=self.counts)
        room.owner = object()
        return room, room.owner

    def _joined(self, new: Chunk, counts: tuple[int, ...]) -> Room:
        """Join old and new in new arrays, through which gradients flow."""
        room = cast(Room, self.room)
        held = max(self.counts, default=0)
        xp, longest = namespace(new.k), max(counts, default=0)
        keys, values = (
            xp.concat([old[:, :, :held, :], more], axis=2)
            for old, more in ((room.keys, new.k), (room.values, new.v))
        )
        if not (even(self.counts) and new.even):
            before, place = np.asarray(self.counts)[:, None], np.arange(longest)
            order = np.where(place < before, place, held - before + place)
            order = np.minimum(order, held + new.tokens - 1)
            keep = constant(first_places(counts, longest)[:, None, :, None], new.k)
            keys, values = (
                xp.where(keep, x, xp.zeros_like(x))
                for x in (along_tokens(keys, order), along_tokens(values, order))
            )
        return Room(keys, values, writable=False)

    def _selected(self, rows: np.ndarray, counts: tuple[int, ...]) -> State:
        selected = replace(self, counts=counts, owner=object())
        if self.room is None:
            return selected
        chosen = [chosen_rows(array, rows) for array in self.arrays]
        if _must_copy(False, *chosen):
            return replace(selected, room=Room(*chosen, writable=False))
        room = selected._new_room(chosen[0], self.room.capacity)
        _place(room, counts, *chosen, at=(0,) * len(counts))
        return replace(selected, room=room)


def _must_copy(learning: bool, *arrays: Array) -> bool:
    """Whether writing in place is impossible, or would change what a gradient has yet to read."""
    if library(arrays[0]) != "torch":
        return library(arrays[0]) != "numpy"
    import torch

    if any(array.is_inference() for array in arrays) and not torch.is_inference_mode_enabled():
        return True
    return torch.is_grad_enabled() and (learning or any(array.requires_grad for array in arrays))


def _place(
    room: Room, counts: Sequence[int], keys: Array, values: Array, at: Sequence[int]
) -> None:
    """Write the first counts[b] tokens of every row b into the room, from place at[b] on."""
    if even(counts) and even(at):
        count, first = (counts[0], at[0]) if counts else (0, 0)
        room.keys[:, :, first : first + count, :] = keys[:, :, :count, :]
        room.values[:, :, first : first + count, :] = values[:, :, :count, :]
        return
    row, source = np.nonzero(first_places(counts, max(counts)))
    target = source + np.asarray(at)[row]
    row, source, target = (constant(index, keys) for index in (row, source, target))
    room.keys[row, :, target] = keys[row, :, source]
    room.values[row, :, target] = values[row, :, source]
