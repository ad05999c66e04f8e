"""Models that take one number of tokens and no other, and answer at each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from querykey.laws.run import PLAIN
from querykey.laws.understanding.copies import ModelCopies
from querykey.laws.understanding.outputs import Path, Slot, answers
from querykey.laws.understanding.signature import LENGTHS, CallSignature
from querykey.targets import Input

FEWEST = 2  # tokens of which one can be changed while another stays
ROWS = (2, 3)  # so many are run, to see which axis of an output follows them


def with_its_one_length(copies: ModelCopies, signature: CallSignature) -> CallSignature:
    """Return a signature that names the length by which some output has an answer for every token.

    Where there is none, the signature is returned as it is. Features are taken for tokens only
    where the owner says that they are: a forecast may be as long as what it is made from.
    """
    told = copies.subject.causal is not None
    kinds = ("tokens", "features") if told else ("tokens",)
    mains = [e for e in signature.inputs if e.kind in kinds and _length(e)]
    if signature.axis or not mains:
        return signature
    shapes = [_shapes(copies, signature, rows) for rows in ROWS]
    for main in reversed(mains):  # an encoder-decoder answers at the last one's positions
        slots = list(_slots(shapes, _length(main)))
        if slots:
            return _named(signature, main, slots[0])
    return signature


def _length(entry: Input) -> int:
    """Return how many tokens an input has where that is fixed, or 0."""
    axes = entry.axes[: 2 if entry.kind in ("tokens", "mask") else -1]
    sizes = [axis for axis in axes if isinstance(axis, int)]
    fixed = "batch" in entry.axes and len(sizes) == 1 and sizes[0] >= FEWEST
    return sizes[0] if fixed else 0


def _shapes(
    copies: ModelCopies, signature: CallSignature, rows: int
) -> dict[Path, tuple[int, ...]]:
    """Return the shapes of everything that may be an answer, for so many rows."""
    inputs = signature.draw(rows, {}, 0, copies.dtype)
    copies.reset(PLAIN)
    with torch.no_grad():
        output = copies.call(inputs, PLAIN)
    return {path: tuple(tensor.shape) for path, tensor in answers(output)}


def _slots(shapes: list[dict[Path, tuple[int, ...]]], length: int) -> Iterator[Slot]:
    """Yield the outputs that have an answer for every row and token."""
    few, many = shapes
    for path, shape in few.items():
        other = many.get(path, ())
        grown = [axis for axis, size in enumerate(shape) if other[axis : axis + 1] != (size,)]
        if len(other) != len(shape) or len(grown) != 1:
            continue
        places = [axis for axis in range(len(shape) - 1) if shape[axis] == length]
        if (shape[0], other[0]) == (ROWS[0] * length, ROWS[1] * length) and len(shape) > 1:
            yield Slot(path, None, None, flat=True)
        elif other[grown[0]] == ROWS[1] and (rest := [a for a in places if a != grown[0]]):
            yield Slot(path, grown[0], rest[0])


def _named(signature: CallSignature, main: Input, slot: Slot) -> CallSignature:
    """Return the signature with the length of its main input, and of masks over it, named."""
    length, name = _length(main), next(iter(LENGTHS))

    def named(entry: Input) -> Input:
        if entry is not main and not (entry.kind == "mask" and _length(entry) == length):
            return entry
        place = entry.axes.index(length)
        return replace(entry, axes=(*entry.axes[:place], name, *entry.axes[place + 1 :]))

    inputs = tuple(named(entry) for entry in signature.inputs)
    return replace(signature, inputs=inputs, main=named(main), slot=slot, only=length)
