"""Attention over two dimensions, windows and channels (spatial transformer, ViT, Swin, DaViT).

A grid is (*batch, heads, X, Y, features), or (X, Y, features); flattened, y runs first.
Each function takes the `attend` that does the work, so that fast ones can.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from querykey.attention import reference
from querykey.attention.arrays import Array, namespace
from querykey.attention.masks import FULL, Documents, Mask
from querykey.attention.mechanisms import Mechanism, Softmax
from querykey.errors import QuerykeyError

Attend = Callable[..., Array]
Pair = tuple[int, int]


def attend_grid(
    q: Array,
    k: Array,
    v: Array,
    *,
    mechanism: Mechanism = Softmax(),  # noqa: B008 - a frozen value
    mask: Mask = FULL,
    bias: Any = None,
    attend: Attend = reference.attend,
) -> Array:
    """Let every (x1, y1) see every (x2, y2): softmax over both at once.

    Masks and biases count positions along the flattened grid, x * Y + y. The grid of keys may have
    another size than that of queries, as it has when keys are pooled.
    """
    out = attend(_flat(q), _flat(k), _flat(v), mechanism=mechanism, mask=mask, bias=bias)
    return namespace(q).reshape(out, (*q.shape[:-1], v.shape[-1]))


def attend_windows(
    q: Array,
    k: Array,
    v: Array,
    *,
    window: Pair,
    shift: Pair = (0, 0),
    mechanism: Mechanism = Softmax(),  # noqa: B008 - a frozen value
    bias: Any = None,
    attend: Attend = reference.attend,
) -> Array:
    """Let every position see its own window of the grid (Liu et al., 2021).

    With a shift the windows are moved by that much. Those at the far edge then hold two ends of the
    grid that are no neighbours, and these do not see each other. A bias is over the positions of a
    window, x * window_y + y.
    """
    xp, heads = namespace(q), len(q.shape) > 3
    if not heads:
        q, k, v = (x[None, ...] for x in (q, k, v))
    _check_windows(tuple(q.shape[-3:-1]), window, shift)
    parts = (
        _windows(xp, xp.roll(x, (-shift[0], -shift[1]), axis=(-3, -2)), window) for x in (q, k, v)
    )
    mask = FULL
    if any(shift):
        regions = _regions(tuple(q.shape[-3:-1]), window, shift)
        mask = Documents(np.broadcast_to(regions, (*q.shape[:-4], *regions.shape)))
    out = attend(*parts, mechanism=mechanism, mask=mask, bias=bias)
    whole = xp.roll(_unwindowed(xp, out, window), shift, axis=(-3, -2))
    return whole if heads else whole[0, ...]


def strided(x: Array, step: Pair) -> Array:
    """Keep every step-th position each way, from the first: keys and values for `attend_grid`."""
    return x[..., :: step[0], :: step[1], :]


def pooled(x: Array, size: Pair) -> Array:
    """Average blocks of `size` positions: keys and values for `attend_grid`."""
    *outer, X, Y, width = x.shape
    _check_windows((X, Y), size, (0, 0))
    blocks = (*outer, X // size[0], size[0], Y // size[1], size[1], width)
    return namespace(x).mean(namespace(x).reshape(x, blocks), axis=(-4, -2))


def attend_channels(
    q: Array,
    k: Array,
    v: Array,
    *,
    groups: int,
    mechanism: Mechanism | None = None,
    attend: Attend = reference.attend,
) -> Array:
    """Let channels see the channels of their group, all tokens describing each (Ding et al., 2022).

    q, k and v are (*batch, tokens, channels), and so is the result. The mechanism is softmax with
    the scale 1/sqrt(channels of a group), unless another is given.
    """
    *outer, tokens, channels = q.shape
    if channels % groups:
        raise QuerykeyError(f"{channels} channels do not split into {groups} groups of one size")
    mechanism = mechanism or Softmax(scale=1 / math.sqrt(max(channels // groups, 1)))
    xp = namespace(q)
    # Groups take the place of heads, channels that of tokens, tokens that of features.
    rows = (
        xp.reshape(xp.matrix_transpose(x), (*outer, groups, channels // groups, tokens))
        for x in (q, k, v)
    )
    out = attend(*rows, mechanism=mechanism)
    return xp.matrix_transpose(xp.reshape(out, (*outer, channels, tokens)))


def _flat(x: Array) -> Array:
    *outer, X, Y, width = x.shape
    return namespace(x).reshape(x, (*outer, X * Y, width))


def _check_windows(grid: Pair, window: Pair, shift: Pair) -> None:
    for name, size, part, move in zip("XY", grid, window, shift, strict=True):
        if part < 1 or size % part:
            raise QuerykeyError(f"{name} = {size} does not split into windows of {part}")
        if not 0 <= move < part:
            raise QuerykeyError(f"a shift moves by less than a window, 0 to {part - 1}; got {move}")


def _windows(xp: Any, x: Array, window: Pair) -> Array:
    """Turn (*batch, heads, X, Y, F) into (*batch, windows, heads, tokens of a window, F)."""
    *batch, heads, X, Y, width = x.shape
    a, b, rank = X // window[0], Y // window[1], len(batch)
    x = xp.reshape(x, (*batch, heads, a, window[0], b, window[1], width))
    order = (*range(rank), *(rank + i for i in (1, 3, 0, 2, 4, 5)))
    return xp.reshape(
        xp.permute_dims(x, order), (*batch, a, b, heads, window[0] * window[1], width)
    )


def _unwindowed(xp: Any, x: Array, window: Pair) -> Array:
    *batch, a, b, heads, _, width = x.shape
    rank = len(batch)
    x = xp.reshape(x, (*batch, a, b, heads, *window, width))
    order = (*range(rank), *(rank + i for i in (2, 0, 3, 1, 4, 5)))
    return xp.reshape(
        xp.permute_dims(x, order), (*batch, heads, a * window[0], b * window[1], width)
    )


def _regions(grid: Pair, window: Pair, shift: Pair) -> np.ndarray:
    """Number the pieces of each rolled window that were neighbours before: (a, b, tokens)."""
    sides = [np.arange(n) >= n - move for n, move in zip(grid, shift, strict=True)]
    wrapped = 2 * sides[0][:, None] + sides[1][None, :]
    a, b = grid[0] // window[0], grid[1] // window[1]
    tiles = wrapped.reshape(a, window[0], b, window[1]).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(tiles.reshape(a, b, window[0] * window[1]))
