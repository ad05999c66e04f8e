"""The kinds of memory that hold keys and values: growing, and sliding for windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from querykey.attention.arrays import (
    Array,
    constant,
    device_of,
    index_library,
    is_array,
    library,
    namespace,
)
from querykey.attention.decoding.chunk import Chunk, along_tokens
from querykey.attention.masks import Causal, Mask, Padding
from querykey.attention.mechanisms import Mechanism, Similarity, Softmax
from querykey.attention.positions import Bias

Attend = Callable[..., Array]
# (kernel, q, k, v, outer, total, real) -> (out, outer, total): what `Recurrent.extended` computes.
Recur = Callable[..., tuple[Array, Array, Array]]


@dataclass(frozen=True)
class Ways:
    """How the work is done: by the equation, or by something faster that gives the same."""

    attend: Attend
    recur: Recur | None = None


@dataclass(frozen=True)
class Memory:
    """What is remembered, and in which sizes."""

    mechanism: Mechanism
    mask: Mask
    kv_heads: int
    key_dim: int
    value_dim: int
    # The mechanism, if it is softmax of everything so far: one more token needs no mask for that.
    plain: Softmax | None = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        plain = type(self.mask) is Causal and self.key_dim == self.value_dim
        if type(self.mechanism) is not Softmax or self.mechanism.softcap is not None:
            plain = False
        object.__setattr__(self, "plain", self.mechanism if plain else None)


@dataclass(frozen=True, eq=False)
class State:
    """What the tokens so far leave behind; `counts` says how many there were in each row."""

    memory: Memory
    counts: tuple[int, ...]

    @property
    def mechanism(self) -> Mechanism:
        """How scores become weights."""
        return self.memory.mechanism

    @property
    def mask(self) -> Mask:
        """Who may look at whom."""
        return self.memory.mask

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What the state holds on to; empty until the first tokens, unless `like` was given."""
        return ()

    @property
    def lengths(self) -> Array:
        """How many tokens each row has had, (batch,), beside the state's arrays."""
        xp, device = index_library(self.arrays[0] if self.arrays else None)
        return xp.asarray(np.asarray(self.counts, dtype=np.int64), device=device)

    @property
    def nbytes(self) -> int:
        """How much memory the state's arrays take, spare room included."""
        return sum(math.prod(array.shape) * array.dtype.itemsize for array in self.arrays)

    def select(self, rows: Sequence[int] | Array) -> State:
        """Return the state of the given rows, in that order, repeated where they are; a copy.

        Rows are numbers, or one boolean for each row there is.
        """
        chosen = row_numbers(rows, len(self.counts))
        counts = tuple(self.counts[row] for row in chosen)
        return self._selected(np.asarray(chosen, dtype=np.int64), counts)

    def _selected(self, rows: np.ndarray, counts: tuple[int, ...]) -> State:
        raise NotImplementedError

    def started(self, like: Array) -> State:
        """Return the state with its arrays made, in the library, dtype and device of `like`."""
        raise NotImplementedError

    def extended(self, new: Chunk, bias: Bias | None, ways: Ways) -> tuple[Array, State]:
        """Return the outputs of the chunk's queries, and the state after it."""
        raise NotImplementedError

    def _after(self, new: Chunk) -> tuple[int, ...]:
        return tuple(old + more for old, more in zip(self.counts, new.counts, strict=True))


class Room:
    """Arrays with spare room at the end, into which only their newest owner may write."""

    def __init__(self, keys: Array, values: Array, writable: bool):
        self.keys, self.values, self.writable = keys, values, writable
        self.owner: object = None

    @property
    def capacity(self) -> int:
        """How many tokens fit."""
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

    def extended(self, new: Chunk, bias: Bias | None, ways: Ways) -> tuple[Array, State]:
        """Write the new keys and values behind the old, then attend to all of them."""
        counts = self._after(new)
        longest = max(counts, default=0)
        if _must_copy(new.q, new.k, new.v, *self.arrays) or self._may_learn(bias):
            room, owner = self._joined(new, counts), object()
        else:
            room, owner = self._written(new, longest)
        after = replace(self, counts=counts, room=room, owner=owner)
        mask, start = self.mask, self.counts[0] if self.counts else 0
        if not (_even(self.counts) and new.even):
            start = self.lengths
            if mask.settles > 0:  # else no query looks past its own row's end
                mask = mask & Padding(constant(_first(counts, longest), new.q))
        keys, values = room.keys[:, :, :longest, :], room.values[:, :, :longest, :]
        options = {"mechanism": self.mechanism, "mask": mask, "bias": bias, "start": start}
        return ways.attend(new.q, keys, values, **options), after

    def _may_learn(self, bias: Bias | None) -> bool:
        """Whether what is read may be needed for the gradient of something not among q, k, v."""
        learning = bias is not None or isinstance(self.mechanism, Similarity)
        return learning and library(self.arrays[0]) == "torch" and _gradients_are_kept()

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
        if not (_even(self.counts) and new.even):
            before, place = np.asarray(self.counts)[:, None], np.arange(longest)
            order = np.where(place < before, place, held - before + place)
            order = np.minimum(order, held + new.tokens - 1)
            keep = constant(_first(counts, longest)[:, None, :, None], new.k)
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
        if _must_copy(*chosen):
            return replace(selected, room=Room(*chosen, writable=False))
        room = selected._new_room(chosen[0], self.room.capacity)
        _place(room, counts, *chosen, at=(0,) * len(counts))
        return replace(selected, room=room)


@dataclass(frozen=True, eq=False)
class Sliding(State):
    """The keys and values that the mask can still reach, the newest last: constant memory."""

    keys: Array = None  # (batch, kv_heads, reach, key_dim)
    values: Array = None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The keys and the values."""
        return () if self.keys is None else (self.keys, self.values)

    def started(self, like: Array) -> Sliding:
        """Return the state with `reach` empty places."""
        xp, outer = namespace(like), (len(self.counts), self.memory.kv_heads, int(self.mask.reach))
        keys, values = (
            xp.zeros((*outer, width), dtype=like.dtype, device=device_of(like))
            for width in (self.memory.key_dim, self.memory.value_dim)
        )
        return replace(self, keys=keys, values=values)

    def extended(self, new: Chunk, bias: Bias | None, ways: Ways) -> tuple[Array, State]:
        """Attend to what is kept and what is new, then keep the newest.

        Positions are counted from the first key given to attend: the mask asks for distances alone.
        """
        xp, reach = namespace(new.k), int(self.mask.reach)
        held = tuple(min(count, reach) for count in self.counts)
        lead = max(held, default=0)
        keys, values = (
            xp.concat([old[:, :, reach - lead :, :], more], axis=2)
            for old, more in ((self.keys, new.k), (self.values, new.v))
        )
        mask = self.mask
        if not (_even(held) and new.even):
            ends = _first([lead + n for n in new.counts], lead + new.tokens)
            begins = _first([lead - n for n in held], lead + new.tokens)
            mask = mask & Padding(constant(ends & ~begins, new.q))
        options = {"mechanism": self.mechanism, "mask": mask, "bias": bias, "start": lead}
        out = ways.attend(new.q, keys, values, **options)
        newest = np.asarray(new.counts, dtype=np.int64)[:, None] + np.arange(reach)
        kept = (
            along_tokens(xp.concat([old, more], axis=2), newest)
            for old, more in ((self.keys, new.k), (self.values, new.v))
        )
        return out, Sliding(self.memory, self._after(new), *kept)

    def _selected(self, rows: np.ndarray, counts: tuple[int, ...]) -> State:
        return Sliding(self.memory, counts, *(chosen_rows(x, rows) for x in self.arrays))


def _must_copy(*arrays: Array) -> bool:
    """Whether writing in place would be impossible, or would pull the rug from under a gradient."""
    if library(arrays[0]) != "torch":
        return library(arrays[0]) != "numpy"
    import torch

    if any(x.is_inference() for x in arrays) and not torch.is_inference_mode_enabled():
        return True
    return _gradients_are_kept() and any(array.requires_grad for array in arrays)


def _gradients_are_kept() -> bool:
    import torch

    return torch.is_grad_enabled()


def _place(
    room: Room, counts: Sequence[int], keys: Array, values: Array, at: Sequence[int]
) -> None:
    """Write the first counts[b] tokens of every row b into the room, from place at[b] on."""
    if _even(counts) and _even(at):
        count, first = (counts[0], at[0]) if counts else (0, 0)
        room.keys[:, :, first : first + count, :] = keys[:, :, :count, :]
        room.values[:, :, first : first + count, :] = values[:, :, :count, :]
        return
    row, source = np.nonzero(_first(counts, max(counts)))
    target = source + np.asarray(at)[row]
    row, source, target = (constant(index, keys) for index in (row, source, target))
    room.keys[row, :, target] = keys[row, :, source]
    room.values[row, :, target] = values[row, :, source]


def _even(counts: Sequence[int]) -> bool:
    return len(set(counts)) < 2


def _first(counts: Sequence[int], width: int) -> np.ndarray:
    """Return (rows, width) booleans, True for the first counts[b] places of row b."""
    return np.arange(width) < np.asarray(counts, dtype=np.int64)[:, None]


def row_numbers(rows: Sequence[int] | Array, count: int) -> list[int]:
    """Return the numbers of rows that are given by number, or by a boolean for each of `count`."""
    given = cast(Any, rows).tolist() if is_array(rows) else [*rows]
    if given and all(isinstance(row, bool) for row in given):
        if len(given) != count:
            raise ValueError(f"there are {count} rows, and {len(given)} booleans to choose them")
        return [number for number, wanted in enumerate(given) if wanted]
    for row in given:
        if not hasattr(row, "__index__"):
            raise TypeError(f"rows are chosen by their numbers, or by booleans; got {row!r}")
        if not -count <= row < count:
            raise IndexError(f"there is no row {row}, there are {count}")
    return [int(row) % count for row in given]


def chosen_rows(array: Array, rows: np.ndarray) -> Array:
    """Return a copy of the given rows of the batch."""
    return namespace(array).take(array, constant(rows, array), axis=0)
