"""Functions with a derivative of their own, then those that are made of primitives."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from querykey.ag.errors import REFUSALS, misfit, primitive
from querykey.ag.primitives import Axis, Function, getitem, permuted, reshape, swapped
from querykey.ag.protocols import REAL, raw, refuse_kind
from querykey.ag.tensor import Tensor, record, shrink
from querykey.errors import QuerykeyError, WrongTypeError


@primitive
def where(condition: Any, a: Any, b: Any) -> Tensor:
    """Return a where the condition holds, and b elsewhere."""
    c = np.array(raw(condition), bool)  # a copy, which nobody changes before backward
    to_a, to_b = lambda g: np.where(c, g, 0), lambda g: np.where(c, 0, g)
    return record("where", np.where(c, raw(a), raw(b)), (a, to_a), (b, to_b))


@primitive
def clip(x: Any, low: Any = None, high: Any = None) -> Tensor:
    """Return x, or the bound that it is beyond; the gradient goes to whichever is returned."""
    v, lo, hi = raw(x), -np.inf if low is None else raw(low), np.inf if high is None else raw(high)
    y = v if low is None else np.maximum(v, lo)
    y = y if high is None else np.minimum(y, hi)
    to_x = lambda g: np.where((v >= lo) & (v <= hi), g, 0)  # noqa: E731
    to_low = lambda g: np.where((v < lo) & (lo <= hi), g, 0)  # noqa: E731
    to_high = lambda g: np.where((v > hi) | (lo > hi), g, 0)  # noqa: E731
    return record("clip", y, (x, to_x), (low, to_low), (high, to_high))


@primitive
def astype(x: Any, dtype: Any, copy: bool = True) -> Tensor:
    """Return x as another type; its gradient has x's own type."""
    y = np.asarray(raw(x)).astype(dtype, copy=copy)
    y = y if y.dtype.kind in REAL else refuse_kind(y)
    return record("astype", y, *([(x, lambda g: g)] if y.dtype.kind == "f" else []))


@primitive
def broadcast_to(x: Any, shape: Sequence[int]) -> Tensor:
    """Return x repeated to a shape."""
    return record("broadcast_to", np.broadcast_to(raw(x), shape), (x, lambda g: g))


@primitive
def tril(x: Any, k: int = 0) -> Tensor:
    """Return x with zeros above the k-th diagonal."""
    return record("tril", np.tril(raw(x), k), (x, lambda g: np.tril(g, k)))


@primitive
def triu(x: Any, k: int = 0) -> Tensor:
    """Return x with zeros below the k-th diagonal."""
    return record("triu", np.triu(raw(x), k), (x, lambda g: np.triu(g, k)))


@primitive
def concatenate(xs: Sequence[Any], axis: int = 0) -> Tensor:
    """Return arrays joined along an axis."""
    xs = list(xs)
    vs = [np.asarray(raw(x)) for x in xs]
    y = np.concatenate(vs, axis)
    stops = np.cumsum([v.shape[axis] for v in vs]).tolist()

    def part(stop: int, size: int) -> Function:
        index = (slice(None),) * (axis % y.ndim) + (slice(stop - size, stop),)
        return lambda g: g[index]

    pulls = [part(stop, v.shape[axis]) for stop, v in zip(stops, vs, strict=True)]
    return record("concatenate", y, *zip(xs, pulls, strict=True))


@primitive
def einsum(subscripts: str, *operands: Any) -> Tensor:
    """Multiply the operands and sum over the letters that are not in the result.

    The gradient of an operand is an einsum too: of the result's gradient and the other operands.
    """
    values = [np.asarray(raw(x)) for x in operands]
    terms, result = letters_of(subscripts, [v.ndim for v in values])

    def pull(i: int) -> Function:
        others = [(t, v) for j, (t, v) in enumerate(zip(terms, values, strict=True)) if j != i]
        return lambda g: operand_gradient(g, result, terms[i], values[i].shape, others)

    y = np.einsum(f"{','.join(terms)}->{result}", *values, optimize=True)
    return record("einsum", y, *[(x, pull(i)) for i, x in enumerate(operands)])


def letters_of(subscripts: str, ranks: list[int]) -> tuple[list[str], str]:
    """Return the letters of every operand and of the result, with `...` turned into letters."""
    if not isinstance(subscripts, str):
        raise WrongTypeError(f"the subscripts are a text such as 'ij,jk->ik'; got {subscripts!r}")
    left, arrow, result = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise QuerykeyError(
            f"{subscripts!r} speaks of {len(terms)} operands, {len(ranks)} were given"
        )
    free = [c for c in string.ascii_letters if c not in subscripts]
    widths = [r - len(t) + 3 for t, r in zip(terms, ranks, strict=True) if "..." in t]
    dots = "".join(free[: max(widths, default=0)])
    if not arrow:
        letters = sorted(c for c in set(left) - set(".,") if left.count(c) == 1)
        result = ("..." if widths else "") + "".join(letters)
    spelled = []
    for term, rank in zip(terms, ranks, strict=True):
        width = rank - len(term) + 3
        spelled.append(term.replace("...", dots[len(dots) - width :] if width > 0 else ""))
        if len(spelled[-1]) != rank:
            raise QuerykeyError(f"{term!r} in {subscripts!r} does not name {rank} axes")
    return spelled, result.replace("...", dots)


def operand_gradient(
    g: np.ndarray,
    result: str,
    term: str,
    shape: tuple[int, ...],
    others: list[tuple[str, np.ndarray]],
) -> np.ndarray:
    """Return the gradient of the operand whose letters are `term`."""
    letters = "".join(dict.fromkeys(term))
    inputs = ",".join([result, *[t for t, _ in others]])
    present = "".join(c for c in letters if c in inputs)
    part = np.einsum(f"{inputs}->{present}", g, *[v for _, v in others], optimize=True)
    part = part.reshape([part.shape[present.index(c)] if c in present else 1 for c in letters])
    if letters == term:
        return part
    full = np.zeros(shape, part.dtype)
    diagonal = np.einsum(f"{term}->{letters}", full)  # a view
    diagonal[...] = shrink(part, diagonal.shape)
    return full


# Made of primitives, which bring the derivatives


def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Return x with some axes at other places, and the rest in their order."""
    try:
        if (source, destination) == (1, 2):
            return swapped(x, 1, 2)  # what attention writes most, without the detour below
        n = x.ndim if isinstance(x, Tensor) else np.ndim(x)
        froms, tos = normalize_axis_tuple(source, n), normalize_axis_tuple(destination, n)
        if len(froms) != len(tos):
            raise QuerykeyError(f"{len(froms)} axes go to {len(tos)} places")
        order = [a for a in range(n) if a not in froms]
        for place, axis in sorted(zip(tos, froms, strict=True)):
            order.insert(place, axis)
    except REFUSALS as error:
        raise misfit("moveaxis", error, (x,)) from None
    return permuted(x, order)


@primitive
def swapaxes(x: Any, a: int, b: int) -> Tensor:
    """Return x with two axes exchanged."""
    return swapped(x, a, b)


@primitive
def expand_dims(x: Any, axis: int | tuple[int, ...]) -> Tensor:
    """Return x with new axes of size one."""
    return reshape(x, np.expand_dims(raw(x), axis).shape)


@primitive
def squeeze(x: Any, axis: Axis = None) -> Tensor:
    """Return x without its axes of size one, or without those that are named."""
    return reshape(x, np.squeeze(raw(x), axis).shape)


@primitive
def stack(xs: Sequence[Any], axis: int = 0) -> Tensor:
    """Return arrays joined along a new axis."""
    return concatenate([expand_dims(x, axis) for x in xs], axis)


@primitive
def split(x: Any, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Return equal parts along an axis, or the parts between the given places."""
    if isinstance(sections, dict | set | str | bytes):
        raise WrongTypeError(
            f"sections is a number of parts, or a list of places; got {sections!r}"
        )
    places = np.split(np.arange(np.shape(raw(x))[axis]), sections)
    lead = (slice(None),) * (axis % np.ndim(raw(x)))
    bounds = [slice(p[0], p[-1] + 1) if p.size else slice(0, 0) for p in places]
    return [getitem(x, (*lead, slice(int(b.start), int(b.stop)))) for b in bounds]


@primitive
def take(x: Any, indices: Any, axis: int | None = None) -> Tensor:
    """Return the elements, or the slices along an axis, at the indices."""
    places = np.asarray(raw(indices))
    places = places.astype(int) if places.dtype == bool or not places.size else places
    if axis is None:
        return getitem(reshape(x, -1), places)
    lead = (slice(None),) * normalize_axis_index(axis, np.ndim(raw(x)))
    return getitem(x, (*lead, places))


@primitive
def take_along_axis(x: Any, indices: Any, axis: int = -1) -> Tensor:
    """Return, for each place, the element at its own index along one axis."""
    along = np.asarray(raw(indices))
    sizes = list(np.shape(raw(x)))
    if along.ndim != len(sizes):
        raise QuerykeyError(f"the indices have {along.ndim} axes and the array {len(sizes)}")
    sizes[axis] = 1
    grid: list[Any] = list(np.ix_(*[np.arange(n) for n in sizes]))
    grid[axis] = along
    return getitem(x, tuple(grid))
