"""What a forward returned, as named tensors, and which of their axes are batch and positions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch

Path = tuple[str | int, ...]

# What is returned beside an answer: caches, weights of attention, losses.
ASIDE = re.compile(
    r"past|cache|(?<!last_hidden_)states?$|mems|attention|loss|bucket|router|^encoder_", re.I
)


@dataclass(frozen=True)
class Slot:
    """One tensor of an output: where it is found, and which axes are batch and positions."""

    path: Path
    batch: int | None
    seq: int | None  # None: one answer for the whole sequence
    flat: bool = False  # batch and positions are one axis, the first

    def __str__(self) -> str:
        return "".join(f".{p}" if isinstance(p, str) else f"[{p}]" for p in self.path)

    def take(self, output: Any, batch: int) -> torch.Tensor:
        """Return the tensor as (batch, positions, rest), or (batch, rest) without positions.

        One number for each of them is a rest of one.
        """
        tensor = follow(output, self.path)
        if not isinstance(tensor, torch.Tensor):  # a switch put it into a container
            tensor = next(part for _, part in answers(tensor))
        if self.flat:
            return _with_rest(tensor.reshape(batch, -1, *tensor.shape[1:]), 2)
        front = [axis for axis in (self.batch, self.seq) if axis is not None]
        tensor = tensor.movedim(front, list(range(len(front))))
        if self.batch is None:
            tensor = tensor.unsqueeze(0)
        return _with_rest(tensor, 1 if self.seq is None else 2)


def _with_rest(tensor: torch.Tensor, keep: int) -> torch.Tensor:
    """Return a tensor whose axes after the first `keep` are one axis."""
    return tensor.unsqueeze(-1) if tensor.dim() == keep else tensor.flatten(keep)


def children(value: Any) -> Iterator[tuple[str | int, Any]]:
    """Yield the named parts of an output that is a container; nothing for any other object."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, tuple) and (names := getattr(value, "_fields", None)):
        yield from zip(names, value, strict=True)
    elif isinstance(value, tuple | list):
        yield from enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((f.name, getattr(value, f.name)) for f in fields(value))


def tensors(value: Any, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield every tensor in an output with its place, in the output's own order."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif len(path) < 6:
        for key, child in children(value):
            yield from tensors(child, (*path, key))


def answers(output: Any) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield the floating tensors that may be the model's answer; no cache, weights or loss."""
    for path, tensor in tensors(output):
        aside = any(isinstance(part, str) and ASIDE.search(part) for part in path)
        if tensor.is_floating_point() and tensor.dim() > 0 and not (aside and len(path) > 0):
            yield path, tensor


def follow(output: Any, path: Path) -> Any:
    """Return the part of an output at this place."""
    for key in path:
        if isinstance(output, torch.Tensor):  # a switch left only the tensor
            break
        if isinstance(output, Mapping) or isinstance(key, int):
            output = output[key]
        else:
            output = getattr(output, key)
    return output


def locate(shapes: list[dict[Path, tuple[int, ...]]], sizes: list[tuple[int, int]]) -> list[Slot]:
    """Return the tensors whose axes follow batch and positions, seen by varying one at a time.

    Three runs: the base, one with a larger batch, one with more positions.
    """
    slots = []
    for path, base in shapes[0].items():
        others = [run[path] for run in shapes[1:] if path in run]
        if len(others) < 2 or any(len(other) != len(base) for other in others):
            continue
        if all(s[0] == b * t for s, (b, t) in zip([base, *others], sizes, strict=True)):
            slots.append(Slot(path, None, None, flat=True))
            continue
        wide, long = others
        batch = [a for a in range(len(base)) if wide[a] - base[a] == sizes[1][0] - sizes[0][0]]
        grow = sizes[2][1] - sizes[0][1]
        moved = [a for a in range(len(base)) if long[a] != base[a]]
        seq = [a for a in moved if long[a] - base[a] == grow]
        if len(moved) > 1 or len(seq) != len(moved) or len(batch) > 1:
            continue  # attention maps, pooled or strided positions: no answer per position
        if seq and base[seq[0]] < sizes[0][1]:
            continue  # which of the positions have no answer cannot be told
        slots.append(Slot(path, batch[0] if batch else None, seq[0] if seq else None))
    return slots
