"""Caches as their users change them: rows in another order (beams), the last tokens dropped."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import nn

from querykey.laws.private import REORDERING_METHODS
from querykey.laws.understanding.outputs import Path

PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
REORDERS = ("reorder_cache", "batch_select_indices", "select_rows", "reorder", "select")
CROPS = ("crop", "truncate", "rollback", "trim", "drop_last")
RECORDING = "activate_past_recording"  # transformers' own generate calls it before it drafts
COUNTS = re.compile(r"remove|drop|num|count|^n$|^k$|tokens|steps|by")  # what a crop leaves out
DEEPEST = 8


class UneditableError(Exception):
    """One sentence: why the rows of a cache cannot be reordered, or its last tokens dropped."""


def reordered(cache: Any, rows: Sequence[int], model: nn.Module, batch: int) -> Any:
    """Return a cache with these rows in this order, by its own method or the model's if any."""
    index = torch.tensor(list(rows))
    device = next((p.device for p in model.parameters()), None)
    index = index if device is None else index.to(device)
    for name in REORDERS:
        method = None if isinstance(cache, torch.Tensor) else getattr(cache, name, None)
        if callable(method):
            result = method(index)
            return cache if result is None else result
    for name in REORDERING_METHODS:
        method = getattr(model, name, None)
        if callable(method):
            try:
                result = method(cache, index) if cache is not None else method(index)
            except NotImplementedError:  # as the library's own stands for none
                continue
            return cache if result is None else result
    if cache is None or isinstance(cache, PLAIN):
        raise UneditableError(
            "the model keeps its cache to itself, and has no method to reorder it"
        )
    axes: list[int] = []

    def by_row(path: Path, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
            return leaf
        axis = next((a for a in (0, 1, 2) if a < leaf.dim() and leaf.shape[a] == batch), None)
        if axis is not None:
            axes.append(axis)
            return leaf.index_select(axis, index)
        if leaf.shape[0] and leaf.shape[0] % batch == 0:  # batch and heads are one axis
            axes.append(0)
            return leaf.unflatten(0, (batch, -1)).index_select(0, index).flatten(0, 1)
        if leaf.is_floating_point() and leaf.dim() > 1 and leaf.shape[0] != 1:
            raise UneditableError("its cache holds a tensor without an axis of rows")
        return leaf

    result = rebuilt(cache, by_row)
    if not axes:
        raise UneditableError("no rows were found in its cache")
    return result


@dataclass(frozen=True)
class Bookmark:
    """A cache as it was after `past` tokens, to which it is to be taken back.

    `told`: the next call says by a number how many tokens there are, so stale ones may stay.
    """

    cache: Any
    leaves: Mapping[Path, Any]
    past: int
    told: bool


def bookmark(cache: Any, past: int, told: bool) -> Bookmark:
    """Return what must be known of a cache now to take it back here later."""
    own = any(callable(getattr(cache, name, None)) for name in CROPS)
    return Bookmark(cache, {} if own or _is_value(cache) else _census(cache), past, told)


def _is_value(cache: Any) -> bool:
    """Return whether a cache is declared to be a value, which no call changes."""
    return is_dataclass(cache) and type(cache).__dataclass_params__.frozen  # type: ignore[attr-defined]


def cropped(cache: Any, mark: Bookmark, count: int) -> Any:
    """Return a cache without its last `count` tokens, those that were fed after the bookmark."""
    before, past, told = mark.leaves, mark.past, mark.told
    own = own_crop(cache, past, count)
    if own:
        name, amount = own
        result = getattr(cache, name)(amount)
        return cache if result is None else result
    if _is_value(cache):
        return mark.cache
    if cache is None or isinstance(cache, str | bool):
        if told:
            return cache
        raise UneditableError("the model keeps its cache to itself, and has no method to crop it")
    if isinstance(cache, int):
        return cache - count
    shrunk: list[Path] = []
    state: list[Path] = []

    def shorter(path: Path, leaf: Any) -> Any:
        earlier = before.get(path)
        if isinstance(leaf, int) and not isinstance(leaf, bool) and isinstance(earlier, int):
            if leaf - earlier == count:
                shrunk.append(path)
                return earlier
            return leaf
        if not isinstance(leaf, torch.Tensor) or not isinstance(earlier, torch.Tensor):
            return leaf
        if leaf.shape == earlier.shape:
            if not _only_added(earlier, leaf, past, count):
                state.append(path)
            return leaf
        axes = [a for a in range(leaf.dim()) if leaf.shape[a] - earlier.shape[a] == count]
        if leaf.dim() != earlier.dim() or len(axes) != 1:
            raise UneditableError("no axis of tokens was found in its cache")
        shrunk.append(path)
        return leaf.narrow(axes[0], 0, earlier.shape[axes[0]]).clone()

    result = rebuilt(cache, shorter)
    if state:
        raise UneditableError("its state is one that no token can be taken out of again")
    if not shrunk and not told:
        raise UneditableError("no axis of tokens was found in its cache")
    return result


def own_crop(cache: Any, past: int, count: int) -> tuple[str, int] | None:
    """Return the method of a cache that drops its last tokens, and what it is passed, if any."""
    for name in CROPS:
        method = getattr(cache, name, None)
        if callable(method):
            return name, _amount(method, past, count)
    return None


def _census(cache: Any) -> dict[Path, Any]:
    """Return the numbers in a cache, and copies of its tensors, by their places."""
    leaves: dict[Path, Any] = {}

    def note(path: Path, leaf: Any) -> Any:
        leaves[path] = leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
        return leaf

    rebuilt(cache, note)
    return leaves


def rebuilt(value: Any, change: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """Return a container like this one whose leaves were changed; objects are copied shallowly."""
    if isinstance(value, (torch.Tensor, *PLAIN)) or len(path) > DEEPEST:
        return change(path, value)
    if isinstance(value, nn.Module):
        raise UneditableError("its cache is a module")
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(rebuilt(v, change, (*path, i)) for i, v in enumerate(value)))
    if isinstance(value, list | tuple):
        return type(value)(rebuilt(v, change, (*path, i)) for i, v in enumerate(value))
    if type(value) is dict:
        return {k: rebuilt(v, change, (*path, k)) for k, v in value.items()}
    if callable(value) or not hasattr(value, "__dict__"):
        return value
    new = copy.copy(value)
    for name, part in _held(value):
        object.__setattr__(new, name, rebuilt(part, change, (*path, name)))
    if isinstance(new, dict):
        new |= {k: rebuilt(v, change, (*path, k)) for k, v in new.items()}
    return new


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value):
        yield from ((f.name, getattr(value, f.name)) for f in fields(value))
    else:
        yield from list(vars(value).items())


def _only_added(before: torch.Tensor, after: torch.Tensor, past: int, count: int) -> bool:
    """Return whether only places `past` to `past + count` along one axis have changed."""
    changed = (before != after) & ~(before.isnan() & after.isnan())
    if not changed.any():
        return True
    for axis in range(after.dim()):
        if after.shape[axis] >= past + count:
            others = [a for a in range(after.dim()) if a != axis]
            places = (changed.amax(others) if others else changed).nonzero().flatten()
            if past <= int(places.min()) and int(places.max()) < past + count:
                return True
    return False


def _amount(method: Callable[..., Any], past: int, count: int) -> int:
    """Return what a method that crops is passed: the length that stays, or how many tokens go."""
    home = getattr(method, "__module__", "") or ""
    if home.startswith("transformers."):
        return -count  # a negative number: so many tokens go
    names = [n for n in inspect.signature(method).parameters if n != "self"]
    return count if names and COUNTS.search(names[0]) else past
