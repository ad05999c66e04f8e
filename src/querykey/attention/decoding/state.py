"""What a state of decoding is: the tokens so far, in the least that later queries need.

A state is a value. For a chunk of new tokens it says what their queries attend to, and what the
state is afterwards; it computes no attention itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from querykey.attention.arrays import Array, constant, index_library, is_array, namespace
from querykey.attention.decoding.chunk import Chunk, chunk
from querykey.attention.inputs import check_takes_decay
from querykey.attention.masks import Mask
from querykey.attention.mechanisms import Mechanism
from querykey.errors import QuerykeyError, WrongIndexError, WrongTypeError


@dataclass(frozen=True)
class Memory:
    """What is remembered, and in which sizes."""

    mechanism: Mechanism
    mask: Mask
    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class Reading:
    """What the queries of a chunk attend to: the arguments of `attend` beside q and the bias."""

    keys: Array
    values: Array
    mask: Mask
    start: Any  # the position of the first query among these keys, or one for each row


@dataclass(frozen=True, eq=False)
class State:
    """What the tokens so far leave behind; `counts` says how many there were in each row."""

    memory: Memory
    counts: tuple[int, ...]

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism that the state was made for."""
        return self.memory.mechanism

    @property
    def mask(self) -> Mask:
        """The rule that says who may look at whom."""
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
        """Return a copy of the state with these rows, in this order, repeated where they are.

        Rows are numbers, or one boolean for each row there is.
        """
        numbers = row_numbers(rows, len(self.counts))
        counts = tuple(self.counts[row] for row in numbers)
        return self._selected(np.asarray(numbers, dtype=np.int64), counts)

    def started(self, like: Array) -> State:
        """Return the state with its arrays made, in the library, dtype and device of `like`."""
        raise NotImplementedError

    def chunk(
        self, q: Array, k: Array, v: Array, real: Any = None, decay: Array | None = None
    ) -> Chunk:
        """Return new tokens as a chunk that may follow this state, or say why it may not."""
        if decay is not None:
            check_takes_decay(self.mechanism, self.mask)
        new = chunk(q, k, v, real, decay)
        if self.mask.settles:
            self._check_settled(new)
        return new

    def reading(self, new: Chunk, learning: bool = False) -> tuple[Reading, State]:
        """Return what the chunk's queries attend to, and the state after the chunk.

        With `learning`, something else than q, k and v (a bias, say) may want a gradient.
        """
        raise NotImplementedError

    def _selected(self, rows: np.ndarray, counts: tuple[int, ...]) -> State:
        raise NotImplementedError

    def _check_settled(self, new: Chunk) -> None:
        for row, (old, more) in enumerate(zip(self.counts, new.counts, strict=True)):
            if more and 0 < old < self.mask.settles:
                raise QuerykeyError(
                    f"under {self.mask}, every query sees the first {self.mask.settles} keys, so "
                    f"these must come in one piece; row {row} stopped after {old}"
                )

    def _counts_after(self, new: Chunk) -> tuple[int, ...]:
        return tuple(old + more for old, more in zip(self.counts, new.counts, strict=True))


def row_numbers(rows: Sequence[int] | Array, count: int) -> list[int]:
    """Return the numbers of rows that are given by number, or by a boolean for each of `count`."""
    if not (is_array(rows) or isinstance(rows, Iterable)):
        raise WrongTypeError(f"rows are chosen by their numbers, or by booleans; got {rows!r}")
    chosen = cast(Any, rows).tolist() if is_array(rows) else [*rows]
    if chosen and all(isinstance(row, bool) for row in chosen):
        if len(chosen) != count:
            raise QuerykeyError(
                f"there are {count} rows, and {len(chosen)} booleans to choose them"
            )
        return [number for number, wanted in enumerate(chosen) if wanted]
    for row in chosen:
        if is_array(row) or not hasattr(row, "__index__"):
            raise WrongTypeError(f"rows are chosen by their numbers, or by booleans; got {row!r}")
        if not -count <= row < count:
            raise WrongIndexError(f"there is no row {row}, there are {count}")
    return [int(row) % count for row in chosen]


def chosen_rows(array: Array, rows: np.ndarray) -> Array:
    """Return a copy of these rows of the batch."""
    return namespace(array).take(array, constant(rows, array), axis=0)
