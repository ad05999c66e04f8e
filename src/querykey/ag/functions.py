"""Functions made of primitives: their derivatives come for free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from querykey.ag.errors import misfit
from querykey.ag.primitives import (
    Axis,
    concatenate,
    getitem,
    permuted,
    primitive,
    reshape,
    swapped,
)
from querykey.ag.tensor import Tensor, raw


def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Axes at other places, the rest in their order."""
    try:
        if (source, destination) == (1, 2):
            return swapped(x, 1, 2)  # what attention writes most, without the detour below
        n = x.ndim if isinstance(x, Tensor) else np.ndim(x)
        froms, tos = normalize_axis_tuple(source, n), normalize_axis_tuple(destination, n)
        if len(froms) != len(tos):
            raise ValueError(f"{len(froms)} axes go to {len(tos)} places")
        order = [a for a in range(n) if a not in froms]
        for place, axis in sorted(zip(tos, froms, strict=True)):
            order.insert(place, axis)
    except (ValueError, IndexError) as error:
        raise misfit("moveaxis", error, (x,)) from None
    return permuted(x, order)


@primitive
def expand_dims(x: Any, axis: int | tuple[int, ...]) -> Tensor:
    """New axes of size one."""
    return reshape(x, np.expand_dims(raw(x), axis).shape)


@primitive
def squeeze(x: Any, axis: Axis = None) -> Tensor:
    """Without axes of size one."""
    return reshape(x, np.squeeze(raw(x), axis).shape)


@primitive
def swapaxes(x: Any, a: int, b: int) -> Tensor:
    """Two axes exchanged."""
    return swapped(x, a, b)


@primitive
def stack(xs: Sequence[Any], axis: int = 0) -> Tensor:
    """Arrays joined along a new axis."""
    return concatenate([expand_dims(x, axis) for x in xs], axis)


@primitive
def split(x: Any, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Equal parts along an axis, or the parts between the given places."""
    places = np.split(np.arange(np.shape(raw(x))[axis]), sections)
    lead = (slice(None),) * (axis % np.ndim(raw(x)))
    bounds = [slice(p[0], p[-1] + 1) if p.size else slice(0, 0) for p in places]
    return [getitem(x, (*lead, slice(int(b.start), int(b.stop)))) for b in bounds]


@primitive
def take(x: Any, indices: Any, axis: int | None = None) -> Tensor:
    """The elements, or the slices along an axis, at the indices."""
    places = np.asarray(raw(indices))
    places = places.astype(int) if places.dtype == bool or not places.size else places
    if axis is None:
        return getitem(reshape(x, -1), places)
    lead = (slice(None),) * normalize_axis_index(axis, np.ndim(raw(x)))
    return getitem(x, (*lead, places))


@primitive
def take_along_axis(x: Any, indices: Any, axis: int = -1) -> Tensor:
    """For each place its own index along one axis; the other axes broadcast."""
    along = np.asarray(raw(indices))
    sizes = list(np.shape(raw(x)))
    if along.ndim != len(sizes):
        raise ValueError(f"the indices have {along.ndim} axes and the array {len(sizes)}")
    sizes[axis] = 1
    grid: list[Any] = list(np.ix_(*[np.arange(n) for n in sizes]))
    grid[axis] = along
    return getitem(x, tuple(grid))
